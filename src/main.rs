//! The `retrysafe` binary.
fn main() {}
