//! Whether every server of a store may be trusted with records: the one there is, the master and
//! its replicas, or all nodes of a cluster. A replica is a master to be.
//!
//! Invariant: one that is not fit makes the store unfit, whoever else is out of reach.
//!
//! Deliberately absent: what makes one unfit (`info.rs`), reacting to it.

use std::sync::Arc;

use super::RedisStores;
use super::address::Place;
use super::connection::Slot;
use super::info::Info;
use super::link::{End, Finder, Target};
use super::mark::Watch;
use crate::store::{OpenError, StoreError};

/// Replicas looked at for one master; there are a handful.
const MANY: usize = 64;

impl RedisStores {
    /// Asks every server whether it is fit to hold records; answers warnings. At start, and then
    /// every minute.
    pub async fn check(&self) -> Result<Vec<String>, OpenError> {
        let mut warnings = Vec::new();
        let mut unreachable = None;
        let wanted = self.replicas.as_ref().map_or(0, |replicas| replicas.wanted);
        let (masters, mut replicas) = match &self.shared.target.finder {
            Finder::Fixed(end) => (vec![end.clone()], Vec::new()),
            Finder::Sentinels(sentinels) => {
                let master = sentinels
                    .master()
                    .await
                    .map_err(|error| self.silent(&error))?;
                (vec![End::Server(master)], Vec::new())
            }
            Finder::AnyNode(cluster) => {
                let (masters, replicas) =
                    cluster.all().await.map_err(|error| self.silent(&error))?;
                let ends = |places: Vec<Place>| places.into_iter().map(End::Server).collect();
                (ends(masters), ends(replicas))
            }
        };
        for end in masters {
            match self.ask(&end).await {
                Ok(info) => {
                    warnings.extend(self.judge(&end, &info)?);
                    warnings.extend(info.too_few(&self.shown(&end), wanted));
                    if matches!(self.shared.target.finder, Finder::Sentinels(_)) {
                        replicas.extend(info.replicas.into_iter().map(End::Server));
                    }
                }
                Err(error) => unreachable = Some(self.silent(&error)),
            }
        }
        for end in replicas.into_iter().take(MANY) {
            match self.ask(&end).await {
                Ok(info) => warnings.extend(self.judge(&end, &info)?),
                Err(error) => warnings.push(format!(
                    "the replica at {} cannot be asked whether it keeps records: {}",
                    self.shown(&end),
                    error.message
                )),
            }
        }
        unreachable.map_or(Ok(warnings), Err)
    }

    fn judge(&self, end: &End, info: &Info) -> Result<Vec<String>, OpenError> {
        info.fit(&self.shown(end), self.allow_eviction)
    }

    fn shown(&self, end: &End) -> String {
        self.shared.target.access.shown(end)
    }

    fn silent(&self, error: &StoreError) -> OpenError {
        OpenError::Unreachable(format!(
            "the store at {} cannot be asked: {}",
            self.address(),
            error.message
        ))
    }

    /// What the server at `end` says about itself.
    async fn ask(&self, end: &End) -> Result<Info, StoreError> {
        let target = Target {
            access: Arc::clone(&self.shared.target.access),
            finder: Finder::Fixed(end.clone()),
            watch: Watch::Nobody,
        };
        let slot = Slot::new(Arc::new(target));
        let live = slot.live().await?;
        let mut info = Info {
            version: live.info.version,
            ..Info::default()
        };
        for section in ["memory", "replication"] {
            let ask = redis::cmd("INFO").arg(section).to_owned();
            info.add(Info::read(&slot.command(&live, &ask).await?));
        }
        Ok(info)
    }
}
