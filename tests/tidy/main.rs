//! House rules as tests: rooms, sizes, words, packages, documents. No network, no server.
//!
//! Each rule looks at files, says how many it looked at, and fails with file and line. Exemptions
//! are data with a reason; one that is no longer needed fails as well, so the lists can only shrink.

// Helpers of tests are tests too; clippy's exception knows only functions marked as such.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod documents;
mod house;
mod packages;
mod rooms;
mod source;

/// Fails with all findings at once.
fn no_findings(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}
