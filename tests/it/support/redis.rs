//! A real Redis (or Valkey) in a temporary folder, gone when it is dropped.
//!
//! Servers of this test process listen on a loopback address of their own, each on a port of its
//! own: while one is down, nothing else can take its place.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use redis::{Client, Connection, Value};
use retrysafe::store::tier::Tier;
use retrysafe::store::vault::VaultSettings;
use retrysafe::store::{RedisStores, Settings, StoreUrl, WakeFn};
use retrysafe::tls::{ClientKeys, ClientSettings};
use tokio::time::Instant;

use super::{PATIENCE, eventually};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// The `redis-server` in the path.
    Installed,
    /// The one that `RETRYSAFE_TEST_REDIS62` names.
    Redis62,
    /// The one that `RETRYSAFE_TEST_VALKEY` names.
    Valkey,
}

impl Flavour {
    /// Its binary; `None`, and a line that says so, without one.
    pub fn path(self) -> Option<PathBuf> {
        let variable = match self {
            Self::Installed => return installed(),
            Self::Redis62 => "RETRYSAFE_TEST_REDIS62",
            Self::Valkey => "RETRYSAFE_TEST_VALKEY",
        };
        let named = std::env::var_os(variable).filter(|path| !path.is_empty());
        if named.is_none() {
            skipped(&format!("{variable} names no server (tests/run sets it)"));
        }
        named.map(PathBuf::from)
    }
}

fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join("redis-server"))
        .find(|binary| binary.exists());
    if found.is_none() {
        skipped("redis-server is not installed (apt-get install redis-server)");
    }
    found
}

/// Says that a test does nothing here; in CI that is a failure.
pub(super) fn skipped(why: &str) {
    let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(!in_ci, "{why}, and in CI nothing is skipped");
    eprintln!("skipped: {why}");
}

/// A running server.
#[derive(Debug)]
pub struct Redis {
    binary: PathBuf,
    folder: tempfile::TempDir,
    addr: SocketAddr,
    arguments: Vec<String>,
    process: Child,
}

impl Redis {
    /// The installed server with these arguments; `None`, and a line that says so, without one.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        Self::start_flavour(Flavour::Installed, arguments)
    }

    pub fn start_flavour(flavour: Flavour, arguments: &[&str]) -> Option<Self> {
        let binary = flavour.path()?;
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let folder = tempfile::tempdir().unwrap();
            let addr = next_addr();
            let process = spawn(&binary, folder.path(), addr, &arguments);
            let mut server = Self {
                binary: binary.clone(),
                folder,
                addr,
                arguments: arguments.clone(),
                process,
            };
            // Another program may be there; then this one ends at once.
            if server.came_up() {
                return Some(server);
            }
            assert!(
                Instant::now() < deadline,
                "{} does not start",
                binary.display()
            );
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// With the password that it was started with.
    fn own_url(&self) -> String {
        let mut arguments = self.arguments.iter();
        let found = arguments.find(|argument| *argument == "--requirepass");
        match found.and_then(|_| arguments.next()) {
            Some(password) => format!("redis://:{password}@{}", self.addr),
            None => self.url(),
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends one command over a connection of its own and answers the reply, which may be an error.
    pub fn cli(&self, command: &[&str]) -> Value {
        self.try_cli(command).expect("the server replies")
    }

    /// Sends one command and does not wait for it; the connection lives as long as the answer.
    pub fn send(&self, command: &[&str]) -> TcpStream {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        let packed = redis::Cmd::new().arg(command).get_packed_command();
        stream.write_all(&packed).unwrap();
        stream
    }

    fn try_cli(&self, command: &[&str]) -> redis::RedisResult<Value> {
        let mut connection = self.connection()?;
        let mut packed = redis::Cmd::new();
        packed.arg(command);
        redis::ConnectionLike::req_command(&mut connection, &packed)
    }

    fn connection(&self) -> redis::RedisResult<Connection> {
        let connection = Client::open(self.own_url())?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// One field of `INFO`.
    pub fn info(&self, field: &str) -> String {
        let Value::BulkString(text) = self.cli(&["INFO", "everything"]) else {
            panic!("INFO answers text");
        };
        let text = String::from_utf8(text).unwrap();
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(name, _)| *name == field);
        found
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    }

    /// The names of all records.
    pub fn records(&self) -> Vec<String> {
        self.records_of("retrysafe")
    }

    /// The same of another namespace.
    pub fn records_of(&self, namespace: &str) -> Vec<String> {
        let Value::Array(keys) = self.cli(&["KEYS", &format!("{namespace}:*")]) else {
            panic!("KEYS answers a list");
        };
        let name = |key| match key {
            Value::BulkString(key) => String::from_utf8(key).unwrap(),
            other => panic!("{other:?} is no name"),
        };
        // Not what says whether it is still the same store.
        let others = ["mark", "lost"].map(|other| format!("{namespace}:{other}"));
        let is_other = |name: &String| others.iter().any(|other| name.starts_with(other));
        let names = keys.into_iter().map(name);
        names.filter(|name| !is_other(name)).collect()
    }

    /// How long the only record is still kept.
    pub fn kept_for(&self) -> Duration {
        let records = self.records();
        assert_eq!(records.len(), 1, "{records:?}");
        let Value::Int(left) = self.cli(&["PTTL", &records[0]]) else {
            panic!("PTTL answers a number");
        };
        Duration::from_millis(left.try_into().expect("it has an end"))
    }

    /// `CLIENT LIST`, a line for each.
    pub fn clients(&self) -> String {
        let Value::BulkString(list) = self.cli(&["CLIENT", "LIST"]) else {
            panic!("a list of clients");
        };
        String::from_utf8(list).unwrap()
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again on the same port over the same folder, and waits until it answers.
    pub fn restart(&mut self, more: &[&str]) {
        self.spawn_again(more);
        assert!(self.came_up(), "it starts again");
    }

    /// Starts it again and waits only until it accepts connections: it may still be loading.
    pub fn restart_loading(&mut self, more: &[&str]) {
        self.spawn_again(more);
        eventually("it accepts connections", || {
            TcpStream::connect(self.addr).is_ok()
        });
    }

    fn spawn_again(&mut self, more: &[&str]) {
        let mut arguments = self.arguments.clone();
        arguments.extend(more.iter().map(ToString::to_string));
        self.process = spawn(&self.binary, self.folder.path(), self.addr, &arguments);
    }

    /// Stops its process from running, without ending it.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(done.success());
    }

    fn came_up(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            // Any reply but LOADING says that it is there, a demand for a password too.
            match self.try_cli(&["PING"]) {
                Ok(Value::ServerError(error)) if error.code() == "LOADING" => {}
                Err(error) if error.is_io_error() => {}
                _ => return true,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The address of this test process' servers, and a port that no other of them has.
pub fn next_addr() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    SocketAddr::from((own_ip(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Where all servers of this test process listen.
pub fn own_ip() -> Ipv4Addr {
    let [high, middle, low] = [16, 8, 0].map(|shift| (std::process::id() >> shift) & 0xff);
    // Of 22 bits; never 127.0.0.1, where all others listen.
    Ipv4Addr::from_bits((127 << 24) | ((high + 1) << 16) | (middle << 8) | low)
}

/// An argument that stands for [`tls_port`].
pub const TLS_PORT: &str = "{tls-port}";

/// A port that goes with a server's own.
pub fn tls_port(addr: SocketAddr) -> u16 {
    addr.port() + 5_000
}

fn spawn(binary: &Path, folder: &Path, addr: SocketAddr, arguments: &[String]) -> Child {
    let log = std::fs::File::create(folder.join("server.log")).unwrap();
    Command::new(binary)
        .args(["--port", &addr.port().to_string()])
        .args(["--bind", &addr.ip().to_string()])
        .args(["--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder)
        .args(arguments.iter().map(|argument| match argument.as_str() {
            TLS_PORT => tls_port(addr).to_string(),
            argument => argument.to_owned(),
        }))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Makes a user `sidecar` with the password `pw` and no more rights than docs/stores.md names, with
/// those in `besides` of its second table. The namespace is `test`.
pub fn least_rights(server: &Redis, besides: &str) {
    let docs = include_str!("../../../docs/stores.md");
    let (_, rest) = docs.split_once("ACL SETUSER sidecar ").unwrap();
    let (rights, rest) = rest.split_once("```").unwrap();
    let shown = rest.replace('\\', "");
    assert!(shown.contains(&format!("| `{besides}` |")) || besides.is_empty());
    let rights = rights
        .replace("PASSWORD", "pw")
        .replace("retrysafe:", "test:");
    let mut command = vec!["ACL", "SETUSER", "sidecar"];
    command.extend(rights.split_whitespace());
    command.extend(besides.split_whitespace());
    assert_eq!(server.cli(&command), Value::Okay);
}

/// Settings for this server, with a deadline that no healthy server misses.
pub fn settings(server: &Redis) -> Settings {
    settings_at(server.url())
}

/// The same for whatever `url` names.
pub fn settings_at(url: String) -> Settings {
    Settings {
        url: StoreUrl::Redis(url),
        namespace: "test".to_owned(),
        secret: None,
        require_tier: Tier::T0,
        vault: VaultSettings::default(),
        timeout: Duration::from_secs(10),
        wait_replicas: 0,
        single_replica: false,
        hold_off: Duration::ZERO,
        allow_eviction: false,
        max_records: u64::MAX,
        connections: 8,
        cache: None,
        tls: ClientSettings::plain(ClientKeys::STORE),
    }
}

/// A store on this server that wakes nobody.
pub fn stores(server: &Redis) -> RedisStores {
    let nobody: WakeFn = Arc::new(|_| {});
    RedisStores::new(&settings(server), nobody).unwrap()
}
