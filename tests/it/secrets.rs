//! R8: `store.secret` is part of what a key is, and what the store holds tells nothing without it.

use crate::commands::{code, said};
use crate::support::client::{self, request};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Tables, retrysafe};
use crate::support::upstream::Upstream;

const SECRET: &str = "RETRYSAFE__STORE__SECRET";
const ONE: &str = "one secret of thirty-two octets..";
const OTHER: &str = "another secret of 32 octets......";

#[test]
fn a_secret_is_part_of_every_key_and_of_every_hash() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables);
    let paid = |plan: &Plan| {
        let sidecar = plan.start();
        let fields = [("Idempotency-Key", "k"), ("Authorization", "Bearer t")];
        let octets = request("POST", "/pay", &fields, "x");
        let answer = client::send(sidecar.addr, &octets);
        (answer.text(), answer.is_replay(), sidecar)
    };
    let (text, replayed, _) = paid(&plan);
    assert_eq!((text.as_str(), replayed), ("{\"n\":1}", false));
    let one = plan.clone().env(SECRET, ONE);
    for (number, (plan, expected, again)) in [
        (&one, 2, false),
        (&one, 2, true),
        (&plan.clone().env(SECRET, OTHER), 3, false),
        (&plan, 1, true),
    ]
    .into_iter()
    .enumerate()
    {
        let (text, replayed, _sidecar) = paid(plan);
        assert_eq!(text, format!("{{\"n\":{expected}}}"), "step {number}");
        assert_eq!(replayed, again, "step {number}");
    }
    // Not one hash stands in two of the three records but those of nothing.
    let octets = |key: &String| match redis.cli(&["GET", key]) {
        redis::Value::BulkString(octets) => octets,
        other => panic!("{other:?} is no record"),
    };
    let records: Vec<Vec<u8>> = redis.records().iter().map(octets).collect();
    assert_eq!(records.len(), 3);
    let body = |record: &[u8]| {
        let name = record.windows(3).position(|piece| piece == b"raw").unwrap();
        record[name + 4..name + 20].to_vec()
    };
    let hashes: Vec<_> = records.iter().map(|record| body(record)).collect();
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
    // Operators name the key, with the same secret.
    let (_, _, sidecar) = paid(&one);
    let config = sidecar.folder().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replacen("[store]\n", &format!("[store]\nsecret = \"{ONE}\"\n"), 1);
    std::fs::write(&config, text).unwrap();
    let shown = retrysafe(sidecar.folder(), &["key", "show", "k"]);
    assert_eq!(code(&shown), 0, "{}", said(&shown));
    assert!(!said(&shown).contains(ONE));
}
