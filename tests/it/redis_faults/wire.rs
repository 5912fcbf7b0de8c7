//! What goes over the wire: a first execution costs one claim, one settle and the wake-up, a replay
//! one claim. Counted with MONITOR, without what scripts do inside the server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::Bench;
use crate::store_contract::operations::*;
use crate::support::PATIENCE;
use crate::support::redis::Redis;

/// A connection that is told of every command.
struct Monitor {
    lines: BufReader<TcpStream>,
}

impl Monitor {
    fn of(server: &Redis) -> Self {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut ok = String::new();
        lines.read_line(&mut ok).unwrap();
        assert_eq!(ok, "+OK\r\n");
        Self { lines }
    }

    /// The commands since it was asked last, each with its arguments.
    fn commands(&mut self, server: &Redis) -> Vec<String> {
        server.cli(&["ECHO", "that was all"]);
        let mut commands = Vec::new();
        loop {
            let mut line = Vec::new();
            self.lines.read_until(b'\n', &mut line).unwrap();
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains("\"that was all\"") {
                return commands;
            }
            let (from, command) = line.split_once("] ").unwrap();
            // What the question's own connection says at its start is not the store's.
            if !from.ends_with("lua") && !command.contains("SETINFO") {
                commands.push(command.trim_end().to_owned());
            }
        }
    }
}

/// The first words of the commands, `SET` with what makes it a claim.
fn names(commands: &[String]) -> Vec<String> {
    commands
        .iter()
        .map(|command| {
            let name: String = command.chars().skip(1).take_while(|c| *c != '"').collect();
            let claim = command.contains("\"NX\" \"GET\" \"PX\"");
            if claim {
                format!("{name} NX GET PX")
            } else {
                name
            }
        })
        .collect()
}

#[tokio::test]
async fn a_first_execution_costs_a_claim_and_a_settle_a_replay_a_claim() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    // The scripts are taught once to a server, not once to an execution.
    bench.says(9, claim('z')).await;
    bench.says(9, renew('z', 1, true)).await;
    bench.says(9, settle('z', 1, completed())).await;
    let mut monitor = Monitor::of(&bench.server);

    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    let settled = settle('a', 1, completed());
    assert_eq!(bench.says(1, settled).await, "stored");
    let first = monitor.commands(&bench.server);
    assert_eq!(names(&first), ["SET NX GET PX", "EVALSHA", "PUBLISH"]);

    for _ in 0..3 {
        assert_eq!(bench.says(1, claim('b')).await, "held completed a1");
    }
    let replays = monitor.commands(&bench.server);
    assert_eq!(names(&replays), ["SET NX GET PX"; 3]);

    assert_eq!(bench.says(2, claim('a')).await, "acquired 1");
    monitor.commands(&bench.server);
    assert_eq!(bench.says(2, renew('a', 1, true)).await, "stored");
    assert_eq!(names(&monitor.commands(&bench.server)), ["EVALSHA"]);

    // Every key of a command is the record's own, and the channel is named after it.
    let wake = format!("\"test:wake:{}\"", super::key(1));
    assert!(first[2].contains(&wake), "{first:?}");
    assert!(first.iter().all(|command| command.contains("\"test:")));
}

#[tokio::test]
async fn a_record_ends_by_itself() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    bench.says(1, claim('a')).await;
    let in_flight = bench.server.cli(&["TTL", &super::name(1)]);
    bench.says(1, settle('a', 1, completed())).await;
    let kept = bench.server.cli(&["TTL", &super::name(1)]);
    let (redis::Value::Int(in_flight), redis::Value::Int(kept)) = (in_flight, kept) else {
        panic!("TTL is a number");
    };
    // Seconds, a slow machine's worth of them less.
    assert!((970..=1_000).contains(&in_flight), "{in_flight}");
    assert!((1_970..=2_000).contains(&kept), "{kept}");
}
