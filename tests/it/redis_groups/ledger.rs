//! The loss of a server under load, through the proxy: a ledger of what was executed, and every
//! request tried with its key until it has its answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::time::Instant;

use crate::losses::nothing_runs_twice;
use crate::support::client::pay;
use crate::support::cut::Link;
use crate::support::redis::Redis;
use crate::support::redis_cluster::Cluster;
use crate::support::redis_groups::{Sentineled, master, replica_of};
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, eventually};

const KEYS: usize = 2_000;
const CLIENTS: usize = 8;

/// What became of one key.
#[derive(Debug)]
struct Ending {
    key: String,
    text: String,
    tries: usize,
}

/// Pays with every key over two replicas of the proxy, and loses a server on the way.
fn run(url: &str, lose: impl FnOnce()) -> (Vec<Ending>, Upstream, [Sidecar; 2]) {
    let upstream = Upstream::counting();
    let tables = Tables {
        store_url: Some(url),
        // A failover that were taken for a loss would refuse every new key from then on.
        store: "wait_replicas = 1\ntimeout = \"500ms\"\nhold_off = \"10m\"",
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables);
    let pair = [plan.start(), plan.start()];
    let next = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let next = Arc::clone(&next);
            let addrs = [pair[client % 2].addr, pair[(client + 1) % 2].addr];
            thread::spawn(move || {
                let mut endings = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= KEYS {
                        return endings;
                    }
                    endings.push(pay_until_paid(addrs, format!("k-{number}")));
                }
            })
        })
        .collect();
    eventually("half of them are under way", || {
        next.load(Ordering::SeqCst) > KEYS / 2
    });
    lose();
    let endings = clients
        .into_iter()
        .flat_map(|client| client.join().unwrap());
    (endings.collect(), upstream, pair)
}

/// One try after another, each at the other replica of the proxy.
fn pay_until_paid(addrs: [SocketAddr; 2], key: String) -> Ending {
    let until = Instant::now() + PATIENCE * 2;
    let mut tries = 0;
    loop {
        let answer = pay(addrs[tries % 2], &key, "x");
        tries += 1;
        if answer.status == 201 {
            let text = answer.text();
            return Ending { key, text, tries };
        }
        let code = answer.code();
        let may_be_told = [
            "idempotency_store_unavailable",
            "idempotency_request_in_progress",
        ];
        assert!(may_be_told.contains(&code.as_str()), "{key}: {code}");
        assert!(Instant::now() < until, "{key} is never paid: {code}");
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// At most one execution for each key, each client got the answer of that one, and so does whoever
/// asks again.
fn judge(endings: &[Ending], upstream: &Upstream, pair: &[Sidecar; 2]) {
    for sidecar in pair {
        sidecar.wait_metric("retrysafe_unconfirmed_operations", |count| count == 0);
    }
    for (number, ending) in endings.iter().enumerate() {
        let again = pay(pair[number % 2].addr, &ending.key, "x");
        assert!(again.is_replay(), "{ending:?}: {}", again.text());
        assert_eq!(again.text(), ending.text, "{}", ending.key);
    }
    let mut executions: HashMap<String, usize> = HashMap::new();
    for seen in upstream.seen() {
        let key = seen.header("idempotency-key").unwrap().to_owned();
        *executions.entry(key).or_default() += 1;
    }
    assert_eq!(endings.len(), KEYS);
    for ending in endings {
        let count = executions.get(&ending.key).copied();
        assert_eq!(count, Some(1), "{ending:?}");
    }
    let mut texts: Vec<_> = endings.iter().map(|ending| &ending.text).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(
        texts.len(),
        KEYS,
        "every answer is of an execution of its own"
    );
    let again = endings.iter().filter(|ending| ending.tries > 1).count();
    println!("{again} of {KEYS} keys were tried more than once");
    assert!(again > 0, "the loss was noticed");
}

#[test]
fn a_lost_master_under_sentinels_runs_nothing_twice() {
    let Some(group) = Sentineled::start(None) else {
        return;
    };
    let url = group.url();
    let group = std::sync::Mutex::new(group);
    let (endings, upstream, pair) = run(&url, || {
        let mut group = group.lock().unwrap();
        let new = group.servers[1].addr();
        group.servers[0].kill();
        eventually("another master is named", || {
            group.named().iter().all(|named| *named == new)
        });
        // It comes back without its memory, and becomes the replica that is waited for.
        group.servers[0].restart(&[]);
    });
    judge(&endings, &upstream, &pair);
}

/// A master whose replica hears of it over a link that can be cut.
fn linked() -> Option<(Link, Sentineled)> {
    let first = master(&[])?;
    let link = Link::to(first.addr());
    let replica = replica_of(link.addr, &[])?;
    let group = Sentineled::over([first, replica], None)?;
    Some((link, group))
}

#[test]
fn a_master_that_was_cut_off_and_lost_runs_nothing_twice() {
    let Some((link, group)) = linked() else {
        return;
    };
    let url = group.url();
    let group = std::sync::Mutex::new(group);
    let (endings, upstream, pair) = run(&url, || {
        let mut group = group.lock().unwrap();
        let new = group.servers[1].addr();
        link.cut();
        // Nothing is acknowledged any more; what is written is lost with the master.
        eventually("keys come and are refused", || {
            group.servers[0].records().len() > group.servers[1].records().len()
        });
        group.servers[0].kill();
        link.heal();
        eventually("another master is named", || {
            group.named().iter().all(|named| *named == new)
        });
        group.servers[0].restart(&[]);
    });
    judge(&endings, &upstream, &pair);
}

#[test]
fn a_failover_that_lost_a_claim_is_noticed_and_runs_nothing_twice() {
    let Some((link, mut group)) = linked() else {
        return;
    };
    let url = group.url();
    link.cut();
    nothing_runs_twice(&url, || {
        let new = group.servers[1].addr();
        assert_eq!(group.servers[0].records_of("test").len(), 1);
        assert_eq!(group.servers[1].records_of("test").len(), 0);
        group.servers[0].kill();
        link.heal();
        eventually("another master is named", || {
            group.named().iter().all(|named| *named == new)
        });
    });
}

#[test]
fn a_lost_node_of_a_cluster_runs_nothing_twice() {
    let Some(cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let url = cluster.url();
    let cluster = std::sync::Mutex::new(cluster);
    let (endings, upstream, pair) = run(&url, || {
        let mut cluster = cluster.lock().unwrap();
        cluster.nodes[0].kill();
        let replica = |node: &Redis| node.info("role") == "master";
        eventually("its replica is promoted", || replica(&cluster.nodes[3]));
        cluster.nodes[0].restart(&[]);
    });
    judge(&endings, &upstream, &pair);
}

#[test]
fn a_cluster_whose_nodes_come_back_empty_is_noticed_and_runs_nothing_twice() {
    let Some(mut cluster) = Cluster::start(0, &["--save", ""]) else {
        return;
    };
    let url = cluster.url();
    nothing_runs_twice(&url, || {
        for node in &mut cluster.nodes {
            node.kill();
            node.restart(&[]);
        }
    });
}

#[test]
fn a_node_of_a_cluster_that_was_emptied_is_noticed_and_runs_nothing_twice() {
    let Some(cluster) = Cluster::start(0, &[]) else {
        return;
    };
    nothing_runs_twice(&cluster.url(), || {
        let with_it = |node: &&Redis| !node.records_of("test").is_empty();
        let keeper = cluster.nodes.iter().find(with_it).unwrap();
        keeper.cli(&["FLUSHALL"]);
    });
}

#[test]
fn a_replica_of_a_cluster_that_lacks_a_claim_is_noticed_and_runs_nothing_twice() {
    let Some(mut cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let url = cluster.url();
    nothing_runs_twice(&url, || {
        let with_it = |node: &Redis| !node.records_of("test").is_empty();
        let keeper = cluster.nodes[..3].iter().position(with_it).unwrap();
        // As if it had been lost with the link.
        cluster.nodes[keeper].cli(&["FLUSHALL"]);
        eventually("the replica has no record", || {
            !with_it(&cluster.nodes[keeper + 3])
        });
        cluster.nodes[keeper].kill();
        eventually("its replica is promoted", || {
            cluster.nodes[keeper + 3].info("role") == "master"
        });
    });
}
