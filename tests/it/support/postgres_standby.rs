//! A second PostgreSQL that has everything of the first, or had it once: standbys and backups.

use std::path::Path;

use tempfile::TempDir;

use super::postgres::{Postgres, command, folder, spawn};
use super::redis::next_addr;

fn copy(from: &Path, into: &Path) {
    let copied = command(Path::new("cp"))
        .arg("-a")
        .args([from, into])
        .status();
    assert!(copied.unwrap().success());
}

impl Postgres {
    /// A standby of this server, which from now on waits for it at each commit.
    pub fn with_standby(&self) -> Self {
        let standby = self.with_slow_standby();
        self.sql_now("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql_now("SELECT pg_reload_conf()");
        super::eventually("each commit waits for the standby", || {
            let state = "SELECT sync_state FROM pg_stat_replication";
            self.sql_now(state) == ["sync"]
        });
        standby
    }

    /// A standby that no commit waits for.
    pub fn with_slow_standby(&self) -> Self {
        let own = folder();
        // Over the socket: there anybody may replicate.
        let beside = self.origin.programs().join("pg_basebackup");
        let in_the_path = Path::new("pg_basebackup");
        let copied = command(if beside.exists() {
            &beside
        } else {
            in_the_path
        })
        .args(["-U", "app", "-h"])
        .arg(self.folder.path())
        .args(["-p", &self.addr.port().to_string()])
        .args(["--checkpoint=fast", "--no-sync", "-R", "-D"])
        .arg(own.path().join("data"))
        .output()
        .unwrap();
        let errors = String::from_utf8_lossy(&copied.stderr).into_owned();
        assert!(copied.status.success(), "{errors}");
        let addr = next_addr();
        let process = spawn(&self.origin, own.path(), addr, &self.settings);
        let mut standby = Self {
            origin: self.origin.clone(),
            folder: own,
            addr,
            settings: self.settings.clone(),
            process,
        };
        assert!(standby.came_up(), "{}", standby.log());
        standby
    }

    /// A copy of its folder, as a backup is; it must not run.
    pub fn back_up(&self) -> TempDir {
        let kept = folder();
        copy(&self.data(), kept.path());
        kept
    }

    /// Puts such a copy in its folder's place.
    pub fn restore(&self, kept: &TempDir) {
        std::fs::remove_dir_all(self.data()).unwrap();
        copy(&kept.path().join("data"), self.folder.path());
    }

    /// The standby is the server now.
    pub fn promote(&self) {
        assert_eq!(self.sql_now("SELECT pg_promote()"), ["t"]);
    }
}
