//! R10: the canonical form of a JSON body is its own canonical form.

use retrysafe::idempotency::json::canonical;

/// The octets are a body.
pub fn check(data: &[u8]) {
    if let Some(form) = canonical(data, &[]) {
        assert_eq!(canonical(&form, &[]).as_deref(), Some(form.as_slice()));
    }
}
