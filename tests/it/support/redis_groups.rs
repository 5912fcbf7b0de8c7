//! Several Redis servers that belong together: a master with replicas, sentinels over them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use redis::Value;

use super::eventually;
use super::redis::{Flavour, Redis, TLS_PORT, next_addr, own_ip, tls_port};

/// A replica, which hears of its master at `master` or through a link.
pub fn replica_of(master: SocketAddr, more: &[&str]) -> Option<Redis> {
    replica_of_flavour(Flavour::Installed, master, more)
}

/// The same of another kind of server.
pub fn replica_of_flavour(flavour: Flavour, master: SocketAddr, more: &[&str]) -> Option<Redis> {
    let (ip, port) = (master.ip().to_string(), master.port().to_string());
    let own = own_ip().to_string();
    let mut arguments = vec!["--replicaof", &ip, &port, "--replica-announce-ip", &own];
    arguments.extend(more);
    let replica = Redis::start_flavour(flavour, &arguments)?;
    eventually("the replica has caught up", || {
        replica.info("master_link_status") == "up"
    });
    Some(replica)
}

/// A master that passes its memory on at once.
pub fn master(more: &[&str]) -> Option<Redis> {
    master_flavour(Flavour::Installed, more)
}

/// The same of another kind of server.
pub fn master_flavour(flavour: Flavour, more: &[&str]) -> Option<Redis> {
    let own = own_ip().to_string();
    let mut arguments = vec!["--repl-diskless-sync-delay", "0"];
    arguments.extend(["--replica-announce-ip", &own]);
    arguments.extend(more);
    Redis::start_flavour(flavour, &arguments)
}

/// A sentinel's process.
#[derive(Debug)]
struct Sentinel {
    addr: SocketAddr,
    process: Child,
    folder: tempfile::TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Three sentinels over a master and a replica.
#[derive(Debug)]
pub struct Sentineled {
    sentinels: Vec<Sentinel>,
    /// The first is the master at the beginning.
    pub servers: [Redis; 2],
    /// What the sentinels and servers demand.
    pub password: Option<&'static str>,
    tls: bool,
}

/// What the sentinels call it.
pub const MASTER: &str = "m";

impl Sentineled {
    /// `None` where no server is installed.
    pub fn start(password: Option<&'static str>) -> Option<Self> {
        let more = password.map(|password| ["--requirepass", password, "--masterauth", password]);
        let more = more.as_ref().map_or(&[][..], |more| more);
        let master = master(more)?;
        let replica = replica_of(master.addr(), more)?;
        Self::over([master, replica], password)
    }

    /// The same, over TLS with each other; `lines` name the certificates for a configuration.
    pub fn start_tls(lines: &[String]) -> Option<Self> {
        let mut arguments = vec!["--tls-port", TLS_PORT];
        let options: Vec<_> = lines.iter().map(|line| format!("--{line}")).collect();
        for option in &options {
            arguments.extend(option.split(' '));
        }
        let master = master(&arguments)?;
        let over_tls = SocketAddr::from((master.addr().ip(), tls_port(master.addr())));
        let replica = replica_of(over_tls, &arguments)?;
        Self::watched([master, replica], over_tls, None, lines)
    }

    /// Sentinels over a master and its replica.
    pub fn over(servers: [Redis; 2], password: Option<&'static str>) -> Option<Self> {
        let master = servers[0].addr();
        Self::watched(servers, master, password, &[])
    }

    fn watched(
        servers: [Redis; 2],
        master: SocketAddr,
        password: Option<&'static str>,
        lines: &[String],
    ) -> Option<Self> {
        let binary = Flavour::Installed.path()?;
        let sentinels = (0..3).map(|_| sentinel(&binary, master, password, lines));
        let group = Self {
            sentinels: sentinels.collect(),
            servers,
            password,
            tls: !lines.is_empty(),
        };
        eventually("the sentinels know each other and the replica", || {
            group.sentinels.iter().all(|sentinel| {
                let said = group.ask(sentinel.addr, &["SENTINEL", "MASTER", MASTER]);
                let fields = fields(&said);
                let field = |name: &str| fields.get(name).map(String::as_str);
                field("num-other-sentinels") == Some("2")
                    && field("num-slaves") == Some("1")
                    && field("flags") == Some("master")
                    && matches!(
                        group.ask(sentinel.addr, &["SENTINEL", "CKQUORUM", MASTER]),
                        Value::SimpleString(_)
                    )
            })
        });
        Some(group)
    }

    pub fn url(&self) -> String {
        let place = |sentinel: &Sentinel| match sentinel.addr {
            addr if self.tls => format!("{}:{}", addr.ip(), tls_port(addr)),
            addr => addr.to_string(),
        };
        let places: Vec<_> = self.sentinels.iter().map(place).collect();
        let user = self.password.map(|password| format!(":{password}@"));
        let user = user.unwrap_or_default();
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{user}{}/{MASTER}", places.join(","))
    }

    /// Ends one sentinel.
    pub fn kill_sentinel(&mut self) {
        drop(self.sentinels.remove(0));
    }

    /// Where the sentinels say that the master is.
    pub fn named(&self) -> Vec<SocketAddr> {
        let named = self.sentinels.iter().map(|sentinel| {
            let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
            match self.ask(sentinel.addr, &ask) {
                Value::Array(parts) => {
                    let parts: Vec<_> = parts.iter().map(text).collect();
                    format!("{}:{}", parts[0], parts[1]).parse().unwrap()
                }
                other => panic!("{other:?}"),
            }
        });
        named.collect()
    }

    /// Asks for another master while the old one is well.
    pub fn fail_over(&self) {
        eventually("a failover begins", || {
            let said = self.ask(self.sentinels[0].addr, &["SENTINEL", "FAILOVER", MASTER]);
            said == Value::Okay
        });
    }

    /// Users that listen at one of the sentinels.
    pub fn listeners(&self, user: &str) -> usize {
        let lists = self.sentinels.iter().map(|sentinel| {
            let list = text(&self.ask(sentinel.addr, &["CLIENT", "LIST"]));
            let listening =
                |line: &&str| line.contains(" sub=1 ") && line.contains(&format!(" user={user} "));
            list.lines().filter(listening).count()
        });
        lists.sum()
    }

    fn ask(&self, addr: SocketAddr, command: &[&str]) -> Value {
        let user = self.password.map(|password| format!(":{password}@"));
        cli_at(
            &format!("redis://{}{addr}", user.unwrap_or_default()),
            command,
        )
    }
}

fn sentinel(
    binary: &Path,
    master: SocketAddr,
    password: Option<&str>,
    more: &[String],
) -> Sentinel {
    let folder = tempfile::tempdir().unwrap();
    let addr = next_addr();
    let mut lines = vec![
        format!("port {}", addr.port()),
        format!("bind {}", addr.ip()),
        format!("dir {}", folder.path().display()),
        format!("sentinel announce-ip {}", addr.ip()),
        format!(
            "sentinel monitor {MASTER} {} {} 2",
            master.ip(),
            master.port()
        ),
        format!("sentinel down-after-milliseconds {MASTER} 600"),
        format!("sentinel failover-timeout {MASTER} 2000"),
    ];
    if !more.is_empty() {
        lines.push(format!("tls-port {}", tls_port(addr)));
        lines.extend(more.iter().cloned());
    }
    if let Some(password) = password {
        lines.push(format!("requirepass {password}"));
        lines.push(format!("sentinel sentinel-pass {password}"));
        let rights = sentinel_rights();
        lines.push(format!("user sidecar on >pw resetchannels -@all {rights}"));
        lines.push(format!("sentinel auth-pass {MASTER} {password}"));
    }
    let file = folder.path().join("sentinel.conf");
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    let log = std::fs::File::create(folder.path().join("sentinel.log")).unwrap();
    let process = Command::new(binary)
        .arg(&file)
        .arg("--sentinel")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let sentinel = Sentinel {
        addr,
        process,
        folder,
    };
    eventually("the sentinel answers", || {
        std::net::TcpStream::connect(addr).is_ok()
    });
    assert!(sentinel.folder.path().exists());
    sentinel
}

/// What docs/stores.md says that a user needs there.
fn sentinel_rights() -> String {
    let docs = include_str!("../../../docs/stores.md").replace('\\', "");
    let (_, rest) = docs
        .split_once("| `redis+sentinel://` | `+role` | `")
        .unwrap();
    rest.split_once('`').unwrap().0.to_owned()
}

fn fields(said: &Value) -> BTreeMap<String, String> {
    match said {
        Value::Array(parts) => parts
            .chunks_exact(2)
            .map(|pair| (text(&pair[0]), text(&pair[1])))
            .collect(),
        _ => BTreeMap::new(),
    }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::BulkString(octets) => String::from_utf8(octets.clone()).unwrap(),
        other => panic!("{other:?} is no text"),
    }
}

/// One command over a connection of its own; an error is a value.
pub fn cli_at(url: &str, command: &[&str]) -> Value {
    let mut packed = redis::Cmd::new();
    packed.arg(command);
    let client = redis::Client::open(url).unwrap();
    let answer = client
        .get_connection_with_timeout(super::PATIENCE)
        .and_then(|mut connection| redis::ConnectionLike::req_command(&mut connection, &packed));
    answer.unwrap_or(Value::Nil)
}
