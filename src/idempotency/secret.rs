//! R8: a secret that makes stored hashes useless to whoever reads the store.
//!
//! Without it anybody who sees a record can try keys, credentials and bodies until one fits. With it
//! record keys and fingerprints are HMACs (RFC 2104). It is part of the identity of every key: with
//! another secret all keys are new.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// `store.secret`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Octets at least: as many as the hash has.
    pub const SHORTEST: usize = 32;

    /// `None`: too short to be one.
    pub fn new(octets: &[u8]) -> Option<Self> {
        (octets.len() >= Self::SHORTEST).then(|| Self(octets.into()))
    }

    /// What stands for `digest` in a store.
    pub(super) fn over(&self, digest: &[u8; 32]) -> [u8; 32] {
        // A key of any length is one for HMAC, so this never falls back.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return [0; 32];
        };
        mac.update(digest);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_hmac_sha_256() {
        // RFC 4231 has no message of 32 octets; this pair is from another implementation.
        let secret = Secret::new(&[0x0b; 32]).unwrap();
        let hex = crate::idempotency::RecordKey(secret.over(&[0; 32])).to_string();
        assert_eq!(hex, KNOWN);
        assert!(Secret::new(&[1; 31]).is_none());
        assert_eq!(format!("{secret:?}"), "Secret(***)");
    }

    const KNOWN: &str = "abf0195cf7a503e61897b7bb6f36beb7713f7bbf6a6c68ad4b5059da47670135";
}
