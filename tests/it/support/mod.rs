//! Builders that start real servers on free loopback ports and return where they are bound.

// Each module of the binary uses the part it needs.
#![allow(dead_code)]

pub mod client;
pub mod sidecar;
pub mod upstream;

use tokio::time::Instant;

use sidecar::PATIENCE;

/// Looks until something is so. For what another process does, which gives no sign of its own.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}: never");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
pub(crate) mod redis;
