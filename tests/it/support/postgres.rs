//! A real PostgreSQL in a temporary folder, gone when it is dropped.
//!
//! It runs as the user `postgres` where the tests run as root, which it refuses. Which release, and
//! what its servers are made from, is in `postgres_releases.rs`.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use retrysafe::config::parse_store_url;
use retrysafe::store::tier::Tier;
use retrysafe::store::vault::VaultSettings;
use retrysafe::store::{Cache, PostgresStores, Settings, StoreUrl, TieredStores, WakeFn};
use retrysafe::tls::{ClientKeys, ClientSettings};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::authority::Pair;
use super::postgres_releases::{Origin, Release};
use super::redis::{Redis, next_addr};
use super::{PATIENCE, eventually, in_time};

/// Which user and group the server runs as; `None`: as these tests do.
pub(super) fn user() -> Option<(u32, u32)> {
    let id = |arguments: &[&str]| {
        let said = Command::new("id").args(arguments).output().ok()?.stdout;
        String::from_utf8(said).ok()?.trim().parse::<u32>().ok()
    };
    if id(&["-u"])? != 0 {
        return None;
    }
    Some((id(&["-u", "postgres"])?, id(&["-g", "postgres"])?))
}

/// Runs as that user.
pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// A folder of that user.
pub(super) fn folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("pg").tempdir_in("/tmp");
    let folder = folder.unwrap();
    own(folder.path());
    folder
}

fn own(path: &Path) {
    if let Some((user, group)) = user() {
        std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
    }
}

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    pub(super) origin: Arc<Origin>,
    pub(super) folder: TempDir,
    pub(super) addr: SocketAddr,
    pub(super) settings: Vec<String>,
    pub(super) process: Child,
}

impl Postgres {
    /// The installed server with these settings (`name=value`); `None`, and a line that says so,
    /// without one.
    pub fn start(settings: &[&str]) -> Option<Self> {
        Self::start_release(Release::Installed, settings)
    }

    pub fn start_release(release: Release, settings: &[&str]) -> Option<Self> {
        let origin = release.origin()?;
        let settings: Vec<_> = settings.iter().map(ToString::to_string).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let folder = folder();
            let copied = command(Path::new("cp"))
                .arg("-a")
                .arg(origin.cluster())
                .arg(folder.path())
                .status();
            assert!(copied.unwrap().success());
            let addr = next_addr();
            let process = spawn(&origin, folder.path(), addr, &settings);
            let mut server = Self {
                origin: Arc::clone(&origin),
                folder,
                addr,
                settings: settings.clone(),
                process,
            };
            if server.came_up() {
                return Some(server);
            }
            assert!(
                Instant::now() < deadline,
                "PostgreSQL does not start: {}",
                server.log()
            );
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The folder of its Unix socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn url(&self) -> String {
        format!("postgres://app@{}/postgres", self.addr)
    }

    /// The cluster's own folder, for its configuration.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A connection of the test's own, as the owner of everything.
    pub async fn client(&self) -> Client {
        let stream = tokio::net::TcpStream::connect(self.addr).await.unwrap();
        let mut login = tokio_postgres::Config::new();
        login
            .user("app")
            .dbname("postgres")
            .application_name("test");
        let (client, connection) = login.connect_raw(stream, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Runs statements; the first column of each row.
    pub async fn sql(&self, statements: &str) -> Vec<String> {
        let said = self.client().await.simple_query(statements).await.unwrap();
        let text = |message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        };
        said.into_iter().filter_map(text).collect()
    }

    /// The same for tests without a runtime.
    pub fn sql_now(&self, statements: &str) -> Vec<String> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        runtime.block_on(self.sql(statements))
    }

    /// Ends it as a crash does (`pg_ctl -m immediate`).
    pub fn crash(&mut self) {
        self.signal("-QUIT");
        self.process.wait().unwrap();
    }

    /// Kills it and all its sessions as `kill -9` does.
    pub fn kill(&mut self) {
        // A server that stands still begins no further process and buries none.
        self.pause();
        let parent = self.process.id().to_string();
        let killed = Command::new("pkill")
            .args(["-KILL", "-P", &parent])
            .status();
        assert!(killed.unwrap().success());
        // One that still has the shared memory would keep the next server from starting.
        eventually("all of them are dead", || {
            let arguments = ["-o", "stat=", "--ppid", &parent];
            let listed = Command::new("ps").args(arguments).output().unwrap();
            let states = String::from_utf8(listed.stdout).unwrap();
            states.lines().all(|state| state.starts_with('Z'))
        });
        self.signal("-KILL");
        self.process.wait().unwrap();
    }

    /// Starts it again on the same port over the same folder, and waits until it answers.
    pub fn restart(&mut self, more: &[&str]) {
        let mut settings = self.settings.clone();
        settings.extend(more.iter().map(ToString::to_string));
        self.process = spawn(&self.origin, self.folder.path(), self.addr, &settings);
        assert!(self.came_up(), "it starts again: {}", self.log());
    }

    /// Shows this certificate to whoever asks for TLS.
    pub async fn enable_tls(&self, pair: &Pair) {
        pair.write(&self.data(), "server");
        let key = self.data().join("server.key");
        own(&key);
        let only_own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, only_own).unwrap();
        self.sql("ALTER SYSTEM SET ssl = on").await;
        self.sql("SELECT pg_reload_conf()").await;
        in_time("it shows its certificate", async || {
            self.sql("SHOW ssl").await == ["on"]
        })
        .await;
    }

    /// Stops the server and all its sessions from running, without ending them.
    pub fn pause(&self) {
        self.signal_all("-STOP");
    }

    /// Lets them go on.
    pub fn resume(&self) {
        self.signal_all("-CONT");
    }

    /// The server first: then it begins no further process.
    fn signal_all(&self, signal: &str) {
        self.signal(signal);
        let parent = self.process.id().to_string();
        let done = Command::new("pkill").args([signal, "-P", &parent]).status();
        assert!(done.unwrap().success());
    }

    /// Ends one process of a store's session as the kernel does when memory is short.
    pub fn kill_a_session(&self) {
        let pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'retrysafe'";
        let pid = self.sql_now(pids).swap_remove(0);
        let done = Command::new("kill").args(["-KILL", &pid]).status().unwrap();
        assert!(done.success());
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(done.success());
    }

    pub(super) fn came_up(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let state = self.data().join("postmaster.pid");
        let own = self.process.id().to_string();
        while Instant::now() < deadline {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            // Its process first, how far it is last; an earlier one may have left its own.
            let said = std::fs::read_to_string(&state).unwrap_or_default();
            let lines: Vec<_> = said.lines().map(str::trim).collect();
            if lines.first() == Some(&own.as_str())
                && matches!(lines.get(7), Some(&("ready" | "standby")))
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            self.signal("-QUIT");
        }
        drop(self.process.wait());
    }
}

pub(super) fn spawn(
    origin: &Origin,
    folder: &Path,
    addr: SocketAddr,
    settings: &[String],
) -> Child {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .unwrap();
    let mut server = command(&origin.programs().join("postgres"));
    server.arg("-D").arg(folder.join("data"));
    let own = [
        format!("listen_addresses={}", addr.ip()),
        format!("port={}", addr.port()),
        format!("unix_socket_directories={}", folder.display()),
        "shared_buffers=16MB".to_owned(),
        "autovacuum=off".to_owned(),
    ];
    for setting in own.iter().chain(settings) {
        server.args(["-c", setting]);
    }
    server.stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Settings for the server at `url`, with a deadline that no healthy server misses.
pub fn settings(url: &str) -> Settings {
    Settings {
        secret: None,
        require_tier: Tier::T0,
        vault: VaultSettings::default(),
        wait_replicas: 0,
        url: parse_store_url(url).unwrap(),
        namespace: "test".to_owned(),
        timeout: Duration::from_secs(10),
        single_replica: false,
        hold_off: Duration::ZERO,
        allow_eviction: false,
        max_records: u64::MAX,
        connections: 8,
        cache: None,
        tls: ClientSettings::plain(ClientKeys::STORE),
    }
}

/// A store with these settings.
pub fn stores_with(settings: &Settings, wake: WakeFn) -> PostgresStores {
    let StoreUrl::Postgres(address) = &settings.url else {
        panic!("{:?} is no PostgreSQL", settings.url);
    };
    PostgresStores::new(settings, address, wake).unwrap()
}

/// A store at `url` that wakes nobody.
pub fn stores(url: &str) -> PostgresStores {
    stores_with(&settings(url), Arc::new(|_| {}))
}

/// The same with records sealed and compressed.
pub fn sealed(url: &str, vault: VaultSettings) -> PostgresStores {
    let settings = Settings {
        vault,
        ..settings(url)
    };
    stores_with(&settings, Arc::new(|_| {}))
}

/// A store on `server` with copies in `cache`.
pub fn tiered(server: &Postgres, cache: &Redis, ttl: Duration) -> TieredStores {
    let url = StoreUrl::Redis(cache.url());
    let tls = ClientSettings::plain(ClientKeys::CACHE);
    let settings = Settings {
        cache: Some(Cache { url, ttl, tls }),
        ..settings(&server.url())
    };
    let decides = stores_with(&settings, Arc::new(|_| {}));
    TieredStores::new(decides, settings.cache.as_ref().unwrap(), &settings).unwrap()
}
