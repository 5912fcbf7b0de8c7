//! Retrysafe makes the API behind it safe to retry.
//!
//! A reverse proxy that enforces the `Idempotency-Key` rules, records the upstream's first answer
//! and replays it on every retry. Start with `docs/ARCHITECTURE.md`; the rules that the code
//! quotes by number (R1, R2, …) stand in `docs/protocol.md`.
//!
//! | room | owns |
//! |---|---|
//! | [`idempotency`] | the rules, pure and synchronous |
//! | [`routes`] | which policy applies to a request |
//! | [`store`] | the store contract and its implementations |
//! | [`proxy`] | one request from end to end |
//! | [`server`] | sockets, connections, drain |
//! | [`admin`] | health and metrics over HTTP |
//! | [`config`] | the file, the environment, what they mean |
//! | [`tls`] | certificates, towards clients and towards servers |
//! | [`telemetry`] | metric names, log events |
//! | [`app`] | composition: a configuration becomes a running program |
//! | [`cli`] | the commands |

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod idempotency;
pub mod proxy;
pub mod routes;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod tls;
