//! The commands. Each one is thin: it calls a room and prints for people.
//!
//! Invariant: no rule about idempotency and no meaning of a key lives here.
//!
//! Deliberately absent: arguments and exit (`main.rs`).

pub mod check;
