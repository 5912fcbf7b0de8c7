//! One request from end to end.
//!
//! `handle.rs` is straight code and the only place that branches on the rules; what it calls either
//! decides (pure, from `idempotency/`) or does one thing (read, wait, execute, rewrite).
//!
//! ```text
//! handle ─ inspect ─ route ─┬ not covered ─► passthrough (streams)
//!                           └ covered ─ key ─ body ─ fingerprint ─ claim ─┬ acquired ─► execution
//!                                                                         └ held ─ judge ─┬ replay
//!                                                                                         ├ wait
//!                                                                                         └ problem
//! ```
//!
//! Invariant: no covered request reaches the upstream without a confirmed lease, unless
//! `on_store_error = "pass"` says so.
//!
//! Deliberately absent: sockets and connections (`server/`), store drivers, configuration files.

mod body;
mod budget;
mod call;
mod covered;
mod execution;
mod expectation;
mod handle;
mod intake;
mod passage;
mod passthrough;
mod phase;
mod problem;
mod replay;
mod request;
mod resolve;
mod rewrite;
mod settings;
mod shared;
mod tunnel;
mod upstream;
mod waiting;

pub use body::{Body, BodyError, Fed};
pub use phase::{Phase, Phases};
pub use settings::{HostHeader, HostPort, Settings, Underscores, UpstreamSettings, UpstreamUrl};
pub use shared::{Proxy, Shared};
pub use waiting::WaitingRoom;
