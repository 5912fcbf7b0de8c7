//! What exists once for the store: whether it is fit and how far it can be trusted, at start and then
//! again and again; whether it is still the one it was; sweeping.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::AppError;
use crate::admin::Health;
use crate::store::guarded::Breaker;
use crate::store::loss::{Loss, Noticed};
use crate::store::tier::{Guarantee, Tier};
use crate::store::{OpenError, Stores};
use crate::telemetry::Metrics;

/// Records removed in one step of a sweep.
const SWEEP_BATCH: usize = 1_000;

/// How bad a finding of the first check is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Finding {
    Warning,
    StoreDown,
}

/// What the first check found, to be said after the address.
#[derive(Debug, Default)]
pub(super) struct First {
    pub(super) findings: Vec<(Finding, String)>,
    /// `None`: the store is out of reach.
    pub(super) guarantee: Option<Guarantee>,
}

/// Whether the store is fit; unreachable is only an error where it must be there.
pub(super) async fn first_check(
    stores: &Stores,
    require_ready: bool,
    required: Tier,
) -> Result<First, AppError> {
    let warnings = match stores.check().await {
        Ok(warnings) => warnings,
        Err(OpenError::Unreachable(text)) if !require_ready => {
            let findings = vec![(Finding::StoreDown, text)];
            return Ok(First {
                findings,
                guarantee: None,
            });
        }
        Err(error) => return Err(error.into()),
    };
    let guarantee = stores.guarantee().await;
    // Before anything is given out: what it is from now on compared with.
    stores.look().await;
    if let Some(weak) = guarantee
        .as_ref()
        .and_then(|found| too_weak(found, required))
    {
        return Err(AppError::Unfit(weak));
    }
    let warning = |text| (Finding::Warning, text);
    Ok(First {
        findings: warnings.into_iter().map(warning).collect(),
        guarantee,
    })
}

fn too_weak(found: &Guarantee, required: Tier) -> Option<String> {
    let missing = found.missing.as_deref().unwrap_or("another store");
    let (tier, what) = (found.tier, found.tier.survives());
    (tier < required).then(|| {
        format!(
            "the store is of tier {tier} (what is recorded survives {what}) and \
             policy.require_tier is {required}. Found: {}. To get more: {missing}",
            found.found
        )
    })
}

/// Whether the store is still the one it was: each second, and at once after a loss, so that every
/// server tells who starts meanwhile.
async fn look_out(stores: &Stores, health: &Health) {
    let loss = stores.loss();
    let mut losses = loss.subscribe();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = second.tick() => {}
            Ok(()) = losses.changed() => {}
        }
        losses.mark_unchanged();
        stores.look().await;
        health.hold_off(loss.left());
    }
}

/// The store as it is looked after while the program runs.
pub(super) struct Duties {
    pub(super) stores: Arc<Stores>,
    pub(super) breaker: Arc<Breaker>,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) required: Tier,
    /// The last that was found.
    pub(super) guarantee: Option<Guarantee>,
    /// The next check is not to wait for the minute.
    pub(super) is_due: bool,
    /// Losses of the store's memory that were told.
    pub(super) losses: u64,
}

impl Duties {
    /// Never returns.
    pub(super) async fn run(self) {
        let (stores, health) = (Arc::clone(&self.stores), Arc::clone(&self.health));
        // Neither a long sweep nor a slow check keeps it from looking.
        tokio::join!(look_out(&stores, &health), self.others());
    }

    async fn others(mut self) {
        if let Some(found) = self.guarantee.take() {
            self.found(found);
        }
        let loss = self.stores.loss();
        let mut losses = loss.subscribe();
        let mut second = tokio::time::interval(Duration::from_secs(1));
        let mut minute = tokio::time::interval(Duration::from_mins(1));
        minute.tick().await;
        loop {
            tokio::select! {
                _ = second.tick() => {
                    self.sweep().await;
                    if self.is_due && !self.breaker.is_open() {
                        self.check().await;
                    }
                }
                _ = minute.tick() => self.check().await,
                Ok(()) = losses.changed() => self.lost(*losses.borrow_and_update(), &loss),
            }
        }
    }

    async fn sweep(&self) {
        while matches!(self.stores.sweep(SWEEP_BATCH).await, Ok(SWEEP_BATCH)) {
            tokio::task::yield_now().await;
        }
    }

    async fn check(&mut self) {
        // What could not be asked is asked again soon.
        self.is_due = true;
        match self.stores.check().await {
            Ok(_) => match self.stores.guarantee().await {
                Some(found) => {
                    self.is_due = false;
                    self.found(found);
                }
                // What was found before holds until then.
                None if self.guarantee.is_some() => {}
                None => self.breaker.set_unfit(self.required > Tier::T0),
            },
            Err(OpenError::Unfit(text)) => {
                self.is_due = false;
                self.breaker.set_unfit(true);
                tracing::error!(event = "store_unfit", "{text}");
            }
            // The breaker knows.
            Err(_) => {}
        }
    }

    fn lost(&mut self, noticed: Noticed, loss: &Loss) {
        let left = loss.left();
        self.health.hold_off(left);
        let new = noticed.times.saturating_sub(self.losses);
        if new == 0 {
            return;
        }
        self.losses = noticed.times;
        self.metrics.memory_lost.inc_by(new);
        tracing::error!(
            event = "memory_lost",
            how = noticed.how,
            hold_off_s = left.unwrap_or_default().as_secs_f64(),
            "the store may have lost records: what runs is recorded again, and nothing new is \
             claimed for that time"
        );
    }

    fn found(&mut self, found: Guarantee) {
        let weak = too_weak(&found, self.required);
        self.breaker.set_unfit(weak.is_some());
        if let Some(text) = weak {
            tracing::error!(event = "store_unfit", "{text}");
        }
        if self.guarantee.as_ref() == Some(&found) {
            return;
        }
        let (tier, survives) = (found.tier, found.tier.survives());
        self.metrics.store_tier.set(i64::from(tier.number()));
        self.health
            .guarantee(format!("{tier}, survives {survives}"));
        tracing::info!(
            event = "guarantee",
            tier = %tier,
            found = %found.found,
            missing = found.missing.as_deref(),
            "what is recorded survives {survives}"
        );
        self.guarantee = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tier::of_memory;

    #[test]
    fn a_weaker_store_than_required_is_named_with_what_is_missing() {
        let found = of_memory();
        assert_eq!(too_weak(&found, Tier::T0), None);
        let text = too_weak(&found, Tier::T3).unwrap();
        for part in ["tier T0", "require_tier is T3", "file:PATH"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
