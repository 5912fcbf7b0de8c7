//! Format version 2: the same head, and all sections of a record within one.
//!
//! Whoever stores the record says what the wrapping section holds (`store/vault`); here it is octets
//! under a tag. The head stays readable, since the stores' scripts read it.

use bytes::{BufMut, Bytes, BytesMut};

use super::read::Reader;
use super::{CHECKSUM, HEAD, Unreadable, VERSION, checksum};

/// The version of a record whose sections are wrapped.
pub const WRAPPED: u8 = 2;

/// How sections are wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrap {
    /// Sealed: only a holder of the key reads them.
    Sealed,
    /// Packed: compressed.
    Packed,
}

impl Wrap {
    fn tag(self) -> u8 {
        match self {
            Self::Sealed => 128,
            Self::Packed => 129,
        }
    }
}

/// A stored record as far as it can be read without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// As it is.
    Plain,
    /// One wrapping section with this in it.
    Wrapped(Wrap, Bytes),
}

/// What the head of an encoded record says, without its checksum: what a seal is bound to. The
/// version is that of wrapped records.
pub fn bound_head(encoded: &[u8]) -> Option<[u8; CHECKSUM.start]> {
    let mut head: [u8; CHECKSUM.start] = encoded.get(..CHECKSUM.start)?.try_into().ok()?;
    if let Some(version) = head.first_mut() {
        *version = WRAPPED;
    }
    Some(head)
}

/// The sections of an encoded record.
pub fn sections(encoded: &Bytes) -> Bytes {
    encoded.slice(HEAD.min(encoded.len())..)
}

/// The same head over one section with `content`.
pub fn wrap(head: &[u8; CHECKSUM.start], how: Wrap, content: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD + 5 + content.len());
    out.put_slice(head);
    out.put_bytes(0, CHECKSUM.len());
    out.put_u8(how.tag());
    out.put_u32(u32::try_from(content.len()).unwrap_or(u32::MAX));
    out.put_slice(content);
    finish(out)
}

/// How a stored record is to be opened. Its checksum is checked.
pub fn look(stored: &Bytes) -> Result<Stored, Unreadable> {
    match stored.first() {
        Some(&VERSION) => return Ok(Stored::Plain),
        Some(&WRAPPED) => {}
        Some(&version) => return Err(Unreadable::Version(version)),
        None => return Err(Unreadable::Truncated),
    }
    let head = stored.get(..HEAD).ok_or(Unreadable::Truncated)?;
    if head.get(CHECKSUM) != Some(checksum(stored).as_slice()) {
        return Err(Unreadable::Checksum);
    }
    let mut reader = Reader(sections(stored));
    let tag = reader.u8()?;
    let length = reader.length()?;
    let content = reader.take(length)?;
    let how = [Wrap::Sealed, Wrap::Packed]
        .into_iter()
        .find(|how| how.tag() == tag)
        .ok_or(Unreadable::Malformed("wrapping"))?;
    if reader.0.is_empty() {
        Ok(Stored::Wrapped(how, content))
    } else {
        Err(Unreadable::Malformed("wrapping"))
    }
}

/// The record as it was before it was wrapped, with these sections.
pub fn unwrap(stored: &Bytes, sections: &[u8]) -> Result<Bytes, Unreadable> {
    let head = stored.get(..CHECKSUM.start).ok_or(Unreadable::Truncated)?;
    let mut out = BytesMut::with_capacity(HEAD + sections.len());
    out.put_slice(head);
    if let Some(version) = out.first_mut() {
        *version = VERSION;
    }
    out.put_bytes(0, CHECKSUM.len());
    out.put_slice(sections);
    Ok(finish(out))
}

fn finish(mut out: BytesMut) -> Bytes {
    let sum = checksum(&out);
    if let Some(place) = out.get_mut(CHECKSUM) {
        place.copy_from_slice(&sum);
    }
    out.freeze()
}
