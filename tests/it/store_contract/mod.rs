//! The store contract: one list of cases, every pair of operations, and random play, each run
//! against every store and checked against `transition()`, the specification.
//!
//! `bench.rs` makes the stores and their time, `cases.rs` holds the list, `pairs.rs` and
//! `property.rs` compare with the specification step by step.

pub(crate) mod bench;
mod cases;
mod file;
mod memory;
pub(crate) mod operations;
mod pairs;
mod property;

use bench::{Bench, Kind};

/// Runs `check` against one store on a runtime of its own.
fn on<F: AsyncFnOnce(Bench)>(kind: Kind, check: F) {
    let runtime = kind.runtime();
    runtime.block_on(async {
        if let Some(bench) = Bench::new(kind) {
            check(bench).await;
        }
    });
}

macro_rules! for_every_store {
    ($($name:ident = $kind:expr;)*) => {$(
        mod $name {
            use super::bench::Kind;
            #[allow(unused_imports)]
            use crate::support::{postgres_releases::Release, redis::Flavour};

            const KIND: Kind = $kind;

            #[test]
            fn keeps_the_list() {
                super::on(KIND, super::cases::all);
            }

            #[test]
            fn keeps_every_pair_in_both_orders_and_doubled() {
                super::on(KIND, super::pairs::all);
            }

            #[test]
            fn plays_like_the_specification() {
                super::property::play(KIND);
            }
        }
    )*};
}

for_every_store! {
    memory_store = Kind::Memory;
    file_store = Kind::File;
    sealed_file_store = Kind::SealedFile;
    redis_store = Kind::Redis(Flavour::Installed);
    sealed_redis_store = Kind::SealedRedis;
    redis_62_store = Kind::Redis(Flavour::Redis62);
    valkey_store = Kind::Redis(Flavour::Valkey);
    confirmed_store = Kind::Confirmed;
    sentinel_store = Kind::Sentinel;
    cluster_store = Kind::Cluster;
    postgres_store = Kind::Postgres(Release::Installed);
    postgres_14_store = Kind::Postgres(Release::V14);
    postgres_16_store = Kind::Postgres(Release::V16);
    postgres_17_store = Kind::Postgres(Release::V17);
    postgres_18_store = Kind::Postgres(Release::V18);
    sealed_postgres_store = Kind::SealedPostgres;
    tiered_store = Kind::Tiered;
}

/// The list itself is checked too: what it expects is what the specification says.
#[test]
fn the_list_says_what_the_specification_says() {
    on(Kind::Specification, cases::all);
}
