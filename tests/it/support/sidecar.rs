//! The real binary, started in a temporary folder on free loopback ports.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use tempfile::TempDir;
use tokio::time::Instant;

use super::postgres::Postgres;
use super::redis::Redis;
use super::{PATIENCE, eventually};

/// What a sidecar is started with.
#[derive(Debug, Clone)]
pub struct Plan {
    config: String,
    store: Option<String>,
    folder: Option<PathBuf>,
    env: Vec<(String, String)>,
    args: Vec<String>,
    hosts: bool,
}

/// A running `retrysafe`.
#[derive(Debug)]
pub struct Sidecar {
    pub addr: SocketAddr,
    pub health: SocketAddr,
    child: Child,
    lines: Arc<Lines>,
    folder: PathBuf,
    _own_folder: Option<TempDir>,
}

#[derive(Debug, Default)]
struct Lines {
    seen: Mutex<(Vec<String>, bool)>,
    more: Condvar,
}

impl Plan {
    /// In front of `upstream`, on the file store; `more` is TOML laid after the tables
    /// `[server]`, `[upstream]`, `[store]` and `[health]`, which `server`, `upstream` and `store`
    /// lines extend.
    pub fn new(upstream: SocketAddr, lines: &Tables<'_>) -> Self {
        let store = lines.store_url.map(str::to_owned);
        // Who restarts or empties a server here wants to see what follows at once.
        let hold_off = if lines.store.contains("hold_off") {
            ""
        } else {
            "hold_off = \"0s\""
        };
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{}\n[upstream]\nurl = \"http://{upstream}\"\n{}\n\
             [health]\nlisten = \"127.0.0.1:0\"\n[store]\n{hold_off}\n{}\n[log]\nformat = \"json\"\nlevel = \
             \"debug\"\n{}\n",
            lines.server, lines.upstream, lines.store, lines.rest
        );
        Self {
            config,
            store,
            folder: None,
            env: Vec::new(),
            args: Vec::new(),
            hosts: false,
        }
    }

    /// Keeps its files in `folder`, so that another sidecar can take them over.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A further argument.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// With the file `hosts` of its folder in place of the system's, in namespaces of its own.
    pub fn hosts(mut self) -> Self {
        self.hosts = true;
        self
    }

    fn spawn(&self, folder: &Path) -> Child {
        let store = self
            .store
            .clone()
            .unwrap_or_else(|| "file:records.db".to_owned());
        let config = self
            .config
            .replacen("[store]\n", &format!("[store]\nurl = \"{store}\"\n"), 1);
        std::fs::write(folder.join("config.toml"), config).unwrap();
        let program = env!("CARGO_BIN_EXE_retrysafe");
        let mut command = if self.hosts {
            let mut command = Command::new("unshare");
            let script = "mount --bind hosts /etc/hosts && exec \"$0\" \"$@\"";
            command.args(["--map-root-user", "--mount", "sh", "-c", script, program]);
            command
        } else {
            Command::new(program)
        };
        command
            .args(["run", "--config", "config.toml"])
            .args(&self.args)
            .current_dir(folder)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Starts it and waits until it is ready.
    pub fn start(&self) -> Sidecar {
        let own = self.folder.is_none().then(|| tempfile::tempdir().unwrap());
        let folder = self
            .folder
            .clone()
            .unwrap_or_else(|| own.as_ref().unwrap().path().to_owned());
        let mut child = self.spawn(&folder);
        let lines = Lines::follow(child.stderr.take().unwrap());
        let first = lines.wait_for(|line| line.contains("\"event\":\"listening\""));
        let first = first.unwrap_or_else(|| panic!("never listened:\n{}", lines.all().join("\n")));
        let event: serde_json::Value = serde_json::from_str(&first).unwrap();
        let address = |name: &str| event[name].as_str().unwrap().parse().unwrap();
        let (addr, health) = (address("address"), address("health"));
        let sidecar = Sidecar {
            addr,
            health,
            child,
            lines,
            folder,
            _own_folder: own,
        };
        sidecar.wait_ready();
        sidecar
    }

    /// Starts it where it is expected to end by itself: exit code and what it said.
    pub fn fails(&self) -> (i32, String) {
        let own = tempfile::tempdir().unwrap();
        let folder = self.folder.clone().unwrap_or_else(|| own.path().to_owned());
        let mut child = self.spawn(&folder);
        let lines = Lines::follow(child.stderr.take().unwrap());
        let status = wait_exit(&mut child);
        lines.wait_end();
        (status.code().unwrap_or(-1), lines.all().join("\n"))
    }
}

/// One command of the binary, run in `folder` to its end.
pub fn retrysafe(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(args)
        .current_dir(folder)
        .env_remove("RETRYSAFE_CONFIG")
        .output()
        .unwrap()
}

/// Lines of TOML for each table of a [`Plan`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Tables<'a> {
    pub server: &'a str,
    pub upstream: &'a str,
    pub store: &'a str,
    pub store_url: Option<&'a str>,
    /// `[policy]`, `[[route]]` and whatever else.
    pub rest: &'a str,
}

/// In front of `upstream` on this Redis, with `rest` as further tables.
pub fn on_redis(upstream: SocketAddr, redis: &Redis, rest: &str) -> Plan {
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        rest,
        ..Tables::default()
    };
    Plan::new(upstream, &tables)
}

/// The same on this PostgreSQL.
pub fn on_postgres(upstream: SocketAddr, server: &Postgres, rest: &str) -> Plan {
    let url = server.url();
    let tables = Tables {
        store_url: Some(&url),
        rest,
        ..Tables::default()
    };
    Plan::new(upstream, &tables)
}

/// In front of `upstream` on the file store, with `rest` as further tables.
pub fn sidecar(upstream: SocketAddr, rest: &str) -> Sidecar {
    Plan::new(
        upstream,
        &Tables {
            rest,
            ..Tables::default()
        },
    )
    .start()
}

impl Sidecar {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sends a signal, by name as `kill` knows it.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; the exit code.
    pub fn exit_code(&mut self) -> i32 {
        wait_exit(&mut self.child).code().unwrap_or(-1)
    }

    /// A log line that contains `text`.
    pub fn wait_log(&self, text: &str) -> String {
        let found = self.lines.wait_for(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("{text:?} was never logged:\n{}", self.log().join("\n")))
    }

    /// All log lines so far.
    pub fn log(&self) -> Vec<String> {
        self.lines.all()
    }

    /// Resident memory in KiB.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most it ever had resident, in KiB.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let mut words = line.unwrap().split_whitespace();
        words.next().unwrap().parse().unwrap()
    }

    /// The text of `/metrics`.
    pub fn metrics(&self) -> String {
        let answer = super::client::get(self.health, "/metrics");
        String::from_utf8(answer.body).unwrap()
    }

    /// One whole number of `/metrics`, by its full name with labels; 0 where it is not there.
    pub fn metric(&self, name: &str) -> u64 {
        self.metrics()
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or(0)
    }

    /// Waits until a sample has a value that `is` accepts.
    pub fn wait_metric(&self, name: &str, is: impl Fn(u64) -> bool) {
        eventually(&format!("metric {name}"), || is(self.metric(name)));
    }

    fn wait_ready(&self) {
        eventually("ready", || {
            super::client::get(self.health, "/readyz").status == 200
        });
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "--- log of the sidecar at {}\n{}",
                self.addr,
                self.log().join("\n")
            );
        }
    }
}

impl Lines {
    fn follow(stderr: std::process::ChildStderr) -> Arc<Self> {
        let lines = Arc::new(Self::default());
        let filled = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { break };
                filled.seen.lock().unwrap().0.push(line);
                filled.more.notify_all();
            }
            filled.seen.lock().unwrap().1 = true;
            filled.more.notify_all();
        });
        lines
    }

    fn wait_for(&self, is: impl Fn(&str) -> bool) -> Option<String> {
        let until = Instant::now() + PATIENCE;
        let mut seen = self.seen.lock().unwrap();
        let mut at = 0;
        loop {
            if let Some(found) = seen.0[at..].iter().find(|line| is(line)) {
                return Some(found.clone());
            }
            at = seen.0.len();
            let left = until.checked_duration_since(Instant::now())?;
            if seen.1 {
                return None;
            }
            seen = self.more.wait_timeout(seen, left).unwrap().0;
        }
    }

    fn wait_end(&self) {
        let seen = self.seen.lock().unwrap();
        drop(
            self.more
                .wait_timeout_while(seen, PATIENCE, |seen| !seen.1)
                .unwrap(),
        );
    }

    fn all(&self) -> Vec<String> {
        self.seen.lock().unwrap().0.clone()
    }
}

fn wait_exit(child: &mut Child) -> ExitStatus {
    let mut ended = None;
    eventually("exit", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    ended.unwrap()
}
