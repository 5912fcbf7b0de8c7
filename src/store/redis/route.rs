//! Which server keeps a key: the one there is, or the one that a cluster names.
//!
//! Owns one thread's connections to all servers of a store. Invariant: they are never more than the
//! servers that the cluster has, and a few that it had.
//!
//! Deliberately absent: what is sent (`exchange.rs`), what is known of the cluster (`cluster.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redis::ServerError;
use tokio::task::JoinSet;

use super::address::Place;
use super::cluster::{Cluster, Redirection, slot_of};
use super::confirmed::Replicas;
use super::connection::{Slot, Trouble};
use super::errors;
use super::link::{Access, End, Finder, Target};
use super::mark::{Seen, Watch};
use super::node::Node;
use crate::store::StoreError;

/// The way of one thread to its servers.
#[derive(Debug)]
pub(super) enum Route {
    One(Arc<Node>),
    Cluster(Nodes),
}

/// The nodes of a cluster that this thread has met.
#[derive(Debug)]
pub(super) struct Nodes {
    cluster: Arc<Cluster>,
    access: Arc<Access>,
    replicas: Option<Replicas>,
    met: Mutex<HashMap<Place, Arc<Node>>>,
}

/// Where a question goes next.
pub(super) struct Hop {
    pub(super) node: Arc<Node>,
    /// The key's slot is on its way there.
    pub(super) asking: bool,
    place: Option<Place>,
}

/// What a redirection comes to.
pub(super) enum Redirected {
    To(Hop),
    /// It cannot be followed.
    Nowhere,
}

impl Route {
    pub(super) fn new(target: &Arc<Target>, replicas: Option<&Replicas>) -> Self {
        match &target.finder {
            Finder::AnyNode(cluster) => Self::Cluster(Nodes {
                cluster: Arc::clone(cluster),
                access: Arc::clone(&target.access),
                replicas: replicas.cloned(),
                met: Mutex::default(),
            }),
            _ => Self::One(Arc::new(Node::new(target, replicas))),
        }
    }

    /// The server that keeps what is called `name`.
    pub(super) async fn to(&self, name: &str) -> Result<Hop, StoreError> {
        match self {
            Self::One(node) => Ok(Hop {
                node: Arc::clone(node),
                asking: false,
                place: None,
            }),
            Self::Cluster(nodes) => {
                let place = nodes.cluster.place_of(slot_of(name)).await?;
                Ok(nodes.hop(place, false))
            }
        }
    }

    /// Where the server of `hop` points to.
    pub(super) async fn redirected(
        &self,
        hop: &Hop,
        error: &ServerError,
    ) -> Result<Redirected, StoreError> {
        let (Self::Cluster(nodes), Some(from)) = (self, &hop.place) else {
            return Ok(Redirected::Nowhere);
        };
        Ok(match Redirection::read(error, from) {
            Some(Redirection::Moved { slot, place }) => {
                nodes.cluster.moved(slot, &place).await?;
                Redirected::To(nodes.hop(place, false))
            }
            Some(Redirection::Ask { place }) => {
                nodes.cluster.asked_to(&place).await?;
                Redirected::To(nodes.hop(place, true))
            }
            None => Redirected::Nowhere,
        })
    }

    /// Whom to ask instead of a replica.
    pub(super) async fn past_replica(&self, name: &str) -> Result<Hop, Trouble> {
        match self {
            Self::One(_) => Err(Trouble::Replica),
            Self::Cluster(nodes) => {
                nodes.cluster.doubted();
                self.to(name).await.map_err(Trouble::Lost)
            }
        }
    }

    /// A server that cannot be had may not be the one to ask any more.
    pub(super) fn lost(&self, error: StoreError) -> Trouble {
        if let Self::Cluster(nodes) = self {
            nodes.cluster.doubted();
        }
        Trouble::Lost(error)
    }

    /// Takes note of trouble with a server that was asked.
    pub(super) fn noted(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Lost(error) => self.lost(error),
            Trouble::Replica => Trouble::Replica,
            Trouble::Answered(error) => {
                if let (Self::Cluster(nodes), "CLUSTERDOWN" | "READONLY") =
                    (self, errors::code(&error))
                {
                    nodes.cluster.doubted();
                }
                Trouble::Answered(error)
            }
        }
    }

    /// Whether every server is still the one it was.
    pub(super) async fn look(&self) -> Result<Seen, StoreError> {
        let nodes = match self {
            Self::One(node) => return node.plain().look().await,
            Self::Cluster(nodes) => nodes,
        };
        let mut looks = JoinSet::new();
        for place in nodes.cluster.masters().await? {
            let node = nodes.hop(place, false).node;
            looks.spawn(async move { node.plain().look().await });
        }
        let all: Result<Vec<Seen>, StoreError> = looks.join_all().await.into_iter().collect();
        let all = all.inspect_err(|_| {
            // A replica may keep its slots by now.
            nodes.cluster.doubted();
        })?;
        let others = all.into_iter().find(|seen| *seen != Seen::Open);
        Ok(others.unwrap_or(Seen::Open))
    }

    /// Whether anybody is there.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let nodes = match self {
            Self::One(node) => return ping(node.plain()).await,
            Self::Cluster(nodes) => nodes,
        };
        let places = nodes.cluster.masters().await?;
        let mut pings = JoinSet::new();
        for place in places {
            let node = nodes.hop(place, false).node;
            pings.spawn(async move { ping(node.plain()).await });
        }
        let mut last = errors::no_node();
        while let Some(answer) = pings.join_next().await {
            match answer {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        nodes.cluster.doubted();
        Err(last)
    }
}

impl Nodes {
    fn hop(&self, place: Place, asking: bool) -> Hop {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let known = met.get(&place).cloned();
        let node = known.unwrap_or_else(|| {
            if met.len() >= self.cluster.size().saturating_mul(2).max(8) {
                met.retain(|place, _| self.cluster.knows(place));
            }
            let target = Target {
                access: Arc::clone(&self.access),
                finder: Finder::Fixed(End::Server(place.clone())),
                watch: Watch::Node(Arc::clone(&self.cluster), place.clone()),
            };
            let node = Arc::new(Node::new(&Arc::new(target), self.replicas.as_ref()));
            met.insert(place.clone(), Arc::clone(&node));
            node
        });
        drop(met);
        Hop {
            node,
            asking,
            place: Some(place),
        }
    }
}

async fn ping(slot: &Slot) -> Result<(), StoreError> {
    let live = slot.live().await?;
    match slot.command(&live, &redis::cmd("PING")).await {
        Ok(_) => Ok(()),
        Err(trouble) => Err(trouble.into()),
    }
}
