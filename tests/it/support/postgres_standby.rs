//! A second PostgreSQL that has everything of the first.

use std::path::Path;

use super::postgres::{Postgres, command, folder, spawn};
use super::redis::next_addr;

impl Postgres {
    /// A standby of this server, which from now on waits for it at each commit.
    pub fn with_standby(&self) -> Self {
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
        self.sql_now("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql_now("SELECT pg_reload_conf()");
        super::eventually("each commit waits for the standby", || {
            let state = "SELECT sync_state FROM pg_stat_replication";
            self.sql_now(state) == ["sync"]
        });
        standby
    }

    /// The standby is the server now.
    pub fn promote(&self) {
        assert_eq!(self.sql_now("SELECT pg_promote()"), ["t"]);
    }
}
