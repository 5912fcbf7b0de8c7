//! A Redis cluster.

use redis::Value;

use super::eventually;
use super::redis::{Redis, TLS_PORT, own_ip, tls_port};
use super::redis_groups::{cli_at, text};

/// A cluster of three masters, each with `replicas` replicas.
#[derive(Debug)]
pub struct Cluster {
    /// Masters first.
    pub nodes: Vec<Redis>,
}

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

impl Cluster {
    /// `None` where no server is installed.
    pub fn start(replicas: usize, more: &[&str]) -> Option<Self> {
        let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "800"];
        arguments.extend(["--repl-diskless-sync-delay", "0"]);
        let ip = own_ip().to_string();
        arguments.extend(["--cluster-config-file", "nodes.conf"]);
        // Others would see where its connections come from, which is 127.0.0.1.
        arguments.extend(["--cluster-announce-ip", &ip, "--replica-announce-ip", &ip]);
        arguments.extend(more);
        let count = MASTERS * (1 + replicas);
        let nodes: Option<Vec<_>> = (0..count).map(|_| Redis::start(&arguments)).collect();
        let cluster = Self { nodes: nodes? };
        for (number, node) in cluster.nodes.iter().enumerate() {
            let epoch = (number + 1).to_string();
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            if number < MASTERS {
                let (first, end) = (SLOTS * number / MASTERS, SLOTS * (number + 1) / MASTERS);
                let (first, last) = (first.to_string(), (end - 1).to_string());
                node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
            if number > 0 {
                cluster.meet(number, more.contains(&TLS_PORT));
            }
        }
        cluster.settled(count);
        for number in MASTERS..count {
            let master = cluster.id(number % MASTERS);
            let node = &cluster.nodes[number];
            eventually("it becomes a replica", || {
                node.cli(&["CLUSTER", "REPLICATE", &master]) == Value::Okay
            });
        }
        for node in &cluster.nodes[MASTERS..] {
            eventually("the replica has caught up", || {
                node.info("master_link_status") == "up"
            });
        }
        eventually("every node knows who is whose replica", || {
            cluster.nodes.iter().all(|node| {
                let known = text(&node.cli(&["CLUSTER", "NODES"]));
                known.matches("slave ").count() == count - MASTERS
            })
        });
        cluster.settled(count);
        Some(cluster)
    }

    fn meet(&self, number: usize, over_tls: bool) {
        let first = self.nodes[0].addr();
        let port = if over_tls {
            tls_port(first)
        } else {
            first.port()
        };
        let (ip, port) = (first.ip().to_string(), port.to_string());
        let said = self.nodes[number].cli(&["CLUSTER", "MEET", &ip, &port]);
        assert_eq!(said, Value::Okay);
    }

    /// Waits until every node that answers says that all is well among `count`.
    pub fn settled(&self, count: usize) {
        eventually("the cluster is well", || {
            self.nodes.iter().all(|node| {
                let info = cli_at(&node.url(), &["CLUSTER", "INFO"]);
                let Value::BulkString(info) = info else {
                    return false;
                };
                let info = String::from_utf8(info).unwrap();
                let line = |text: &str| info.lines().any(|line| line.trim() == text);
                line("cluster_state:ok")
                    && line("cluster_size:3")
                    && line(&format!("cluster_known_nodes:{count}"))
            })
        });
    }

    pub fn id(&self, number: usize) -> String {
        text(&self.nodes[number].cli(&["CLUSTER", "MYID"]))
    }

    /// Two of the nodes are named, the others are to be found.
    pub fn url(&self) -> String {
        format!(
            "redis+cluster://{},{}",
            self.nodes[0].addr(),
            self.nodes[1].addr()
        )
    }

    /// The nodes that keep slots, as `number` of `nodes`.
    pub fn masters(&self) -> Vec<&Redis> {
        self.nodes.iter().take(MASTERS).collect()
    }

    /// Who of the first masters keeps `slot` at the beginning.
    pub fn keeper(slot: u16) -> usize {
        (0..MASTERS)
            .find(|number| usize::from(slot) < SLOTS * (number + 1) / MASTERS)
            .unwrap()
    }

    /// The slot of a key, as the servers say it.
    pub fn slot(&self, name: &str) -> u16 {
        match self.nodes[0].cli(&["CLUSTER", "KEYSLOT", name]) {
            Value::Int(slot) => slot.try_into().unwrap(),
            other => panic!("{other:?}"),
        }
    }
}
