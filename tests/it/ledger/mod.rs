//! Traffic over three replicas with a fault between them and their store at every moment, and then the
//! account: what the upstream's ledger says was executed, against what clients were told.

mod account;
mod nemesis;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::eventually;
use crate::support::faulty::Faulty;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::redis_groups::{master, replica_of};
use crate::support::sidecar::{Plan, Sidecar, Tables};
use account::{Account, Ledger};
use nemesis::{Nemesis, Random};

/// Requests of one run.
fn requests() -> usize {
    match std::env::var_os("RETRYSAFE_TEST_LONG") {
        Some(_) => 100_000,
        None => 10_000,
    }
}

/// A false alarm would refuse every new key from then on.
const WATCHED: &str = "hold_off = \"10m\"";
const CLIENTS: usize = 24;
/// Requests that bear one key, by different clients at different replicas.
const TRIES: usize = 4;

/// Three replicas, each behind a proxy of its own that breaks what goes to `store`.
struct Replicas {
    sidecars: Vec<Sidecar>,
    links: Vec<Faulty>,
}

impl Replicas {
    fn start(
        upstream: SocketAddr,
        store: SocketAddr,
        settings: &str,
        url: impl Fn(SocketAddr) -> String,
    ) -> Self {
        let links: Vec<_> = (0..3).map(|_| Faulty::to(store)).collect();
        let sidecars = links.iter().map(|link| {
            let url = url(link.addr);
            let tables = Tables {
                store_url: Some(&url),
                store: settings,
                // Faults last longer than a lease: what that means is part of the run.
                rest: "[policy]\nlease = \"3s\"\nin_flight_wait = \"500ms\"",
                ..Tables::default()
            };
            Plan::new(upstream, &tables)
                .env("RETRYSAFE__LOG__LEVEL", "info")
                .start()
        });
        Self {
            sidecars: sidecars.collect(),
            links,
        }
    }

    /// Clients send everything while `nemesis` does its work; then the faults end, and each key is
    /// asked for once more.
    fn run(&self, ledger: &Ledger, seed: u64, nemesis: &mut Nemesis) -> Account {
        let total = requests();
        let addrs: Vec<SocketAddr> = self.sidecars.iter().map(|sidecar| sidecar.addr).collect();
        let account = Account::new(total / TRIES);
        let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (account, addrs, next) = (&account, &addrs, &next);
                    let mut random = Random::new(seed ^ (client as u64) << 32);
                    scope.spawn(move || {
                        loop {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            if number >= total {
                                return;
                            }
                            let addr = addrs[random.below(addrs.len())];
                            account.pay(addr, number / TRIES);
                        }
                    })
                })
                .collect();
            let nemesis = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    nemesis.strike(&self.links);
                }
            });
            for client in clients {
                client.join().unwrap();
            }
            over.store(true, Ordering::Relaxed);
            nemesis.join().unwrap();
        });
        for sidecar in &self.sidecars {
            sidecar.wait_metric("retrysafe_store_up", |up| up == 1);
            sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
            sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
        }
        account.ask_again(&addrs);
        account.settle(ledger);
        account
    }

    /// No store of these tiers loses its memory in a crash or a failover, and none is taken for one
    /// that did.
    fn nothing_was_forgotten(&self) {
        for sidecar in &self.sidecars {
            assert_eq!(sidecar.metric("retrysafe_memory_lost_total"), 0);
        }
    }

    fn nothing_is_wrong(&self, store: &str, ledger: &Ledger, seed: u64, nemesis: &mut Nemesis) {
        let account = self.run(ledger, seed, nemesis);
        account.print(store);
        account.nothing_twice();
        account.nothing_changed();
        account.nothing_stuck();
    }
}

#[test]
fn a_redis_that_keeps_what_it_acknowledged_executes_nothing_twice() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(redis) = Redis::start(&arguments) else {
        return;
    };
    let ledger = Ledger::start();
    let store = redis.addr();
    let url = |link| format!("redis://{link}");
    let replicas = Replicas::start(ledger.addr(), store, WATCHED, url);
    let redis = Arc::new(std::sync::Mutex::new(redis));
    let mut nemesis = Nemesis::new(1, move || {
        let mut redis = redis.lock().unwrap();
        redis.kill();
        redis.restart(&arguments);
    });
    replicas.nothing_is_wrong("Redis, appendfsync always", &ledger, 1, &mut nemesis);
    replicas.nothing_was_forgotten();
}

/// Neither server has a disk: what the replica confirmed is all there is after each failover.
#[test]
fn a_redis_whose_replica_confirms_executes_nothing_twice() {
    let Some(first) = master(&["--save", ""]) else {
        return;
    };
    let second = replica_of(first.addr(), &["--save", ""]).unwrap();
    let ledger = Ledger::start();
    // Short: who misses one of two failovers takes the second one for a loss.
    let settings = "wait_replicas = 1\ntimeout = \"500ms\"\nhold_off = \"1s\"";
    let url = |link| format!("redis://{link}");
    let replicas = Replicas::start(ledger.addr(), first.addr(), settings, url);
    let links = replicas.links.clone();
    let mut servers = [first, second];
    let mut nemesis = Nemesis::new(2, move || {
        servers[0].kill();
        servers.swap(0, 1);
        let [master, replica] = &mut servers;
        master.cli(&["REPLICAOF", "NO", "ONE"]);
        for link in &links {
            link.redirect(master.addr());
        }
        replica.restart(&[]);
        let (ip, port) = (master.addr().ip(), master.addr().port());
        replica.cli(&["REPLICAOF", &ip.to_string(), &port.to_string()]);
        eventually("the replica has caught up", || {
            replica.info("master_link_status") == "up"
        });
    });
    replicas.nothing_is_wrong("Redis, a replica confirms", &ledger, 2, &mut nemesis);
}

#[test]
fn a_postgresql_that_crashes_executes_nothing_twice() {
    let Some(server) = Postgres::start(&["fsync=on"]) else {
        return;
    };
    let ledger = Ledger::start();
    let url = |link| format!("postgres://app@{link}/postgres");
    let replicas = Replicas::start(ledger.addr(), server.addr(), WATCHED, url);
    let mut server = server;
    let mut nemesis = Nemesis::new(3, move || {
        server.crash();
        server.restart(&[]);
    });
    replicas.nothing_is_wrong("PostgreSQL", &ledger, 3, &mut nemesis);
    replicas.nothing_was_forgotten();
}
