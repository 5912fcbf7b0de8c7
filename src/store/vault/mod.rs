//! Records at rest: compressed above a size, sealed under a key.
//!
//! Invariant: with a key nothing is stored in the clear but the head, which the stores need to decide
//! (state, owner, attempt, durations); and nothing in the clear is read as a record, unless
//! `accept_plaintext` says that such records are still to be met. What does not open is unreadable
//! (R25), never absent.
//!
//! A seal is AES-256-GCM under a key of its own: HKDF-SHA256 over the key file's key, 128 random bits
//! and the record key. So no nonce is ever used twice, however many records there are, and a record
//! moved to another key, or under another head, does not open.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use sha2::{Digest as _, Sha256};

use super::{StoreError, StoreErrorKind};
use crate::idempotency::codec::wrapped::{Stored, Wrap, bound_head, look, sections, unwrap, wrap};
use crate::idempotency::codec::{self, Unreadable};
use crate::idempotency::{Record, RecordKey};

const KEY_ID: usize = 8;
const SALT: usize = 16;
/// What LZ4 can make of an octet at most, with room: a record that claims more is none.
const RATIO: usize = 256;
/// How the clear text of a seal begins.
const AS_IT_IS: u8 = 0;
const LZ4: u8 = 1;

/// `[store.encryption]` and `store.compress_above`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VaultSettings {
    /// The first seals, all open. Empty: nothing is sealed.
    pub keys: Vec<SealingKey>,
    /// Records without a seal are still read.
    pub accept_plaintext: bool,
    /// Records from this size on are compressed.
    pub compress_above: Option<usize>,
}

/// 256 bits.
#[derive(Clone, PartialEq, Eq)]
pub struct SealingKey([u8; 32]);

impl SealingKey {
    /// These bits.
    pub fn new(bits: [u8; 32]) -> Self {
        Self(bits)
    }

    /// 32 octets in base64.
    pub fn parse(text: &str) -> Option<Self> {
        let octets = STANDARD.decode(text).ok()?;
        octets.try_into().ok().map(Self)
    }

    /// Names the key in a record, and tells nothing about it.
    fn id(&self) -> [u8; KEY_ID] {
        let mut hash = Sha256::new();
        hash.update(b"retrysafe sealing key id");
        hash.update(self.0);
        let full: [u8; 32] = hash.finalize().into();
        let mut id = [0; KEY_ID];
        id.copy_from_slice(full.split_at(KEY_ID).0);
        id
    }
}

/// What nobody can guess.
pub(super) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut octets = [0; N];
    let filled = SystemRandom::new().fill(&mut octets);
    filled.map(|()| octets).map_err(|_| broken())
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(***)")
    }
}

/// Turns records into what is stored, and back.
pub struct Vault {
    settings: VaultSettings,
    ids: Vec<[u8; KEY_ID]>,
    random: SystemRandom,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Vault {
    /// With these keys and sizes.
    pub fn new(settings: VaultSettings) -> Arc<Self> {
        let ids = settings.keys.iter().map(SealingKey::id).collect();
        Arc::new(Self {
            settings,
            ids,
            random: SystemRandom::new(),
        })
    }

    /// Stores everything as it is.
    pub fn open() -> Arc<Self> {
        Self::new(VaultSettings::default())
    }

    /// What is stored of a record.
    pub(super) fn encode(&self, key: RecordKey, record: &Record) -> Result<Bytes, StoreError> {
        let plain = codec::encode(record);
        let sections = sections(&plain);
        let head = bound_head(&plain).ok_or_else(broken)?;
        let packed = self.packed(&sections);
        let Some(sealing) = self.settings.keys.first() else {
            let wrapped = packed.map(|packed| wrap(&head, Wrap::Packed, &packed));
            return Ok(wrapped.unwrap_or(plain));
        };
        let (how, content) = match &packed {
            Some(packed) => (LZ4, packed.as_slice()),
            None => (AS_IT_IS, sections.as_ref()),
        };
        let mut clear = BytesMut::with_capacity(1 + content.len());
        clear.put_u8(how);
        clear.put_slice(content);
        let sealed = self.seal(sealing, key, &head, clear)?;
        Ok(wrap(&head, Wrap::Sealed, &sealed))
    }

    /// The record of stored octets.
    pub(super) fn decode(&self, key: RecordKey, stored: &Bytes) -> Result<Record, Unreadable> {
        let plaintext = self.settings.keys.is_empty() || self.settings.accept_plaintext;
        match look(stored)? {
            Stored::Plain if plaintext => codec::decode(stored),
            Stored::Wrapped(Wrap::Packed, content) if plaintext => {
                codec::decode(&unwrap(stored, &unpack(&content)?)?)
            }
            Stored::Plain | Stored::Wrapped(Wrap::Packed, _) => Err(Unreadable::NotSealed),
            Stored::Wrapped(Wrap::Sealed, content) => {
                let opened = self.unseal(key, stored, content)?;
                let (how, content) = opened.split_first().ok_or(Unreadable::Truncated)?;
                match *how {
                    AS_IT_IS => codec::decode(&unwrap(stored, content)?),
                    LZ4 => codec::decode(&unwrap(stored, &unpack(content)?)?),
                    _ => Err(Unreadable::Malformed("seal")),
                }
            }
        }
    }

    /// Compressed, if that is wanted and makes it smaller.
    fn packed(&self, sections: &[u8]) -> Option<Vec<u8>> {
        let above = self.settings.compress_above?;
        if sections.len() < above {
            return None;
        }
        let packed = lz4_flex::block::compress_prepend_size(sections);
        (packed.len() < sections.len()).then_some(packed)
    }

    fn seal(
        &self,
        sealing: &SealingKey,
        key: RecordKey,
        head: &[u8],
        mut content: BytesMut,
    ) -> Result<Bytes, StoreError> {
        let mut salt = [0; SALT];
        self.random.fill(&mut salt).map_err(|_| broken())?;
        let derived = derived(sealing, &salt, key).map_err(|_| broken())?;
        let tag = derived
            .seal_in_place_separate_tag(nonce(), Aad::from(head), &mut content)
            .map_err(|_| broken())?;
        let mut sealed = BytesMut::with_capacity(KEY_ID + SALT + content.len() + 16);
        sealed.put_slice(&sealing.id());
        sealed.put_slice(&salt);
        sealed.put_slice(&content);
        sealed.put_slice(tag.as_ref());
        Ok(sealed.freeze())
    }

    fn unseal(
        &self,
        key: RecordKey,
        stored: &Bytes,
        mut content: Bytes,
    ) -> Result<Vec<u8>, Unreadable> {
        if content.len() < KEY_ID + SALT {
            return Err(Unreadable::Truncated);
        }
        let (id, salt) = (content.split_to(KEY_ID), content.split_to(SALT));
        let known = self.ids.iter().position(|known| known[..] == id[..]);
        let sealing = known.and_then(|at| self.settings.keys.get(at));
        let sealing = sealing.ok_or(Unreadable::UnknownKey)?;
        let head = bound_head(stored).ok_or(Unreadable::Truncated)?;
        let derived = derived(sealing, &salt, key).map_err(|_| Unreadable::Seal)?;
        let mut octets = content.to_vec();
        let opened = derived
            .open_in_place(nonce(), Aad::from(head), &mut octets)
            .map_err(|_| Unreadable::Seal)?
            .len();
        octets.truncate(opened);
        Ok(octets)
    }
}

fn unpack(content: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let (size, _) = lz4_flex::block::uncompressed_size(content)
        .map_err(|_| Unreadable::Malformed("compression"))?;
    if size > content.len().saturating_mul(RATIO) {
        return Err(Unreadable::Malformed("compression"));
    }
    lz4_flex::block::decompress_size_prepended(content)
        .map_err(|_| Unreadable::Malformed("compression"))
}

/// The key of one record's one seal.
fn derived(
    sealing: &SealingKey,
    salt: &[u8],
    key: RecordKey,
) -> Result<LessSafeKey, ring::error::Unspecified> {
    let pseudorandom = Salt::new(HKDF_SHA256, salt).extract(&sealing.0);
    let info: [&[u8]; 2] = [b"retrysafe record seal 1", &key.0];
    let unbound = UnboundKey::from(pseudorandom.expand(&info, &AES_256_GCM)?);
    Ok(LessSafeKey::new(unbound))
}

/// A key of its own seals once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn broken() -> StoreError {
    StoreError::not_sent(StoreErrorKind::Internal, "a record could not be sealed")
}

#[cfg(test)]
mod tests;
