//! The stored form of a record: a fixed head, then tagged sections.
//!
//! ```text
//! 0        version (1)
//! 1        state: 1 in flight, 2 completed, 3 completed not kept, 4 failed, 5 unresolved
//! 2..18    owner
//! 18..22   attempt, big endian
//! 22..30   lease in milliseconds, 0 unless in flight
//! 30..38   retention in milliseconds
//! 38..54   first 16 octets of SHA-256 over everything else
//! 54..     sections: tag (1), length (4), octets; an unknown tag is skipped
//! ```
//!
//! Version 2 (`wrapped.rs`) has the same head and one section around all others.
//!
//! The head stands at fixed places because the Redis scripts read it. When a record ends is not in
//! it: that is the store's. R25: what cannot be read is an error, never "absent".

mod read;
pub mod wrapped;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::fingerprint::Fingerprint;
use super::record::{FailedWhy, HeldProblem, Owner, Record, State, UnknownWhy};
use super::transition::millis;
use read::{Reader, Sections};

/// The version this build writes. A new one is readable one release before it is written (R25).
pub const VERSION: u8 = 1;
/// Octets before the sections.
pub const HEAD: usize = 54;

const CHECKSUM: std::ops::Range<usize> = 38..HEAD;

mod tag {
    pub(super) const FINGERPRINT: u8 = 1;
    pub(super) const STATUS: u8 = 2;
    pub(super) const FIELDS: u8 = 3;
    pub(super) const BODY: u8 = 4;
    pub(super) const TRAILERS: u8 = 5;
    pub(super) const COMPLETED_AT: u8 = 6;
    pub(super) const LOCATION: u8 = 7;
    pub(super) const DIGEST: u8 = 8;
    pub(super) const FAILED: u8 = 9;
    pub(super) const UNKNOWN: u8 = 10;
}

/// A stored record that cannot be read (R25).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// Shorter than it says.
    #[error("cut short")]
    Truncated,
    /// Written by a version this build does not know.
    #[error("format version {0} is not known to this build")]
    Version(u8),
    /// The octets are not those that were written.
    #[error("checksum mismatch")]
    Checksum,
    /// In the clear, where everything is sealed.
    #[error("not sealed")]
    NotSealed,
    /// Sealed under a key that is not in the key file.
    #[error("sealed under an unknown key")]
    UnknownKey,
    /// Sealed, and not by the key it names, or for another record.
    #[error("the seal does not fit")]
    Seal,
    /// A part is missing or makes no sense.
    #[error("malformed {0}")]
    Malformed(&'static str),
}

/// The state's number at offset 1.
pub fn state_number(state: &State) -> u8 {
    match state {
        State::InFlight { .. } => 1,
        State::Completed { .. } => 2,
        State::NotKept { .. } => 3,
        State::Failed { .. } => 4,
        State::Unresolved { .. } => 5,
    }
}

/// Encodes a record.
pub fn encode(record: &Record) -> Bytes {
    let mut out = BytesMut::with_capacity(512 + body_len(&record.state));
    out.put_u8(VERSION);
    out.put_u8(state_number(&record.state));
    out.put_slice(&record.owner.0);
    out.put_u32(record.attempt);
    let lease = match record.state {
        State::InFlight { lease, .. } => millis(lease),
        _ => 0,
    };
    out.put_u64(lease);
    out.put_u64(millis(record.retention));
    out.put_bytes(0, CHECKSUM.len());
    put_state(&mut out, &record.state);
    let sum = checksum(&out);
    if let Some(place) = out.get_mut(CHECKSUM) {
        place.copy_from_slice(&sum);
    }
    out.freeze()
}

/// Decodes a record; body and fields share the input's memory.
pub fn decode(stored: &Bytes) -> Result<Record, Unreadable> {
    let mut head = Reader(stored.clone());
    let version = head.u8()?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let number = head.u8()?;
    let owner = Owner(head.array()?);
    let attempt = head.u32()?;
    let lease = Duration::from_millis(head.u64()?);
    let retention = Duration::from_millis(head.u64()?);
    let sum: [u8; 16] = head.array()?;
    if sum != checksum(stored) {
        return Err(Unreadable::Checksum);
    }
    let state = Sections::read(head)?.state(number, lease)?;
    Ok(Record {
        owner,
        attempt,
        retention,
        state,
    })
}

fn body_len(state: &State) -> usize {
    match state {
        State::Completed { answer, .. } => answer.body.len() + 64 * answer.fields.len(),
        _ => 0,
    }
}

fn checksum(bytes: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new();
    let (head, rest) = bytes.split_at(HEAD.min(bytes.len()));
    hash.update(head.get(..CHECKSUM.start).unwrap_or(head));
    hash.update(rest);
    let full: [u8; 32] = hash.finalize().into();
    let mut short = [0; 16];
    short.copy_from_slice(full.split_at(16).0);
    short
}

fn put_state(out: &mut BytesMut, state: &State) {
    if let Some(fingerprint) = state.fingerprint() {
        section(out, tag::FINGERPRINT, |out| {
            put_fingerprint(out, fingerprint);
        });
    }
    match state {
        State::InFlight { .. } => {}
        State::Completed {
            answer,
            completed_at,
            ..
        } => {
            section(out, tag::STATUS, |out| out.put_u16(answer.status));
            section(out, tag::COMPLETED_AT, |out| out.put_u64(*completed_at));
            section(out, tag::FIELDS, |out| put_fields(out, &answer.fields));
            if !answer.trailers.is_empty() {
                section(out, tag::TRAILERS, |out| put_fields(out, &answer.trailers));
            }
            section(out, tag::BODY, |out| out.put_slice(&answer.body));
        }
        State::NotKept {
            status,
            location,
            digest,
            completed_at,
            ..
        } => {
            section(out, tag::STATUS, |out| out.put_u16(*status));
            section(out, tag::COMPLETED_AT, |out| out.put_u64(*completed_at));
            if let Some(location) = location {
                section(out, tag::LOCATION, |out| out.put_slice(location));
            }
            if let Some(digest) = digest {
                section(out, tag::DIGEST, |out| out.put_slice(digest));
            }
        }
        State::Failed { why } => section(out, tag::FAILED, |out| put_failed(out, *why)),
        State::Unresolved { why, problem, .. } => section(out, tag::UNKNOWN, |out| {
            let number = UnknownWhy::ALL
                .iter()
                .position(|known| known == why)
                .unwrap_or_default();
            out.put_u8(u8::try_from(number).unwrap_or_default());
            out.put_u8(problem.map_or(0, problem_number));
        }),
    }
}

fn section(out: &mut BytesMut, tag: u8, fill: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let length_at = out.len();
    out.put_u32(0);
    let start = out.len();
    fill(out);
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(length_at..start) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

fn put_fingerprint(out: &mut BytesMut, fingerprint: &Fingerprint) {
    out.put_u64(fingerprint.profile);
    out.put_slice(&fingerprint.digest);
    for part in fingerprint.parts.iter() {
        out.put_u8(part.kind as u8);
        out.put_u16(u16::try_from(part.name.len()).unwrap_or(u16::MAX));
        out.put_slice(part.name.as_bytes());
        match part.digest {
            Some(digest) => {
                out.put_u8(1);
                out.put_slice(&digest);
            }
            None => out.put_u8(0),
        }
    }
}

fn put_fields(out: &mut BytesMut, fields: &[(Bytes, Bytes)]) {
    for (name, value) in fields {
        out.put_u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
        out.put_slice(name);
        out.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        out.put_slice(value);
    }
}

fn put_failed(out: &mut BytesMut, why: FailedWhy) {
    match why {
        FailedWhy::NotSent => out.put_u8(1),
        FailedWhy::Status {
            status,
            retry_after,
        } => {
            out.put_u8(2);
            out.put_u16(status);
            out.put_u32(retry_after);
        }
        FailedWhy::Operator => out.put_u8(3),
    }
}

fn problem_number(problem: HeldProblem) -> u8 {
    match problem {
        HeldProblem::OutcomeUnknown => 1,
        HeldProblem::ConnectionLost => 2,
        HeldProblem::BadResponse => 3,
        HeldProblem::Timeout => 4,
    }
}

#[cfg(test)]
mod tests;
