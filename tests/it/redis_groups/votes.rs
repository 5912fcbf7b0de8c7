//! Sentinels of the test's own, which name whom they are told to: who is outvoted, and that a
//! connection is left without any sign of its server once another one is named.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use retrysafe::store::{Delivery, StoreErrorKind};

use super::{apply, stores};
use crate::store_contract::operations::*;
use crate::support::in_time;
use crate::support::redis::Redis;

const TIMEOUT: Duration = Duration::from_millis(500);

/// A sentinel that only names somebody.
struct Namer {
    addr: SocketAddr,
    named: Arc<Mutex<SocketAddr>>,
}

impl Namer {
    fn of(named: SocketAddr) -> Self {
        Self::late_of(named, Duration::ZERO)
    }

    /// One that takes its time.
    fn late_of(named: SocketAddr, late: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let named = Arc::new(Mutex::new(named));
        let shared = Arc::clone(&named);
        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let named = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &named, late));
            }
        });
        Self { addr, named }
    }

    fn name(&self, addr: SocketAddr) {
        *self.named.lock().unwrap() = addr;
    }
}

fn serve(mut stream: TcpStream, named: &Mutex<SocketAddr>, late: Duration) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let command = command(&mut reader)?;
        let answer = match command.first()?.as_str() {
            "SENTINEL" => {
                // The pace of a sentinel is what this is about.
                thread::sleep(late);
                let named = *named.lock().unwrap();
                let (ip, port) = (named.ip().to_string(), named.port().to_string());
                format!(
                    "*2\r\n${}\r\n{ip}\r\n${}\r\n{port}\r\n",
                    ip.len(),
                    port.len()
                )
            }
            // No RESP3, so no news: it must be asked.
            _ => "-ERR unknown command\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// One command as its words.
fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let number = |mark: char, reader: &mut dyn BufRead| -> Option<usize> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(mark)?.parse().ok()
    };
    let count = number('*', reader)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number('$', reader)? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

fn url(namers: &[&Namer]) -> String {
    let places: Vec<_> = namers.iter().map(|namer| namer.addr.to_string()).collect();
    format!("redis+sentinel://{}/m", places.join(","))
}

fn records(server: &Redis) -> usize {
    server.records_of("test").len()
}

#[tokio::test]
async fn once_another_master_is_named_the_old_one_is_left_though_it_is_well() {
    let (Some(old), Some(new)) = (Redis::start(&[]), Redis::start(&[])) else {
        return;
    };
    let namer = Namer::of(old.addr());
    let store = stores(url(&[&namer]), 0, TIMEOUT).handle();
    for number in 1..=3 {
        assert_eq!(
            apply(&store, number, claim('a')).await.unwrap(),
            "acquired 1"
        );
    }
    assert_eq!((records(&old), records(&new)), (3, 0));
    namer.name(new.addr());
    let mut number = 3;
    in_time("the new one is found", async || {
        number += 1;
        let claimed = apply(&store, number, claim('a')).await;
        assert_eq!(claimed.unwrap(), "acquired 1");
        records(&new) > 0
    })
    .await;
    let left = records(&old);
    for number in 1_001..=1_020 {
        assert!(apply(&store, number, claim('a')).await.is_ok());
    }
    assert_eq!(records(&old), left, "nothing goes there any more");
}

#[tokio::test]
async fn a_sentinel_that_was_cut_off_is_outvoted() {
    let (Some(right), Some(wrong)) = (Redis::start(&[]), Redis::start(&[])) else {
        return;
    };
    let named = [wrong.addr(), right.addr(), right.addr()].map(Namer::of);
    let [first, second, third] = &named;
    for order in [
        [first, second, third],
        [second, first, third],
        [second, third, first],
    ] {
        let store = stores(url(&order), 0, Duration::from_secs(5)).handle();
        for number in 1..=5 {
            assert!(apply(&store, number, claim('a')).await.is_ok());
        }
    }
    assert_eq!((records(&right), records(&wrong)), (5, 0));
}

#[tokio::test]
async fn one_that_was_cut_off_and_is_fast_is_outvoted_by_most_that_are_late() {
    let (Some(right), Some(wrong)) = (Redis::start(&[]), Redis::start(&[])) else {
        return;
    };
    let fast = Namer::of(wrong.addr());
    let late = [(); 2].map(|()| Namer::late_of(right.addr(), Duration::from_secs(1)));
    let store = stores(url(&[&fast, &late[0], &late[1]]), 0, Duration::from_secs(5)).handle();
    for number in 1..=5 {
        assert!(apply(&store, number, claim('a')).await.is_ok());
    }
    assert_eq!((records(&right), records(&wrong)), (5, 0));
}

#[tokio::test]
async fn whoever_is_named_and_no_master_gets_nothing() {
    let (Some(master), Some(server)) = (Redis::start(&[]), Redis::start(&[])) else {
        return;
    };
    let namer = Namer::of(server.addr());
    let store = stores(url(&[&namer]), 0, TIMEOUT).handle();
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = apply(&store, 1, claim('a')).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert_eq!(error.delivery, Delivery::NotSent);
    assert!(error.message.ends_with("which is no master now"), "{error}");
    namer.name(master.addr());
    in_time("the master is found", async || {
        apply(&store, 1, claim('a')).await.is_ok()
    })
    .await;
}
