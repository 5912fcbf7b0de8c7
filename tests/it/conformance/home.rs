//! Where the cases of one run keep their records, each case apart from the others.
//!
//! A case that names a store itself keeps that one. Servers are shared by all cases of a run: a
//! namespace of its own is an empty store to each.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::postgres::Postgres;
use crate::support::redis::Redis;

/// The store of a run.
pub(super) struct Home {
    server: Server,
    places: AtomicUsize,
}

enum Server {
    /// A file in a folder of the case's own.
    File,
    Redis(Redis),
    Postgres(Postgres),
}

/// What one case is configured with.
pub(super) struct Place {
    pub(super) url: String,
    pub(super) namespace: String,
}

/// Said after what was played.
impl std::fmt::Display for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.server {
            Server::File => "",
            Server::Redis(_) => " on Redis",
            Server::Postgres(_) => " on PostgreSQL",
        })
    }
}

impl Home {
    pub(super) fn file() -> Self {
        Self::of(Server::File)
    }

    /// `None`, and a line that says so, where the server is not installed.
    pub(super) fn redis() -> Option<Self> {
        Some(Self::of(Server::Redis(Redis::start(&[])?)))
    }

    /// It does not wait for its disk: no case lets the server crash.
    pub(super) fn postgres() -> Option<Self> {
        let server = Postgres::start(&["synchronous_commit=off"])?;
        Some(Self::of(Server::Postgres(server)))
    }

    fn of(server: Server) -> Self {
        let places = AtomicUsize::new(0);
        Self { server, places }
    }

    /// A place for one more case; `None` is the program's own default.
    pub(super) fn place(&self) -> Option<Place> {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let url = match &self.server {
            Server::File => return None,
            Server::Redis(server) => server.url(),
            Server::Postgres(server) => server.url(),
        };
        let namespace = format!("case-{number}");
        Some(Place { url, namespace })
    }

    /// How many cases kept their records here; `None` where each had a file of its own.
    pub(super) fn places(&self) -> Option<usize> {
        match self.server {
            Server::File => None,
            _ => Some(self.places.load(Ordering::Relaxed)),
        }
    }

    /// How many records are here.
    pub(super) fn records(&self) -> usize {
        match &self.server {
            Server::File => 0,
            Server::Redis(server) => {
                let names = server.records_of("case-*");
                // Besides, each namespace has what says whether it is still the same store.
                let records = names.iter().filter(|name| !name.ends_with(":mark"));
                records.count()
            }
            Server::Postgres(server) => {
                let count =
                    server.sql_now("SELECT count(*) FROM retrysafe_records WHERE length(key) = 32");
                count[0].parse().unwrap()
            }
        }
    }
}
