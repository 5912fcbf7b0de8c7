//! The rules, pure and synchronous: what is a key, what is the same request, what a record may
//! become, and what a request that finds a record gets.
//!
//! Invariant: nothing here waits, reads a clock, or does I/O. Time comes in as a number, the store's
//! answer as a value; so every rule is a function that a test, a property test or a model can call.
//! The memory and file stores run [`transition()`] itself, the Redis scripts are tested against it.
//!
//! Deliberately absent: HTTP connections, configuration files, metrics, logs.
//!
//! Read next: `transition/` (the specification of every store), `decision.rs`, `settlement.rs`.

pub mod codec;
pub mod decision;
pub mod fingerprint;
pub mod grpc;
pub mod headers;
pub mod json;
pub mod key;
pub mod policy;
pub mod record;
pub mod scope;
pub mod secret;
pub mod settlement;
pub mod transition;

pub use decision::{Decision, judge};
pub use fingerprint::Fingerprint;
pub use key::IdempotencyKey;
pub use policy::Policy;
pub use record::{Answer, Attempt, Owner, Record, State};
pub use scope::{Identity, RecordKey};
pub use secret::Secret;
pub use settlement::{Exchange, Settlement, settle};
pub use transition::{Operation, Outcome, transition};
