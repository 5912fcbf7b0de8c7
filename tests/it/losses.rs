//! A store that lost its memory while requests ran: whoever runs one writes its record again at
//! once, and meanwhile nobody is given a key that only seems to be free.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use retrysafe::store::{RedisStores, Settings};

use crate::support::client::{Answer, get, pay};
use crate::support::eventually;
use crate::support::redis::{Redis, least_rights, settings_at};
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::upstream::{Gate, Upstream};

/// No renewal is due while a test runs: what is written again is so because of the loss.
const LONG: &str = "[policy]\nlease = \"10m\"\nin_flight_wait = \"0s\"";

pub fn start(upstream: SocketAddr, url: &str, hold_off: &str) -> Sidecar {
    let store = format!("hold_off = \"{hold_off}\"\nnamespace = \"test\"");
    let tables = Tables {
        store_url: Some(url),
        store: &store,
        rest: LONG,
        ..Tables::default()
    };
    Plan::new(upstream, &tables).start()
}

pub fn is_held_off(sidecar: &Sidecar) -> bool {
    get(sidecar.health, "/readyz?verbose")
        .text()
        .contains("holding off for")
}

/// Two replicas of the proxy, a request that one of them runs, and what must follow a loss.
struct Scene {
    url: String,
    upstream: Upstream,
    gate: Gate,
    pair: [Sidecar; 2],
    first: JoinHandle<Answer>,
}

impl Scene {
    fn lose(url: &str, lose: impl FnOnce()) -> Self {
        let (gate, upstream) = Upstream::gated();
        let pair = [(); 2].map(|()| start(upstream.addr, url, "10m"));
        let addr = pair[0].addr;
        let first = thread::spawn(move || pay(addr, "k", "x"));
        upstream.wait_calls(1);
        lose();
        for sidecar in &pair {
            let line = sidecar.wait_log("\"event\":\"memory_lost\"");
            assert!(line.contains("\"hold_off_s\":"), "{line}");
            sidecar.wait_metric("retrysafe_memory_lost_total", |times| times >= 1);
        }
        pair[0].wait_metric("retrysafe_reasserted_total", |records| records == 1);
        // It may still have to find out who keeps the record by now.
        eventually("the record is there again", || {
            pay(pair[1].addr, "k", "x").code() == "idempotency_request_in_progress"
        });
        let other = pay(pair[1].addr, "other", "x");
        assert_eq!(other.code(), "idempotency_store_unavailable");
        eventually("the hold-off is shown", || is_held_off(&pair[1]));
        Self {
            url: url.to_owned(),
            upstream,
            gate,
            pair,
            first,
        }
    }

    /// Whoever starts meanwhile knows no store but this one, and is told all the same.
    fn who_starts_late_learns_it(&self) {
        let late = start(self.upstream.addr, &self.url, "10m");
        let early = pay(late.addr, "other", "x");
        assert_eq!(early.code(), "idempotency_store_unavailable");
    }

    fn nothing_ran_twice(self) {
        self.gate.open();
        let paid = self.first.join().unwrap();
        assert_eq!(paid.status, 201);
        let again = pay(self.pair[1].addr, "k", "x");
        assert!(again.is_replay(), "{}", again.text());
        assert_eq!(again.text(), paid.text());
        assert_eq!(self.upstream.calls(), 1);
    }
}

/// The whole of it.
pub fn nothing_runs_twice(url: &str, lose: impl FnOnce()) {
    let scene = Scene::lose(url, lose);
    scene.who_starts_late_learns_it();
    scene.nothing_ran_twice();
}

#[test]
fn a_redis_that_was_emptied_is_noticed() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    nothing_runs_twice(&server.url(), || {
        server.cli(&["FLUSHALL"]);
    });
}

#[test]
fn the_least_rights_are_enough_to_notice() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    least_rights(&server, "");
    let url = format!("redis://sidecar:pw@{}", server.addr());
    nothing_runs_twice(&url, || {
        server.cli(&["FLUSHALL"]);
    });
}

#[test]
fn a_redis_that_came_back_empty_is_noticed() {
    let Some(mut server) = Redis::start(&["--save", ""]) else {
        return;
    };
    let url = server.url();
    nothing_runs_twice(&url, || {
        server.kill();
        server.restart(&[]);
    });
}

#[test]
fn after_the_hold_off_absent_keys_are_given_out_again() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = start(upstream.addr, &server.url(), "1s");
    assert_eq!(pay(sidecar.addr, "k1", "x").status, 201);
    server.cli(&["FLUSHALL"]);
    sidecar.wait_log("\"event\":\"memory_lost\"");
    eventually("new keys are executed", || {
        pay(sidecar.addr, "k2", "x").status == 201
    });
    eventually("the health page says so", || !is_held_off(&sidecar));
    assert!(pay(sidecar.addr, "k2", "x").is_replay());
}

/// Restarts a server with this policy of its disk; whether that is taken for a loss.
fn restart_is_a_loss(policy: &str) -> Option<bool> {
    let mut server = Redis::start(&["--appendonly", "yes", "--appendfsync", policy])?;
    let upstream = Upstream::counting();
    let sidecar = start(upstream.addr, &server.url(), "10m");
    assert_eq!(pay(sidecar.addr, "k1", "x").status, 201);
    server.kill();
    server.restart(&[]);
    eventually("it replays again", || {
        pay(sidecar.addr, "k1", "x").is_replay()
    });
    let new = pay(sidecar.addr, "k2", "x");
    let lost = new.status != 201;
    if lost {
        assert_eq!(new.code(), "idempotency_store_unavailable");
        sidecar.wait_log("\"event\":\"memory_lost\"");
    }
    Some(lost)
}

#[test]
fn a_disk_that_is_synced_before_each_answer_loses_nothing() {
    if let Some(lost) = restart_is_a_loss("always") {
        assert!(!lost);
    }
}

#[test]
fn a_disk_that_is_synced_each_second_may_have_lost_the_last_one() {
    if let Some(lost) = restart_is_a_loss("everysec") {
        assert!(lost);
    }
}

#[tokio::test]
async fn a_second_loss_within_the_hold_off_counts_for_every_process() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    let watching = || {
        let settings = Settings {
            hold_off: Duration::from_mins(10),
            ..settings_at(server.url())
        };
        RedisStores::new(&settings, Arc::new(|_| {})).unwrap()
    };
    let both = [watching(), watching()];
    for losses in 0..=2 {
        for stores in [&both[0], &both[1], &both[0], &both[1]] {
            stores.look().await;
        }
        for stores in &both {
            let found = stores.loss().found().map_or(0, |(times, _)| times);
            assert_eq!(found, losses);
        }
        server.cli(&["FLUSHALL"]);
    }
}
