//! R25: stored octets are a record, whole and the same again, or they are unreadable.

use bytes::Bytes;
use retrysafe::idempotency::codec::{decode, encode};

/// The octets are what a store holds.
pub fn check(data: &[u8]) {
    let stored = Bytes::copy_from_slice(data);
    let Ok(record) = decode(&stored) else {
        return;
    };
    let again = encode(&record);
    assert_eq!(decode(&again).as_ref(), Ok(&record));
    // A record cut short is none.
    for end in 0..stored.len() {
        assert!(decode(&stored.slice(..end)).is_err(), "cut at {end}");
    }
}
