//! The one integration binary: one link, one run. A module file that is not listed fails the run.

#![allow(unreachable_pub)]
// one binary: nothing is reachable
// Helpers of tests are tests too; clippy's exception knows only functions marked as such.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod basics;
mod commands;
mod config;
mod conformance;
mod corpora;
mod crashes;
mod desync;
mod documents;
mod duplicates;
mod expectations;
mod frames;
mod guarantees;
mod idle;
mod leases;
mod ledger;
mod limits;
mod losses;
mod multiplexed;
mod operators;
mod outages;
mod outcomes;
mod passthrough;
mod postgres_faults;
mod redis_faults;
mod redis_groups;
mod refusals;
mod replicas;
mod secrets;
mod sizes;
mod store_contract;
mod streams;
mod support;
mod tls;
mod transparency;
mod unconfirmed;
mod upgrades;
mod upstreams;
mod wire;

#[test]
fn every_module_file_is_listed() {
    let source = include_str!("main.rs");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        if module != "main" {
            assert!(
                source.contains(&format!("mod {module};")),
                "tests/it/{name} is not listed"
            );
            seen += 1;
        }
    }
    assert!(seen > 0);
}
