//! Traffic over three replicas with a fault between them and their store at every moment, and then the
//! account: what the upstream's ledger says was executed, against what clients were told.

mod account;
mod nemesis;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::faulty::Faulty;
use crate::support::redis::Redis;
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

const CLIENTS: usize = 24;
/// Requests that bear one key, by different clients at different replicas.
const TRIES: usize = 4;

/// Three replicas, each behind a proxy of its own that breaks what goes to `store`.
struct Replicas {
    sidecars: Vec<Sidecar>,
    links: Vec<Faulty>,
}

impl Replicas {
    fn start(upstream: SocketAddr, store: SocketAddr, url: impl Fn(SocketAddr) -> String) -> Self {
        let links: Vec<_> = (0..3).map(|_| Faulty::to(store)).collect();
        let sidecars = links.iter().map(|link| {
            let url = url(link.addr);
            let tables = Tables {
                store_url: Some(&url),
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
}

#[test]
fn a_redis_that_keeps_what_it_acknowledged_executes_nothing_twice() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(redis) = Redis::start(&arguments) else {
        return;
    };
    let ledger = Ledger::start();
    let store = redis.addr();
    let replicas = Replicas::start(ledger.addr(), store, |link| format!("redis://{link}"));
    let redis = Arc::new(std::sync::Mutex::new(redis));
    let mut nemesis = Nemesis::new(1, move || {
        let mut redis = redis.lock().unwrap();
        redis.kill();
        redis.restart(&arguments);
    });
    let account = replicas.run(&ledger, 1, &mut nemesis);
    account.print("Redis, appendfsync always");
    account.nothing_twice();
    account.nothing_changed();
    account.nothing_stuck();
}
