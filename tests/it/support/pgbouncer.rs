//! A real PgBouncer before a PostgreSQL, gone when it is dropped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use tempfile::TempDir;

use super::eventually;
use super::postgres::{Postgres, command, folder};
use super::redis::{next_addr, skipped};

/// A pooler that gives each transaction whichever session is free.
#[derive(Debug)]
pub struct Pooler {
    process: Child,
    _folder: TempDir,
    addr: SocketAddr,
}

impl Pooler {
    /// `None` where it is not installed.
    pub fn start(server: &Postgres) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Where Debian keeps it, not everybody's path looks.
        let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        let mut places = folders.map(|folder| folder.join("pgbouncer"));
        let Some(binary) = places.find(|place| place.exists()) else {
            skipped("PgBouncer is not installed (apt-get install pgbouncer)");
            return None;
        };
        let folder = folder();
        let addr = next_addr();
        let place = folder.path().display();
        let (host, port) = (server.addr().ip(), server.addr().port());
        let config = format!(
            "[databases]\n* = host={host} port={port}\n[pgbouncer]\nlisten_addr = {}\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = trust\nauth_file = {place}/users\n\
             pool_mode = transaction\ndefault_pool_size = 4\n",
            addr.ip(),
            addr.port()
        );
        std::fs::write(folder.path().join("pgbouncer.ini"), config).unwrap();
        std::fs::write(folder.path().join("users"), "\"app\" \"\"\n").unwrap();
        let process = command(&binary)
            .arg("-q")
            .arg(folder.path().join("pgbouncer.ini"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("PgBouncer listens", || {
            std::net::TcpStream::connect(addr).is_ok()
        });
        Some(Self {
            process,
            _folder: folder,
            addr,
        })
    }

    pub fn url(&self) -> String {
        format!("postgres://app@{}/postgres", self.addr)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
