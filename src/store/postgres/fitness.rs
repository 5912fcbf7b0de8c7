//! Whether a server is fit to be trusted with records.
//!
//! Invariant: what can forget an acknowledged record is named, with what is lost. A standby is out
//! of reach, not unfit: it may be the primary in a moment.
//!
//! Deliberately absent: reacting to it. `check` runs at start and every minute; the caller decides.

use tokio_postgres::Row;

use super::errors;
use super::statements::SCHEMA;
use crate::store::tier::PostgresFacts;
use crate::store::{OpenError, StoreError};

/// What the server says about itself, and about the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    version: i32,
    takes: Takes,
    /// `fsync` and `full_page_writes`.
    crash_safe: bool,
    synchronous_commit: String,
    synchronous_standbys: bool,
    statement_timeout: bool,
    log: Log,
    role: String,
    /// `None`: there is none.
    pub(super) table: Option<Table>,
}

/// Whether it takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Writes,
    /// A standby: what the primary sends.
    Replication,
    /// Reads, from this role.
    Reads,
}

/// Whether this role is told which log the server has, and how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    Told,
    Untold,
}

/// What is known of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    unlogged: bool,
    comment: Option<String>,
    writable: bool,
}

impl Server {
    /// The answer to `ASK`.
    pub(super) fn read(row: &Row) -> Result<Self, StoreError> {
        Self::columns(row).map_err(|_| errors::odd("what it is asked about itself"))
    }

    fn columns(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let persistence: Option<&str> = row.try_get(8)?;
        let table = match persistence {
            None => None,
            Some(persistence) => Some(Table {
                unlogged: persistence != "p",
                comment: row.try_get(9)?,
                writable: row.try_get(10)?,
            }),
        };
        Ok(Self {
            version: row.try_get(0)?,
            takes: match (row.try_get(1)?, row.try_get(2)?) {
                (true, _) => Takes::Replication,
                (false, true) => Takes::Reads,
                (false, false) => Takes::Writes,
            },
            crash_safe: row.try_get(3)? && row.try_get(4)?,
            synchronous_commit: row.try_get(5)?,
            synchronous_standbys: row.try_get(6)?,
            statement_timeout: row.try_get(7)?,
            role: row.try_get(11)?,
            log: if row.try_get(12)? {
                Log::Told
            } else {
                Log::Untold
            },
            table,
        })
    }

    /// Whether it takes writes at all; else nothing can be created either.
    pub(super) fn takes_writes(&self, shown: &str) -> Result<(), OpenError> {
        if self.version < 140_000 {
            let major = self.version / 10_000;
            return Err(OpenError::Unfit(format!(
                "PostgreSQL at {shown} is version {major}; 14 or later is needed"
            )));
        }
        match self.takes {
            Takes::Writes => Ok(()),
            Takes::Replication => Err(OpenError::Unreachable(format!(
                "PostgreSQL at {shown} is a standby, which takes no records: store.url must name \
                 the primary"
            ))),
            Takes::Reads => Err(OpenError::Unreachable(format!(
                "PostgreSQL at {shown} is read-only for this role (default_transaction_read_only)"
            ))),
        }
    }

    /// Warnings, or why this server must not be used. The table is there.
    pub(super) fn fit(&self, shown: &str) -> Result<Vec<String>, OpenError> {
        let Some(table) = &self.table else {
            return Err(OpenError::Unfit(super::schema::missing(shown)));
        };
        match table.comment.as_deref() {
            Some(comment) if comment.starts_with("retrysafe schema ") && comment != SCHEMA => {
                return Err(OpenError::Unfit(format!(
                    "the table retrysafe_records at {shown} is \"{comment}\", and this build knows \
                     \"{SCHEMA}\""
                )));
            }
            _ => {}
        }
        if !table.writable {
            return Err(OpenError::Unfit(format!(
                "the role {role} lacks rights on the table retrysafe_records at {shown}. Mend it \
                 with\n    GRANT SELECT, INSERT, UPDATE, DELETE ON retrysafe_records TO {role}",
                role = self.role
            )));
        }
        Ok(self.warnings(shown, table))
    }

    /// Whether this role may ask how far its log is, and which it is.
    pub(super) fn tells_of_its_log(&self) -> bool {
        self.log == Log::Told
    }

    /// What its commits wait for.
    pub(super) fn facts(&self) -> PostgresFacts {
        PostgresFacts {
            fsync: self.crash_safe && self.table.as_ref().is_none_or(|table| !table.unlogged),
            synchronous_commit: self.synchronous_commit.clone(),
            synchronous_standbys: self.synchronous_standbys,
        }
    }

    fn warnings(&self, shown: &str, table: &Table) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |text: &str| warnings.push(format!("PostgreSQL at {shown} {text}"));
        if !self.crash_safe {
            warn(
                "runs with fsync or full_page_writes off: a crash of its machine can lose or spoil \
                 every record, and a request whose record is gone RUNS TWICE",
            );
        }
        if matches!(self.synchronous_commit.as_str(), "off" | "local")
            && (self.synchronous_commit == "off" || self.synchronous_standbys)
        {
            let level = &self.synchronous_commit;
            let lost = match level.as_str() {
                "off" => "a crash loses what was acknowledged last",
                _ => "a failover loses what the standby had not received",
            };
            warn(&format!(
                "runs this role with synchronous_commit = {level}: {lost}, and a request whose \
                 record is gone RUNS TWICE. Mend it with ALTER ROLE {} SET synchronous_commit = on",
                self.role
            ));
        }
        if self.synchronous_standbys && self.statement_timeout {
            warn(
                "has synchronous standbys, and a statement_timeout for this role: a commit that \
                 waits too long for a standby is then acknowledged without it. Mend it with ALTER \
                 ROLE ... SET statement_timeout = 0",
            );
        }
        if self.log == Log::Untold {
            warn(&format!(
                "tells this role nothing of its log: whether it lost its memory shows in its table \
                 alone, and a standby that took over and was behind goes unnoticed. Mend it with \
                 GRANT EXECUTE ON FUNCTION pg_control_system(), pg_current_wal_lsn(), \
                 pg_current_wal_flush_lsn(), pg_walfile_name(pg_lsn), pg_postmaster_start_time() \
                 TO {}",
                self.role
            ));
        }
        if table.unlogged {
            warn(
                "keeps retrysafe_records as an unlogged table: a crash empties it, and a request \
                 whose record is gone RUNS TWICE. Mend it with ALTER TABLE retrysafe_records SET \
                 LOGGED",
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Server {
        Server {
            version: 150_018,
            takes: Takes::Writes,
            crash_safe: true,
            synchronous_commit: "on".into(),
            synchronous_standbys: false,
            statement_timeout: false,
            log: Log::Told,
            role: "sidecar".into(),
            table: Some(Table {
                unlogged: false,
                comment: Some(SCHEMA.into()),
                writable: true,
            }),
        }
    }

    fn table(change: fn(&mut Table)) -> Server {
        let mut server = good();
        server.table.iter_mut().for_each(change);
        server
    }

    #[test]
    fn what_can_lose_records_is_named() {
        assert_eq!(good().fit("here").unwrap(), Vec::<String>::new());
        let off = || "off".to_owned();
        for (server, word) in [
            (
                Server {
                    crash_safe: false,
                    ..good()
                },
                "fsync",
            ),
            (
                Server {
                    synchronous_commit: off(),
                    ..good()
                },
                "synchronous_commit = off",
            ),
            (table(|table| table.unlogged = true), "unlogged"),
        ] {
            let warnings = server.fit("here").unwrap();
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains(word) && warnings[0].contains("RUNS TWICE"));
        }
        let local = Server {
            synchronous_commit: "local".into(),
            ..good()
        };
        assert!(
            local.fit("here").unwrap().is_empty(),
            "no standby to wait for"
        );
        let waits = Server {
            synchronous_standbys: true,
            statement_timeout: true,
            ..local
        };
        assert_eq!(waits.fit("here").unwrap().len(), 2);
        let untold = Server {
            log: Log::Untold,
            ..good()
        };
        let warnings = untold.fit("here").unwrap();
        assert!(warnings[0].contains("GRANT EXECUTE"), "{warnings:?}");
    }

    #[test]
    fn what_cannot_hold_records_is_refused() {
        let old = Server {
            version: 130_012,
            ..good()
        };
        assert!(matches!(old.takes_writes("here"), Err(OpenError::Unfit(_))));
        for server in [
            Server {
                takes: Takes::Replication,
                ..good()
            },
            Server {
                takes: Takes::Reads,
                ..good()
            },
        ] {
            let refused = server.takes_writes("here");
            assert!(matches!(refused, Err(OpenError::Unreachable(_))));
        }
        assert!(good().takes_writes("here").is_ok());
        for (server, word) in [
            (
                Server {
                    table: None,
                    ..good()
                },
                "retrysafe store init",
            ),
            (table(|table| table.writable = false), "GRANT SELECT"),
            (
                table(|table| table.comment = Some("retrysafe schema 2".into())),
                "schema 2",
            ),
        ] {
            let Err(OpenError::Unfit(text)) = server.fit("here") else {
                panic!("{word} is refused");
            };
            assert!(text.contains(word), "{text}");
        }
        assert!(table(|table| table.comment = None).fit("here").is_ok());
    }
}
