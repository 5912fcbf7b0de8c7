//! Builders that start real servers on free loopback ports and return where they are bound.

pub mod authority;
pub mod client;
pub mod cut;
pub mod faulty;
pub mod pgbouncer;
pub mod postgres;
pub mod postgres_releases;
mod postgres_standby;
pub mod redis;
pub mod redis_cluster;
pub mod redis_groups;
pub mod sidecar;
pub mod tls_front;
pub mod upstream;

use std::time::Duration;

use tokio::time::Instant;

/// How long anything in a test may take before it counts as never.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks until something is so. For what another process does, which gives no sign of its own.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}: never");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same while the tasks of this runtime go on.
pub async fn in_time(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < until, "{what}: never");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
