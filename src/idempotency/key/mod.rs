//! R4, R5: what is an idempotency key.
//!
//! A value that begins with DQUOTE must be a complete sf-string Item (RFC 9651 section 3.3.3,
//! parameters allowed and ignored); any other value is a bare key. Identity is the unescaped text,
//! octet by octet: no case folding, no percent-decoding.

use http::HeaderMap;
use thiserror::Error;

use super::policy::{KeyFormat, KeyPolicy, KeySyntax};

/// A parsed key: visible ASCII and, if it was quoted, spaces.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The unescaped text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Raw keys never reach a log.
impl std::fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IdempotencyKey({} characters)", self.0.len())
    }
}

/// Why a value is not a key (R5). The text is shown to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// More than one field line, equal or not.
    #[error("the key was sent in more than one field line")]
    Repeated,
    /// Nothing between the quotes, or nothing at all.
    #[error("the key is empty")]
    Empty,
    /// Octets outside ASCII, or controls.
    #[error("the key holds characters other than visible ASCII")]
    NotAscii,
    /// Starts with a quote and is no sf-string.
    #[error("the quoted key is not a complete structured-field string (RFC 9651)")]
    Malformed,
    /// A bare key with a character that only a quoted one may hold.
    #[error("an unquoted key may not hold blanks, quotes, commas, semicolons or backslashes")]
    NotBare,
    /// Bare, where only quoted keys are accepted.
    #[error(
        "the key must be a quoted string, for example \"8e03978e-40d5-43e8-bc93-6894a57f9324\""
    )]
    NotQuoted,
    /// Longer than `key.max_length`.
    #[error("the key is longer than {0} characters")]
    TooLong(usize),
    /// `key.format = "uuid"`.
    #[error("the key must be a UUID")]
    NotUuid,
    /// R7: header, query or body carry different keys.
    #[error("the key differs between the places that carry it")]
    Conflicting,
}

/// Reads the key from the request's fields: `Ok(None)` where no line carries one.
pub fn from_headers(
    headers: &HeaderMap,
    policy: &KeyPolicy,
) -> Result<Option<IdempotencyKey>, KeyError> {
    let names = std::iter::once(&policy.header).chain(&policy.aliases);
    let mut lines = names.flat_map(|name| headers.get_all(name));
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(KeyError::Repeated);
    }
    parse(line.as_bytes(), policy).map(Some)
}

/// Parses one field value.
pub fn parse(value: &[u8], policy: &KeyPolicy) -> Result<IdempotencyKey, KeyError> {
    let value = value.trim_ascii();
    if !value
        .iter()
        .all(|octet| matches!(octet, b'\t' | 0x20..=0x7e))
    {
        return Err(KeyError::NotAscii);
    }
    let text = match value.split_first() {
        None => return Err(KeyError::Empty),
        Some((b'"', rest)) => sf_string(rest).ok_or(KeyError::Malformed)?,
        Some(_) if policy.syntax == KeySyntax::Strict => return Err(KeyError::NotQuoted),
        Some(_) => bare(value)?,
    };
    plain(text, policy)
}

/// Checks a key that comes from a query or a body (R7), where no quoting applies.
pub fn plain(text: String, policy: &KeyPolicy) -> Result<IdempotencyKey, KeyError> {
    if text.is_empty() {
        return Err(KeyError::Empty);
    }
    if !text.bytes().all(|octet| matches!(octet, 0x20..=0x7e)) {
        return Err(KeyError::NotAscii);
    }
    if text.len() > policy.max_length {
        return Err(KeyError::TooLong(policy.max_length));
    }
    if policy.format == KeyFormat::Uuid && !is_uuid(&text) {
        return Err(KeyError::NotUuid);
    }
    Ok(IdempotencyKey(text))
}

fn bare(value: &[u8]) -> Result<String, KeyError> {
    let forbidden = |octet: &u8| matches!(octet, b' ' | b'\t' | b'"' | b',' | b';' | b'\\');
    if value.iter().any(forbidden) {
        return Err(KeyError::NotBare);
    }
    String::from_utf8(value.to_vec()).map_err(|_| KeyError::NotAscii)
}

/// The text of an sf-string whose opening quote is already read, if nothing but parameters follows.
fn sf_string(rest: &[u8]) -> Option<String> {
    let mut text = String::new();
    let mut octets = rest.iter();
    loop {
        match octets.next()? {
            b'"' => break,
            b'\\' => match octets.next()? {
                escaped @ (b'"' | b'\\') => text.push(char::from(*escaped)),
                _ => return None,
            },
            octet @ 0x20..=0x7e => text.push(char::from(*octet)),
            _ => return None,
        }
    }
    parameters(octets.as_slice()).then_some(text)
}

/// RFC 9651 section 3.1.2: `*( ";" *SP key [ "=" bare-item ] )`.
fn parameters(mut rest: &[u8]) -> bool {
    while let Some((b';', after)) = rest.split_first() {
        let after = after.trim_ascii_start();
        let name_end = after
            .iter()
            .position(
                |octet| !matches!(octet, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'),
            )
            .unwrap_or(after.len());
        let (name, after) = after.split_at(name_end);
        if !matches!(name.first(), Some(b'a'..=b'z' | b'*')) {
            return false;
        }
        rest = match after.split_first() {
            Some((b'=', value)) => match bare_item(value) {
                Some(rest) => rest,
                None => return false,
            },
            _ => after,
        };
    }
    rest.is_empty()
}

/// Skips one bare item of a parameter: string, token, number, boolean, binary, date or display
/// string. Only its end matters: parameters are ignored.
fn bare_item(value: &[u8]) -> Option<&[u8]> {
    let skip = |from: usize, ok: fn(u8) -> bool| {
        let tail = value.get(from..)?;
        let end = tail
            .iter()
            .position(|octet| !ok(*octet))
            .unwrap_or(tail.len());
        (end > 0).then(|| tail.get(end..)).flatten()
    };
    match value.first()? {
        b'"' => quoted_end(value.get(1..)?),
        b'%' if value.get(1) == Some(&b'"') => quoted_end(value.get(2..)?),
        b':' => {
            let end = value.get(1..)?.iter().position(|octet| *octet == b':')?;
            let content = value.get(1..=end)?;
            let base64 = |octet: &u8| matches!(octet, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' | b'=');
            content
                .iter()
                .all(base64)
                .then(|| value.get(end + 2..))
                .flatten()
        }
        b'?' => matches!(value.get(1), Some(b'0' | b'1'))
            .then(|| value.get(2..))
            .flatten(),
        b'@' | b'-' => skip(1, |octet| matches!(octet, b'0'..=b'9' | b'.' | b'-')),
        b'0'..=b'9' => skip(0, |octet| matches!(octet, b'0'..=b'9' | b'.')),
        b'A'..=b'Z' | b'a'..=b'z' | b'*' => skip(0, is_token),
        _ => None,
    }
}

fn quoted_end(rest: &[u8]) -> Option<&[u8]> {
    let mut octets = rest.iter();
    loop {
        match octets.next()? {
            b'"' => return Some(octets.as_slice()),
            b'\\' => {
                octets.next()?;
            }
            _ => {}
        }
    }
}

fn is_token(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&octet)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, octet)| match at {
            8 | 13 | 18 | 23 => octet == b'-',
            _ => octet.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests;
