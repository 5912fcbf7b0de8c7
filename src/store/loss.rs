//! A store that lost its memory while it is used: noticed, and what follows for this process.
//!
//! Owns the moment until which keys that are absent are not given out (`store.hold_off`): by then
//! whoever runs a request has renewed its lease, and so written its record again (law 3 of the
//! operations). Whoever is told of a loss renews at once.
//!
//! Deliberately absent: how a loss shows, which is each store's own (`redis/mark.rs`,
//! `postgres/mark.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{StoreError, StoreErrorKind};

/// What is known of losses, for all threads of a process.
#[derive(Debug)]
pub struct Loss {
    hold_off: Duration,
    noticed: watch::Sender<Noticed>,
    /// A server that starts anew has all it acknowledged.
    restart_keeps: AtomicBool,
    /// So has the one that takes its place.
    failover_keeps: AtomicBool,
}

/// What the look before found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// It is the first one.
    #[default]
    Nothing,
    /// No loss was told.
    Quiet,
    /// One was.
    Told,
}

impl Before {
    /// For the next look.
    pub fn then(told: Option<Duration>) -> Self {
        if told.is_some() {
            Self::Told
        } else {
            Self::Quiet
        }
    }
}

/// What a look at a store comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is what it was, as far as is known.
    Same,
    /// Somebody noticed a loss: before this process was there, or one that is known here already. So
    /// much is left of the hold-off.
    Learnt(Duration),
    /// Somebody did, and it is news.
    Heard(Duration),
    /// It is not what it was.
    Lost(&'static str),
}

/// What shows within so long is one loss: the nodes of a cluster go down together.
const TOGETHER: Duration = Duration::from_secs(1);

/// The losses so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noticed {
    /// How many.
    pub times: u64,
    /// How the last one showed.
    pub how: &'static str,
    until: Option<Instant>,
    found: Found,
    /// Since then it has taken no writes: nobody could record anything again.
    closed_since: Option<Instant>,
}

/// Those that this process found itself, and so tells others. What it was told it does not tell
/// again, or a hold-off would never end.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    times: u64,
    at: Option<Instant>,
    until: Option<Instant>,
}

impl Loss {
    /// With `store.hold_off`; zero: nobody looks.
    pub fn new(hold_off: Duration) -> Arc<Self> {
        Arc::new(Self {
            hold_off,
            noticed: watch::Sender::default(),
            restart_keeps: AtomicBool::new(false),
            failover_keeps: AtomicBool::new(false),
        })
    }

    /// Whether anybody wants to know.
    pub fn is_watched(&self) -> bool {
        !self.hold_off.is_zero()
    }

    /// The store was found to have lost records, or it may have.
    pub fn notice(&self, how: &'static str) {
        let now = Instant::now();
        let until = Some(now + self.hold_off);
        self.noticed.send_modify(|noticed| {
            let is_new = noticed.found.at.is_none_or(|at| now - at > TOGETHER);
            noticed.times += u64::from(is_new);
            noticed.how = how;
            noticed.until = until;
            noticed.found = Found {
                times: noticed.found.times + 1,
                at: Some(now),
                until,
            };
        });
    }

    /// Somebody else noticed it.
    pub fn learnt(&self, left: Duration) {
        self.hold_off_for(left, |_| {});
    }

    fn hold_off_for(&self, left: Duration, and: impl FnOnce(&mut Noticed)) {
        let until = Instant::now() + left.min(self.hold_off);
        self.noticed.send_modify(|noticed| {
            noticed.until = noticed.until.max(Some(until));
            and(noticed);
        });
    }

    /// How long absent keys are still not given out.
    pub fn left(&self) -> Option<Duration> {
        let noticed = *self.noticed.borrow();
        noticed.left(noticed.until)
    }

    /// How many losses this process found, and what is left of the hold-off after the last one.
    pub fn found(&self) -> Option<(u64, Duration)> {
        let noticed = *self.noticed.borrow();
        Some((noticed.found.times, noticed.left(noticed.found.until)?))
    }

    /// Each second: whether the store takes writes. The hold-off is for who has something to record
    /// again; while nobody can, it stands still.
    pub fn takes_writes(&self, takes: bool) {
        let now = Instant::now();
        self.noticed.send_if_modified(|noticed| {
            match (takes, noticed.closed_since) {
                (false, None) if noticed.left(noticed.until).is_some() => {
                    noticed.closed_since = Some(now);
                    false
                }
                (true, Some(since)) => {
                    let closed = now - since;
                    noticed.closed_since = None;
                    for until in [&mut noticed.until, &mut noticed.found.until] {
                        *until = until.map(|until| until + closed);
                    }
                    // Others are told how long it is now.
                    noticed.found.times += 1;
                    true
                }
                _ => false,
            }
        });
    }

    /// To be told of each.
    pub fn subscribe(&self) -> watch::Receiver<Noticed> {
        self.noticed.subscribe()
    }

    /// Whether a server that starts anew still has everything it acknowledged.
    pub fn restart_keeps(&self) -> bool {
        self.restart_keeps.load(Ordering::Acquire)
    }

    /// Whether the server that takes the place of another has everything which that acknowledged.
    pub fn failover_keeps(&self) -> bool {
        self.failover_keeps.load(Ordering::Acquire)
    }

    /// What the live server says about that.
    pub fn set_keeps(&self, restart: bool, failover: bool) {
        self.restart_keeps.store(restart, Ordering::Release);
        self.failover_keeps.store(failover, Ordering::Release);
    }

    /// What a look found. `how`: what is not as it was; `told`: somebody noticed a loss, so long ago
    /// that this remains of the hold-off.
    pub fn judge(
        &self,
        before: Before,
        how: Option<&'static str>,
        told: Option<Duration>,
    ) -> Verdict {
        match (how, told) {
            // What was told may be of an earlier one.
            (Some(how), _) => Verdict::Lost(how),
            (None, Some(left)) if before == Before::Quiet && self.left().is_none() => {
                Verdict::Heard(left)
            }
            (None, Some(left)) if before != Before::Told => Verdict::Learnt(left),
            (None, _) => Verdict::Same,
        }
    }

    /// Takes it in.
    pub fn take(&self, verdict: &Verdict) {
        match verdict {
            Verdict::Same => {}
            Verdict::Learnt(left) => self.learnt(*left),
            Verdict::Heard(left) => self.hold_off_for(*left, |noticed| {
                noticed.times += 1;
                noticed.how = "another process noticed it";
            }),
            Verdict::Lost(how) => self.notice(how),
        }
    }
}

impl Noticed {
    fn left(&self, until: Option<Instant>) -> Option<Duration> {
        let now = self.closed_since.unwrap_or_else(Instant::now);
        let left = until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// What a claim of an absent key is told meanwhile.
pub(super) fn held_off() -> StoreError {
    let message =
        "the store lost its memory: nothing new is claimed until whoever runs has said so";
    StoreError::not_sent(StoreErrorKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_a_hold_off_after_the_last_loss() {
        let second = Duration::from_secs(1);
        let loss = Loss::new(second * 20);
        assert_eq!(loss.left(), None);
        loss.notice("first");
        // Its other half, as it were.
        loss.notice("first");
        tokio::time::advance(second * 15).await;
        assert_eq!(loss.left(), Some(second * 5));
        loss.notice("second");
        tokio::time::advance(second * 19).await;
        // An older loss that is heard of late shortens nothing.
        loss.learnt(Duration::from_millis(1));
        assert_eq!(loss.left(), Some(second));
        tokio::time::advance(second).await;
        assert_eq!(loss.left(), None);
        let noticed = *loss.subscribe().borrow();
        assert_eq!((noticed.times, noticed.how), (2, "second"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_later_waits_for_what_is_left() {
        let loss = Loss::new(Duration::from_secs(20));
        loss.learnt(Duration::from_secs(7));
        assert_eq!(loss.left(), Some(Duration::from_secs(7)));
        assert_eq!(loss.found(), None, "it is not told again");
        assert_eq!(loss.subscribe().borrow().times, 0, "not its own finding");
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_say_is_news_once_and_no_end_of_it_is_put_off() {
        let second = Duration::from_secs(1);
        let loss = Loss::new(second * 20);
        let told = Some(second * 15);
        let judge = |before, how| loss.judge(before, how, told);
        assert_eq!(judge(Before::Nothing, None), Verdict::Learnt(second * 15));
        assert_eq!(judge(Before::Quiet, None), Verdict::Heard(second * 15));
        assert_eq!(judge(Before::Told, None), Verdict::Same);
        loss.take(&judge(Before::Quiet, None));
        assert_eq!(loss.left(), told);
        assert_eq!((loss.subscribe().borrow().times, loss.found()), (1, None));
        // Another node of a cluster tells the same.
        assert_eq!(judge(Before::Quiet, None), Verdict::Learnt(second * 15));
        // What this process sees for itself counts, whatever was told.
        assert_eq!(judge(Before::Told, Some("gone")), Verdict::Lost("gone"));
        loss.take(&Verdict::Lost("gone"));
        assert_eq!(loss.left(), Some(second * 20));
        assert_eq!(loss.found(), Some((1, second * 20)));
    }

    #[tokio::test(start_paused = true)]
    async fn while_nothing_can_be_written_a_hold_off_stands_still() {
        let second = Duration::from_secs(1);
        let loss = Loss::new(second * 20);
        loss.takes_writes(false);
        assert_eq!(loss.left(), None, "there is none");
        loss.notice("gone");
        tokio::time::advance(second * 5).await;
        loss.takes_writes(false);
        tokio::time::advance(second * 60).await;
        loss.takes_writes(false);
        assert_eq!(loss.left(), Some(second * 15));
        let told = loss.found();
        loss.takes_writes(true);
        assert_eq!(loss.left(), Some(second * 15));
        assert_ne!(loss.found(), told, "it is told anew");
        tokio::time::advance(second * 15).await;
        assert_eq!(loss.left(), None);
        assert_eq!(loss.subscribe().borrow().times, 1);
    }
}
