//! One server as one thread sees it: its connections, by what travels on them.
//!
//! Small values and large ones have connections of their own, so that a small one never waits
//! behind a large one; so have writes that wait for replicas, which block theirs.

use std::sync::Arc;

use redis::Pipeline;

use super::confirmed::{Answers, Confirmation, Confirmed, Replicas};
use super::connection::{Live, Slot, Trouble};
use super::link::Target;
use crate::store::StoreError;

/// A server's connections. None is made before it is needed.
#[derive(Debug)]
pub(super) struct Node {
    small: Lane,
    large: Lane,
}

/// The connections for values of one size.
#[derive(Debug)]
pub(super) struct Lane {
    plain: Slot,
    /// With `store.wait_replicas`.
    confirmed: Option<Confirmed>,
}

impl Node {
    pub(super) fn new(target: &Arc<Target>, replicas: Option<&Replicas>) -> Self {
        let lane = || Lane {
            plain: Slot::new(Arc::clone(target)),
            confirmed: replicas
                .map(|replicas| Confirmed::new(Arc::clone(target), replicas.clone())),
        };
        Self {
            small: lane(),
            large: lane(),
        }
    }

    pub(super) fn lane(&self, large: bool) -> &Lane {
        if large { &self.large } else { &self.small }
    }

    /// For what is small and waits for nobody.
    pub(super) fn plain(&self) -> &Slot {
        &self.small.plain
    }
}

impl Lane {
    /// The connection that writes (`confirm`) or everything else goes out on.
    pub(super) async fn live(&self, confirm: bool) -> Result<Arc<Live>, StoreError> {
        match &self.confirmed {
            Some(confirmed) if confirm => confirmed.live().await,
            _ => self.plain.live().await,
        }
    }

    /// Whether somebody has looked over this connection.
    pub(super) async fn has_looked(
        &self,
        live: &Arc<Live>,
        confirm: bool,
    ) -> Result<bool, StoreError> {
        match &self.confirmed {
            Some(confirmed) if confirm => confirmed.has_looked(live).await,
            _ => self.plain.has_looked(live).await,
        }
    }

    /// Several commands at once; `confirm`: replicas are asked, if any are to be.
    pub(super) async fn pipeline(
        &self,
        live: &Arc<Live>,
        commands: Pipeline,
        confirm: bool,
    ) -> Result<Answers, Trouble> {
        match &self.confirmed {
            Some(confirmed) if confirm => confirmed.pipeline(commands).await,
            _ => Ok(Answers {
                replies: self.plain.pipeline(live, &commands).await?,
                confirmation: Confirmation::not_needed(),
            }),
        }
    }

    /// It leads to a replica.
    pub(super) fn read_only(&self, live: &Arc<Live>) {
        if let Some(confirmed) = &self.confirmed {
            confirmed.read_only(live);
        }
        self.plain.read_only(live);
    }

    /// Remembers what an error says about the connection.
    pub(super) fn answered(&self, live: &Arc<Live>, error: redis::ServerError) -> Trouble {
        if let Some(confirmed) = &self.confirmed {
            confirmed.answered(live, error.clone());
        }
        self.plain.answered(live, error)
    }
}
