//! Whether this is still the PostgreSQL that it was, with everything that was recorded in it.
//!
//! Owns two rows of the table under keys that no record has: `mark`, a random owner and a number
//! that grows, which are gone or smaller in a table that was restored, and `lost`, which ends with
//! the hold-off, for processes that start meanwhile. The server itself tells of an older copy of its
//! folder (its log ends earlier), of a start and of a standby that took over; what was acknowledged
//! last may then be missing, unless commits wait for the disk or for that standby.
//!
//! It is looked at when a session begins and each second. Invariant: no claim is sent over a session
//! over which nobody has looked (one that was begun with a standby sees no promotion); and a look
//! writes nothing, since it must succeed where a commit would wait. Looks go side by side: where one
//! shows a loss and another was judged meanwhile, nobody can tell which is older, and it looks again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::errors;
use super::pool::{Lent, Trouble};
use super::session::Argument;
use super::statements::{LOOK, LOOK_AT_ROWS, MARK, MARK_ON, TELL};
use crate::store::loss::{Before, Loss, Verdict};
use crate::store::{StoreError, vault};

/// Times a look is begun anew where others are judged meanwhile.
const ROUNDS: usize = 5;
/// Milliseconds far below where the server's sums overflow.
const LONGEST: i64 = 1 << 53;

/// What one process knows of its PostgreSQL.
#[derive(Debug)]
pub(super) struct Mark {
    loss: Arc<Loss>,
    known: Mutex<Known>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Known {
    /// How many looks were judged.
    looks: u64,
    mark: Option<Written>,
    server: Option<Server>,
    before: Before,
    /// How many of the losses that this process found were told.
    told: u64,
    /// The server tells this role nothing of its log.
    is_silent: bool,
}

/// The row of the mark.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    owner: Vec<u8>,
    number: i64,
}

/// What the server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    /// Its folder's own number.
    system: i64,
    /// Another one after each promotion.
    timeline: String,
    /// Octets of its log that are on the disk, ever.
    flushed: i64,
    started: i64,
}

/// Whether there was anything to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    Yes {
        takes_writes: bool,
    },
    /// A standby takes no claims. Not yet.
    Standby,
    /// Without table or rights there are no claims either, and the check says so.
    Nothing,
}

/// The same with what there was.
enum Answer {
    Of(Found),
    Standby,
    Nothing,
}

/// What a look found.
struct Found {
    mark: Option<Written>,
    server: Option<Server>,
    /// What is left of a hold-off that somebody began.
    hold_off: Option<Duration>,
    takes_writes: bool,
}

impl Mark {
    /// `None`: nobody wants to know.
    pub(super) fn new(loss: &Arc<Loss>) -> Option<Arc<Self>> {
        loss.is_watched().then(|| {
            Arc::new(Self {
                loss: Arc::clone(loss),
                known: Mutex::default(),
            })
        })
    }

    /// Looks, and takes in what it comes to.
    pub(super) async fn look(&self, lent: &mut Lent) -> Result<Looked, StoreError> {
        for again in (0..ROUNDS).rev() {
            let (looks, is_silent) = {
                let known = self.known();
                (known.looks, known.is_silent)
            };
            let (found, is_silent) = find(lent, is_silent).await?;
            let found = match found {
                Answer::Of(found) => found,
                Answer::Standby => return Ok(Looked::Standby),
                Answer::Nothing => return Ok(Looked::Nothing),
            };
            let takes_writes = found.takes_writes;
            let verdict = {
                let mut known = self.known();
                known.is_silent = is_silent;
                let is_alone = known.looks == looks || again == 0;
                judge(&self.loss, &mut known, found, is_alone)
            };
            if let Some(verdict) = verdict {
                // Nobody is told here: each process sees the same for itself.
                self.loss.take(&verdict);
                lent.has_looked = true;
                return Ok(Looked::Yes { takes_writes });
            }
        }
        // The last round is judged in any case.
        Ok(Looked::Nothing)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server is asked about itself: what it tells may change while we run.
    pub(super) fn may_ask(&self, tells: bool) {
        self.known().is_silent = !tells;
    }

    /// Behind a look: writes what is not there yet, the mark, or for processes that start meanwhile
    /// that there was a loss.
    pub(super) async fn keep(&self, lent: &mut Lent) -> Result<(), StoreError> {
        let known = self.known().clone();
        if known.mark.is_none() {
            // Somebody else may be first; the next look finds whose it is.
            let owner = vault::random::<16>()?;
            write(lent, MARK, &[(&owner.as_slice(), Type::BYTEA)]).await;
        }
        if let Some((times, left)) = self.loss.found()
            && known.told < times
        {
            let millis = i64::try_from(left.as_millis()).unwrap_or(LONGEST);
            if write(lent, TELL, &[(&millis.min(LONGEST), Type::INT8)]).await {
                self.known().told = times;
            }
        }
        Ok(())
    }

    /// Now and then: what is restored from before this is known by its smaller number.
    pub(super) async fn go_on(&self, lent: &mut Lent) {
        write(lent, MARK_ON, &[]).await;
    }
}

/// Asks, and answers too whether the server tells nothing of its log.
async fn find(lent: &mut Lent, is_silent: bool) -> Result<(Answer, bool), StoreError> {
    if !is_silent {
        match lent.query(LOOK, &[]).await {
            Ok(rows) => return Ok((read(&rows)?, false)),
            // It is asked once: each refusal is a line in its log.
            Err(Trouble::Answered(error)) if errors::is_not_told(&error) => {}
            Err(trouble) if cannot_matter(&trouble) => return Ok((Answer::Nothing, false)),
            Err(trouble) => return Err(trouble.into()),
        }
    }
    match lent.query(LOOK_AT_ROWS, &[]).await {
        Err(trouble) if cannot_matter(&trouble) => Ok((Answer::Nothing, true)),
        rows => Ok((read(&rows?)?, true)),
    }
}

fn read(rows: &[Row]) -> Result<Answer, StoreError> {
    let row = rows.first().ok_or_else(|| errors::odd("a look"))?;
    let found = Found::read(row).map_err(|_| errors::odd("a look"))?;
    Ok(found.map_or(Answer::Standby, Answer::Of))
}

/// There is no table, or this role must not read it.
fn cannot_matter(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Answered(error) => errors::is_missing_table(error) || errors::is_forbidden(error),
        Trouble::Ended => false,
    }
}

/// Whether it was carried out. A server that takes no writes now is marked at another time.
async fn write(lent: &mut Lent, statement: &str, arguments: &[Argument<'_>]) -> bool {
    match lent.execute(statement, arguments).await {
        Ok(_) => true,
        Err(trouble) => {
            tracing::debug!("the mark was not written: {}", StoreError::from(trouble));
            false
        }
    }
}

/// `is_alone`: no look was judged since this one began. `None`: it must look again.
fn judge(loss: &Loss, known: &mut Known, found: Found, is_alone: bool) -> Option<Verdict> {
    let how = changed_mark(known.mark.as_ref(), found.mark.as_ref()).or_else(|| {
        let (before, now) = (known.server.as_ref()?, found.server.as_ref()?);
        changed_server(before, now, loss)
    });
    if how.is_some() && !is_alone {
        return None;
    }
    let verdict = loss.judge(known.before, how, found.hold_off);
    *known = Known {
        looks: known.looks + 1,
        mark: found.mark,
        server: found.server.or_else(|| known.server.take()),
        before: Before::then(found.hold_off),
        told: known.told,
        is_silent: known.is_silent,
    };
    Some(verdict)
}

fn changed_mark(before: Option<&Written>, now: Option<&Written>) -> Option<&'static str> {
    let before = before?;
    match now {
        Some(now) if now.owner == before.owner && now.number >= before.number => None,
        Some(now) if now.owner == before.owner => Some("it is as it was at an earlier time"),
        _ => Some("its mark is gone or another one"),
    }
}

fn changed_server(before: &Server, now: &Server, loss: &Loss) -> Option<&'static str> {
    if now.system != before.system {
        return Some("another server answers");
    }
    if now.timeline != before.timeline {
        let how = "a standby took over, or it was restored";
        return (!loss.failover_keeps()).then_some(how);
    }
    if now.flushed < before.flushed {
        return Some("it is as it was at an earlier time");
    }
    let started_anew = now.started != before.started && !loss.restart_keeps();
    started_anew.then_some("it was started anew")
}

impl Found {
    /// `None`: of a standby.
    fn read(row: &Row) -> Result<Option<Self>, tokio_postgres::Error> {
        if row.try_get(0)? {
            return Ok(None);
        }
        let mark = match (row.try_get(1)?, row.try_get(2)?) {
            (Some(owner), Some(number)) => Some(Written { owner, number }),
            _ => None,
        };
        let left: Option<i64> = row.try_get(3)?;
        let left = left.and_then(|left| u64::try_from(left).ok());
        let server = match (row.try_get(5)?, row.try_get(6)?) {
            (Some(system), Some(timeline)) => Some(Server {
                system,
                timeline,
                flushed: row.try_get(7)?,
                started: row.try_get(8)?,
            }),
            _ => None,
        };
        Ok(Some(Self {
            mark,
            server,
            hold_off: left.map(Duration::from_millis),
            takes_writes: !row.try_get::<_, bool>(4)?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn server(system: i64, timeline: &str, flushed: i64, started: i64) -> Server {
        Server {
            system,
            timeline: timeline.to_owned(),
            flushed,
            started,
        }
    }

    fn mark(owner: u8, number: i64) -> Written {
        let owner = vec![owner; 16];
        Written { owner, number }
    }

    fn found(mark: impl Into<Option<Written>>, server: impl Into<Option<Server>>) -> Found {
        Found {
            mark: mark.into(),
            server: server.into(),
            hold_off: None,
            takes_writes: true,
        }
    }

    /// How a second look is judged after a first one; `keeps`: restart, failover.
    fn second(first: Found, second: Found, keeps: (bool, bool)) -> Verdict {
        let loss = Loss::new(SECOND * 20);
        loss.set_keeps(keeps.0, keeps.1);
        let mut known = Known::default();
        let judged = judge(&loss, &mut known, first, true);
        assert_eq!(judged, Some(Verdict::Same));
        judge(&loss, &mut known, second, true).unwrap()
    }

    fn is_lost(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Lost(_))
    }

    #[test]
    fn a_server_that_goes_on_is_the_same() {
        let first = || found(mark(1, 5), server(1, "1", 100, 7));
        for now in [
            first(),
            found(mark(1, 6), server(1, "1", 200, 7)),
            // It cannot be asked about itself for once.
            found(mark(1, 5), None),
        ] {
            assert_eq!(second(first(), now, (false, false)), Verdict::Same);
        }
        let unmarked = found(None, server(1, "1", 100, 7));
        assert_eq!(second(unmarked, first(), (false, false)), Verdict::Same);
    }

    #[test]
    fn what_was_restored_is_known_by_its_mark_or_by_its_log() {
        let first = || found(mark(1, 5), server(1, "1", 100, 7));
        for now in [
            found(None, server(1, "1", 200, 7)),
            found(mark(2, 9), server(1, "1", 200, 7)),
            found(mark(1, 4), server(1, "1", 200, 7)),
            found(mark(1, 5), server(1, "1", 99, 8)),
            found(mark(1, 5), server(2, "1", 200, 8)),
            found(mark(1, 4), None),
        ] {
            assert!(is_lost(&second(first(), now, (true, true))));
        }
    }

    #[test]
    fn a_start_or_a_failover_is_a_loss_where_commits_did_not_wait() {
        let first = || found(mark(1, 5), server(1, "1", 100, 7));
        let started = || found(mark(1, 5), server(1, "1", 100, 8));
        assert!(is_lost(&second(first(), started(), (false, false))));
        assert_eq!(second(first(), started(), (true, false)), Verdict::Same);
        // Its log may end earlier: what was not acknowledged is not on the standby.
        let promoted = || found(mark(1, 5), server(1, "2", 90, 8));
        assert!(is_lost(&second(first(), promoted(), (true, false))));
        assert_eq!(second(first(), promoted(), (true, true)), Verdict::Same);
    }

    #[test]
    fn a_look_that_may_be_older_than_what_is_known_tells_of_no_loss() {
        let loss = Loss::new(SECOND * 20);
        let mut known = Known::default();
        let look = |number| found(mark(1, number), server(1, "1", 100, 7));
        judge(&loss, &mut known, look(5), true);
        let before = known.clone();
        assert_eq!(judge(&loss, &mut known, look(4), false), None);
        assert_eq!(known, before);
        // What is not older than that is as good as any.
        let judged = judge(&loss, &mut known, look(6), false);
        assert_eq!(judged, Some(Verdict::Same));
        assert_eq!(known.mark, Some(mark(1, 6)));
    }
}
