//! R8: the record key, the only form of a key that reaches a store.
//!
//! SHA-256 over length-framed parts, so that no separator inside a part moves a border. The scope's
//! values are taken from the request by the proxy; an absent part is a value of its own.

use std::fmt;

use super::fingerprint::{Fingerprint, Framed, Subject};
use super::key::IdempotencyKey;
use super::policy::FingerprintPolicy;
use super::secret::Secret;

/// Names one record in a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey(pub [u8; 32]);

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordKey({self})")
    }
}

impl RecordKey {
    /// The short form in logs: the first 12 hexadecimal digits.
    pub fn short(&self) -> String {
        self.to_string().chars().take(12).collect()
    }
}

/// One part of the scope as found in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeValue {
    /// How the configuration names it, `header:x-tenant`.
    pub name: String,
    /// What the request has there.
    pub value: Option<Vec<u8>>,
}

/// What a key is within its scope.
#[derive(Debug, Clone, Copy)]
pub enum KeyText<'a> {
    /// A client's (or a minted) key.
    Key(&'a IdempotencyKey),
    /// R6 `derive`: the fingerprint stands for the key, in a space of its own.
    Derived(&'a Fingerprint),
}

/// What makes a key one key: changing any of it forgets all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `store.namespace`
    pub namespace: String,
    /// `store.secret`
    pub secret: Option<Secret>,
}

impl Identity {
    /// The record key of a key within a scope.
    pub fn record_key(&self, scope: &[ScopeValue], key: KeyText<'_>) -> RecordKey {
        let plain = plain_key(&self.namespace, scope, key);
        RecordKey(match &self.secret {
            None => plain,
            Some(secret) => secret.over(&plain),
        })
    }

    /// The fingerprint of a request under the settings of its route.
    pub fn fingerprint(&self, subject: Subject<'_>, policy: &FingerprintPolicy) -> Fingerprint {
        Fingerprint::of(subject, policy, self.secret.as_ref())
    }
}

fn plain_key(namespace: &str, scope: &[ScopeValue], key: KeyText<'_>) -> [u8; 32] {
    let mut framed = Framed::new();
    framed.push(b"retrysafe record key 1");
    framed.push(namespace.as_bytes());
    framed.push(&(scope.len() as u64).to_be_bytes());
    for part in scope {
        framed.push(part.name.as_bytes());
        framed.push_optional(part.value.as_deref());
    }
    match key {
        KeyText::Key(key) => {
            framed.push(b"key");
            framed.push(key.as_str().as_bytes());
        }
        KeyText::Derived(fingerprint) => {
            framed.push(b"derived");
            framed.push(&fingerprint.digest);
        }
    }
    framed.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_key(namespace: &str, scope: &[ScopeValue], key: KeyText<'_>) -> RecordKey {
        let namespace = namespace.to_owned();
        let secret = None;
        Identity { namespace, secret }.record_key(scope, key)
    }

    use crate::idempotency::key::plain;
    use crate::idempotency::policy::KeyPolicy;

    fn key(text: &str) -> IdempotencyKey {
        plain(text.to_owned(), &KeyPolicy::default()).unwrap()
    }

    fn part(name: &str, value: Option<&str>) -> ScopeValue {
        ScopeValue {
            name: name.to_owned(),
            value: value.map(|value| value.as_bytes().to_vec()),
        }
    }

    #[test]
    fn no_two_scopes_share_a_record_key() {
        let k = key("k");
        let scopes = [
            vec![],
            vec![part("header:a", None)],
            vec![part("header:a", Some(""))],
            vec![part("header:a", Some("x"))],
            vec![part("header:b", Some("x"))],
            vec![part("header:a", Some("x")), part("header:b", None)],
            vec![part("header:a", Some("xheader:b")), part("header:b", None)],
            vec![part("header:b", None), part("header:a", Some("x"))],
        ];
        let mut keys: Vec<_> = scopes
            .iter()
            .map(|scope| record_key("n", scope, KeyText::Key(&k)))
            .collect();
        keys.push(record_key("nk", &[], KeyText::Key(&k)));
        keys.push(record_key("n", &[], KeyText::Key(&key("kk"))));
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn the_record_key_of_a_known_key_never_changes() {
        // A change here forgets every key of every running installation.
        let known = record_key("retrysafe", &[], KeyText::Key(&key("abc")));
        assert_eq!(known.short().len(), 12);
        assert_eq!(known.to_string(), KNOWN);
    }

    #[test]
    fn with_a_secret_it_is_another_and_one_only() {
        let with = |secret: Option<&[u8]>| {
            let identity = Identity {
                namespace: "retrysafe".to_owned(),
                secret: secret.and_then(Secret::new),
            };
            identity
                .record_key(&[], KeyText::Key(&key("abc")))
                .to_string()
        };
        assert_eq!(with(None), KNOWN);
        let (one, other) = (with(Some(&[1; 32])), with(Some(&[2; 32])));
        assert_eq!(one, with(Some(&[1; 32])));
        assert!(one != KNOWN && other != KNOWN && one != other);
    }

    const KNOWN: &str = "55f3e29d7050343ac3a4a800c5196c6e02433946ff411fe62eb3277685acebe1";
}
