//! Whether this is still the Redis that it was, with everything that was recorded in it.
//!
//! Owns two keys of the namespace: `{namespace}:mark`, a random text without an end that is gone or
//! another one where the data is, and `{namespace}:lost`, which lives as long as the hold-off, for
//! processes that start meanwhile. A server with another `run_id` is one that was started anew, or
//! the replica that took over: what was acknowledged last may be missing, unless the disk had it, or
//! that replica confirmed it. A replica's data was called before as the master's was, and it was there
//! while the master was; of one that was started anew only the first is true.
//!
//! It is looked at when a connection is made and each second. Invariant: whoever sends a claim over
//! a new connection has looked before.
//!
//! The nodes of a cluster lose their memory one by one, so each has a mark of its own, under names
//! that lie in a slot which it keeps (`cluster/marks.rs`).

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::address::Place;
use super::cluster::Cluster;
use super::errors;
use super::info::Info;
use crate::store::StoreError;
use crate::store::loss::{Before, Loss, Verdict};
use crate::store::vault;

/// A server counts its uptime from one whole second to another.
const WHOLE: Duration = Duration::from_secs(1);

/// What is looked at when a connection stands.
#[derive(Debug)]
pub(super) enum Watch {
    /// Nothing.
    Nobody,
    Store(Arc<Mark>),
    /// This node of a cluster.
    Node(Arc<Cluster>, Place),
}

/// What a look over a connection comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was looked at, and takes writes.
    Open,
    /// It was looked at, and refuses them.
    Closed,
    /// It is a replica, of which nothing can be said. No claim may go over this connection yet.
    Nothing,
}

impl Watch {
    pub(super) async fn look(
        &self,
        connection: &MultiplexedConnection,
        server: &Info,
    ) -> Result<Seen, StoreError> {
        match self {
            Self::Nobody => Ok(Seen::Open),
            Self::Store(mark) => Ok(match mark.look(connection, Some(server)).await? {
                Looked::Here(seen) => seen,
                Looked::Elsewhere => Seen::Nothing,
            }),
            Self::Node(cluster, place) => {
                let run_id = server.run_id.as_deref();
                cluster.look(place, connection, run_id).await
            }
        }
    }
}

/// What one process knows of its Redis, or of one node.
#[derive(Debug)]
pub(super) struct Mark {
    /// The names of the two keys.
    own: String,
    lost: String,
    loss: Arc<Loss>,
    known: Mutex<Known>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Known {
    /// The last time it was there.
    seen_at: Option<Instant>,
    run_id: Option<String>,
    data: Option<String>,
    mark: Option<Vec<u8>>,
    before: Before,
    /// How many of the losses that this process found were told here.
    told: u64,
}

/// Whether the mark could be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    Here(Seen),
    /// Another node keeps its slot by now.
    Elsewhere,
}

/// What a look at the server found.
struct Found {
    asked_at: Instant,
    run_id: Option<String>,
    uptime: Option<Duration>,
    data: Option<String>,
    data_before: Option<String>,
    mark: Option<Vec<u8>>,
    /// Somebody noticed a loss, so long ago that this remains of the hold-off.
    hold_off: Option<Duration>,
}

impl Mark {
    /// `None`: nobody wants to know. `suffix`: what the names end with.
    pub(super) fn new(namespace: &str, suffix: &str, loss: Arc<Loss>) -> Option<Arc<Self>> {
        loss.is_watched().then(|| {
            Arc::new(Self {
                own: format!("{namespace}:mark{suffix}"),
                lost: format!("{namespace}:lost{suffix}"),
                loss,
                known: Mutex::default(),
            })
        })
    }

    /// Looks, and says what it comes to. `server`: what it said when it was connected to; `None`:
    /// which one it is does not matter.
    pub(super) async fn look(
        &self,
        connection: &MultiplexedConnection,
        server: Option<&Info>,
    ) -> Result<Looked, StoreError> {
        let asked_at = Instant::now();
        let mut ask = redis::pipe();
        // Refused by a full or read-only server; then what is there counts.
        ask.cmd("SET").arg(&self.own).arg(random()?).arg("NX");
        ask.cmd("GET").arg(&self.own);
        ask.cmd("PTTL").arg(&self.lost);
        ask.cmd("INFO").arg("replication");
        let mut connection = connection.clone();
        let said = connection.send_packed_commands(&ask, 0, ask.len()).await;
        let said = said.map_err(|error| errors::lost(&error))?;
        let [set, mark, left, info] =
            <[Value; 4]>::try_from(said).map_err(|_| errors::odd("a look at the mark"))?;
        let info = Info::read(&info);
        if server.is_some() && info.is_replica {
            return Ok(Looked::Here(Seen::Nothing));
        }
        let mark = match mark {
            Value::BulkString(octets) => Some(octets),
            Value::Nil => None,
            // Without the right to read it nothing can be noticed.
            Value::ServerError(error) if errors::code(&error) == "NOPERM" => {
                return Ok(Looked::Here(Seen::Open));
            }
            Value::ServerError(error) if matches!(errors::code(&error), "MOVED" | "ASK") => {
                return Ok(Looked::Elsewhere);
            }
            Value::ServerError(error) => return Err(errors::answered(&error)),
            _ => return Err(errors::odd("a look at the mark")),
        };
        let hold_off = match left {
            Value::Int(left) => u64::try_from(left).ok().map(Duration::from_millis),
            _ => None,
        };
        let verdict = self.judge(Found {
            asked_at,
            run_id: server.and_then(|server| server.run_id.clone()),
            uptime: server.and_then(|server| server.uptime),
            data: info.data,
            data_before: info.data_before,
            mark,
            hold_off,
        });
        self.loss.take(&verdict);
        self.tell(&mut connection, hold_off).await?;
        Ok(Looked::Here(match set {
            Value::ServerError(_) => Seen::Closed,
            _ => Seen::Open,
        }))
    }

    /// Tells processes that start meanwhile of what this one found, here or at another node: they may
    /// ask this server alone. Processes that are there see it for themselves.
    async fn tell(
        &self,
        connection: &mut MultiplexedConnection,
        is_told: Option<Duration>,
    ) -> Result<(), StoreError> {
        let Some((times, left)) = self.loss.found() else {
            return Ok(());
        };
        if self.known().told == times {
            return Ok(());
        }
        if is_told.is_none_or(|told| told < left) {
            let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
            let mut set = redis::cmd("SET");
            set.arg(&self.lost).arg(1).arg("PX").arg(millis);
            let said = connection.send_packed_command(&set).await;
            if said.map_err(|error| errors::lost(&error))? != Value::Okay {
                return Ok(());
            }
        }
        self.known().told = times;
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, found: Found) -> Verdict {
        let mut known = self.known();
        let before = known.clone();
        *known = Known {
            seen_at: Some(found.asked_at),
            run_id: found.run_id.or_else(|| before.run_id.clone()),
            data: found.data.or_else(|| before.data.clone()),
            mark: found.mark,
            before: Before::then(found.hold_off),
            told: before.told,
        };
        let is_another = before.run_id.is_some() && known.run_id != before.run_id;
        let ago = before.seen_at.map(|at| found.asked_at - at);
        let was_there = ago
            .zip(found.uptime)
            .is_some_and(|(ago, up)| up > ago + WHOLE);
        let has_its_data = found.data_before.is_some() && found.data_before == before.data;
        let took_over = was_there && has_its_data;
        let how = if before.mark.is_some() && known.mark != before.mark {
            Some("its mark is gone or another one")
        } else if is_another && took_over {
            (!self.loss.failover_keeps()).then_some("a replica took over")
        } else if is_another {
            (!self.loss.restart_keeps()).then_some("it was started anew, or another one answers")
        } else {
            None
        };
        self.loss.judge(before.before, how, found.hold_off)
    }
}

fn random() -> Result<String, StoreError> {
    let octets = vault::random::<16>()?;
    Ok(octets.iter().fold(String::new(), |mut text, octet| {
        // Writing to a string does not fail.
        let _ok = write!(text, "{octet:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn mark() -> Arc<Mark> {
        Mark::new("test", "", Loss::new(SECOND * 20)).unwrap()
    }

    fn found(run_id: &str, mark: Option<&str>, hold_off: Option<Duration>) -> Found {
        Found {
            asked_at: Instant::now(),
            run_id: Some(run_id.to_owned()),
            uptime: Some(SECOND * 60),
            data: Some(format!("data of {run_id}")),
            data_before: None,
            mark: mark.map(|text| text.as_bytes().to_vec()),
            hold_off,
        }
    }

    #[test]
    fn a_server_that_stays_is_the_same() {
        let mark = mark();
        for _ in 0..3 {
            assert_eq!(mark.judge(found("r1", Some("m1"), None)), Verdict::Same);
        }
    }

    #[test]
    fn without_its_mark_it_lost_everything() {
        let mark = mark();
        mark.judge(found("r1", Some("m1"), None));
        let lost = mark.judge(found("r1", Some("m2"), None));
        assert!(matches!(lost, Verdict::Lost(_)));
        let again = mark.judge(found("r1", Some("m2"), Some(SECOND)));
        assert_eq!(again, Verdict::Heard(SECOND));
        mark.loss.take(&lost);
        // Within the hold-off it loses its memory once more.
        let again = mark.judge(found("r1", Some("m3"), None));
        assert!(matches!(again, Verdict::Lost(_)));
    }

    #[test]
    fn one_that_starts_anew_may_lack_the_last_records_unless_the_disk_has_them() {
        let mark = mark();
        mark.judge(found("r1", Some("m1"), None));
        mark.loss.set_keeps(false, true);
        let lost = mark.judge(found("r2", Some("m1"), None));
        assert!(matches!(lost, Verdict::Lost(_)));
        mark.loss.set_keeps(true, false);
        assert_eq!(mark.judge(found("r3", Some("m1"), None)), Verdict::Same);
        let empty = mark.judge(found("r4", None, None));
        assert!(matches!(empty, Verdict::Lost(_)));
    }

    #[test]
    fn a_replica_that_takes_over_may_lack_them_unless_it_confirmed_them() {
        let promoted = |run_id, of: &str| Found {
            data_before: Some(format!("data of {of}")),
            ..found(run_id, Some("m1"), None)
        };
        let mark = mark();
        mark.judge(found("r1", Some("m1"), None));
        mark.loss.set_keeps(true, false);
        let lost = mark.judge(promoted("r2", "r1"));
        assert!(matches!(lost, Verdict::Lost(_)));
        mark.loss.set_keeps(false, true);
        assert_eq!(mark.judge(promoted("r3", "r2")), Verdict::Same);
        // The same one, started anew after it was there.
        let anew = Found {
            uptime: Some(Duration::ZERO),
            ..promoted("r4", "r3")
        };
        assert!(matches!(mark.judge(anew), Verdict::Lost(_)));
        // Somebody else's replica.
        let lost = mark.judge(promoted("r5", "r1"));
        assert!(matches!(lost, Verdict::Lost(_)));
    }

    #[test]
    fn who_starts_meanwhile_learns_it() {
        let late = mark();
        let learnt = late.judge(found("r1", Some("m1"), Some(SECOND)));
        assert_eq!(learnt, Verdict::Learnt(SECOND));
        // Another node's loss, which does not show here.
        let other = mark();
        other.judge(found("r1", Some("m1"), None));
        let heard = other.judge(found("r1", Some("m1"), Some(SECOND)));
        assert_eq!(heard, Verdict::Heard(SECOND));
        let again = other.judge(found("r1", Some("m1"), Some(SECOND)));
        assert_eq!(again, Verdict::Same, "it is taken in once");
    }
}
