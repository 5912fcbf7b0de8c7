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

/// What a look at a store comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is what it was.
    Same,
    /// Somebody else's finding, new to this process, and what is left of its hold-off.
    Learnt(Duration),
    /// It is not what it was. Nobody has said so yet: the others are to be told.
    Lost(&'static str),
    /// Somebody has.
    LostAndTold(&'static str),
}

/// The losses so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noticed {
    /// How many.
    pub times: u64,
    /// How the last one showed.
    pub how: &'static str,
    until: Option<Instant>,
    /// The same of those that this process found itself.
    found_until: Option<Instant>,
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

    /// `store.hold_off`
    pub fn hold_off(&self) -> Duration {
        self.hold_off
    }

    /// Whether anybody wants to know.
    pub fn is_watched(&self) -> bool {
        !self.hold_off.is_zero()
    }

    /// The store was found to have lost records, or it may have.
    pub fn notice(&self, how: &'static str) {
        let until = Instant::now() + self.hold_off;
        self.noticed.send_modify(|noticed| {
            noticed.times += 1;
            noticed.how = how;
            noticed.until = Some(until);
            noticed.found_until = Some(until);
        });
    }

    /// Somebody else noticed it before this process was there.
    pub fn learnt(&self, left: Duration) {
        let until = Instant::now() + left.min(self.hold_off);
        self.noticed
            .send_modify(|noticed| noticed.until = noticed.until.max(Some(until)));
    }

    /// How long absent keys are still not given out.
    pub fn left(&self) -> Option<Duration> {
        left(self.noticed.borrow().until)
    }

    /// The same of losses that this process found: what it tells others. What it was told it does not
    /// tell again, or a hold-off would never end.
    pub fn found_left(&self) -> Option<Duration> {
        left(self.noticed.borrow().found_until)
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
    /// that this remains of the hold-off; `knew`: the look before found that too.
    pub fn judge(&self, how: Option<&'static str>, told: Option<Duration>, knew: bool) -> Verdict {
        match (how, told) {
            (None, Some(left)) if !knew => Verdict::Learnt(left),
            (None, _) => Verdict::Same,
            // The same loss, in the words of another process.
            (Some(_), Some(_)) if self.left().is_some() => Verdict::Same,
            (Some(how), Some(_)) => Verdict::LostAndTold(how),
            (Some(how), None) => Verdict::Lost(how),
        }
    }

    /// Takes it in. Answers whether the others are to be told.
    pub fn take(&self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::Same => {}
            Verdict::Learnt(left) => self.learnt(*left),
            Verdict::LostAndTold(how) | Verdict::Lost(how) => self.notice(how),
        }
        matches!(verdict, Verdict::Lost(_))
    }
}

fn left(until: Option<Instant>) -> Option<Duration> {
    let left = until?.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
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
        assert_eq!(loss.found_left(), None, "it is not told again");
        assert_eq!(loss.subscribe().borrow().times, 0, "not its own finding");
    }
}
