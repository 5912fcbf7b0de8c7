//! R10: what must not change between two tries, as hashes.
//!
//! A fingerprint keeps one digest for the whole and one per part. The whole decides under the same
//! profile; the parts say *which* one differs, and let two profiles (an older and a newer
//! configuration) compare what both have. Values never appear, only hashes of them.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, Method};
use sha2::{Digest, Sha256};

use super::headers::is_method_override;
use super::json;
use super::policy::{BodyMode, FingerprintPolicy};
use super::secret::Secret;

/// Version of the framing below. A new number is a new profile.
const VERSION: u8 = 1;

/// The hashed identity of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// First eight octets of the SHA-256 over version and settings.
    pub profile: u64,
    /// SHA-256 over all parts, length-framed.
    pub digest: [u8; 32],
    /// One digest per part, in the order of the profile.
    pub parts: Arc<[Part]>,
}

/// One part of a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it was taken from.
    pub kind: PartKind,
    /// The field's name, or the body's mode and ignored pointers; else empty.
    pub name: Box<str>,
    /// First 16 octets of the part's SHA-256; `None` where the request has no such part.
    pub digest: Option<[u8; 16]>,
}

/// What a part was taken from. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PartKind {
    /// The method.
    Method = 1,
    /// The path as sent.
    Path = 2,
    /// The query as sent.
    Query = 3,
    /// A request field of `fingerprint.headers`.
    Header = 4,
    /// The method-override fields (R27).
    Override = 5,
    /// The body.
    Body = 6,
    /// A field of `fingerprint.caller`.
    Caller = 7,
}

impl PartKind {
    /// The kind stored as `number`.
    pub fn from_number(number: u8) -> Option<Self> {
        [
            Self::Method,
            Self::Path,
            Self::Query,
            Self::Header,
            Self::Override,
            Self::Body,
            Self::Caller,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// What is hashed.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The request's method.
    pub method: &'a Method,
    /// Its path as sent.
    pub path: &'a str,
    /// Its query as sent, without `?`.
    pub query: Option<&'a str>,
    /// Its fields.
    pub headers: &'a HeaderMap,
    /// Its whole body.
    pub body: &'a [u8],
}

/// How two fingerprints compare (R11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The same request.
    Same,
    /// A caller part differs. Nothing else is said.
    OtherCredentials,
    /// These parts differ: names for people, never values.
    Differs(Vec<String>),
}

impl Fingerprint {
    /// Hashes a request under the settings of its route, with the secret if there is one.
    pub(super) fn of(
        subject: Subject<'_>,
        policy: &FingerprintPolicy,
        secret: Option<&Secret>,
    ) -> Self {
        let mut parts = parts(subject, policy);
        if let Some(secret) = secret {
            for (part, full) in &mut parts {
                *full = full.map(|full| secret.over(&full));
                part.digest = full.map(|full| short(&full));
            }
        }
        let mut profile = Framed::new();
        profile.push(&[VERSION]);
        let mut whole = Framed::new();
        whole.push(&[VERSION]);
        for (part, full) in &parts {
            profile.push(&[part.kind as u8]);
            profile.push(part.name.as_bytes());
            whole.push(&[part.kind as u8]);
            whole.push(part.name.as_bytes());
            whole.push_optional(full.as_ref().map(<[u8; 32]>::as_slice));
        }
        let mut short = [0; 8];
        short.copy_from_slice(profile.finish().split_at(8).0);
        Self {
            profile: u64::from_be_bytes(short),
            digest: whole.finish(),
            parts: parts.into_iter().map(|(part, _)| part).collect(),
        }
    }

    /// Compares what was recorded with what was sent now.
    pub fn compare(&self, now: &Self) -> Comparison {
        if self.profile == now.profile && self.digest == now.digest {
            return Comparison::Same;
        }
        let mut differing = Vec::new();
        for part in self.parts.iter() {
            let same_part = now
                .parts
                .iter()
                .find(|other| other.kind == part.kind && other.name == part.name);
            let Some(other) = same_part else { continue };
            if other.digest == part.digest {
                continue;
            }
            if part.kind == PartKind::Caller {
                return Comparison::OtherCredentials;
            }
            differing.push(part.describe());
        }
        if self.profile == now.profile && differing.is_empty() {
            // Only the 128-bit parts collide: still another request.
            differing.push("request".to_owned());
        }
        if differing.is_empty() {
            Comparison::Same
        } else {
            Comparison::Differs(differing)
        }
    }
}

impl Part {
    fn describe(&self) -> String {
        match self.kind {
            PartKind::Method => "method".to_owned(),
            PartKind::Path => "path".to_owned(),
            PartKind::Query => "query".to_owned(),
            PartKind::Header => format!("header {}", self.name),
            PartKind::Override => "method override".to_owned(),
            PartKind::Body => "body".to_owned(),
            PartKind::Caller => "credentials".to_owned(),
        }
    }
}

type Hashed = (Part, Option<[u8; 32]>);

fn parts(subject: Subject<'_>, policy: &FingerprintPolicy) -> Vec<Hashed> {
    let mut parts = Vec::with_capacity(5 + policy.headers.len() + policy.caller.len());
    parts.push(part(
        PartKind::Method,
        "",
        Some(sha(subject.method.as_str().as_bytes())),
    ));
    parts.push(part(PartKind::Path, "", Some(sha(subject.path.as_bytes()))));
    if policy.query {
        parts.push(part(
            PartKind::Query,
            "",
            subject.query.map(|query| sha(query.as_bytes())),
        ));
    }
    for name in &policy.headers {
        parts.push(part(
            PartKind::Header,
            name.as_str(),
            field(subject.headers, name),
        ));
    }
    parts.push(part(PartKind::Override, "", overrides(subject.headers)));
    if let Some(body) = body(subject.body, policy) {
        parts.push(body);
    }
    for name in &policy.caller {
        parts.push(part(
            PartKind::Caller,
            name.as_str(),
            field(subject.headers, name),
        ));
    }
    parts
}

fn part(kind: PartKind, name: &str, full: Option<[u8; 32]>) -> Hashed {
    let digest = full.map(|full| short(&full));
    (
        Part {
            kind,
            name: name.into(),
            digest,
        },
        full,
    )
}

fn short(full: &[u8; 32]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(full.split_at(16).0);
    short
}

fn body(body: &[u8], policy: &FingerprintPolicy) -> Option<Hashed> {
    let name = match policy.body {
        BodyMode::None => return None,
        BodyMode::Raw => "raw".to_owned(),
        BodyMode::Json => policy
            .ignore
            .iter()
            .fold("json".to_owned(), |name, pointer| {
                format!("{name} {}", pointer.as_str())
            }),
    };
    let canonical = match policy.body {
        BodyMode::Json => json::canonical(body, &policy.ignore),
        _ => None,
    };
    // What is no JSON is compared raw, and never equals a canonical form: another frame.
    let mut framed = Framed::new();
    match &canonical {
        Some(canonical) => framed.push_tagged(1, canonical),
        None => framed.push_tagged(0, body),
    }
    Some(part(PartKind::Body, &name, Some(framed.finish())))
}

fn field(headers: &HeaderMap, name: &HeaderName) -> Option<[u8; 32]> {
    let mut values = headers.get_all(name).iter().peekable();
    values.peek()?;
    let mut framed = Framed::new();
    for value in values {
        framed.push(value.as_bytes());
    }
    Some(framed.finish())
}

fn overrides(headers: &HeaderMap) -> Option<[u8; 32]> {
    let mut names: Vec<_> = headers
        .keys()
        .filter(|name| is_method_override(name.as_str()))
        .collect();
    names.sort_unstable_by_key(|name| name.as_str());
    let mut framed = Framed::new();
    for name in &names {
        for value in headers.get_all(*name) {
            framed.push(name.as_str().as_bytes());
            framed.push(value.as_bytes());
        }
    }
    (!names.is_empty()).then(|| framed.finish())
}

fn sha(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// SHA-256 over length-framed pieces: no two lists of pieces give the same octets (R8, R10).
#[derive(Debug)]
pub(crate) struct Framed(Sha256);

impl Framed {
    pub(crate) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.push_tagged(1, piece);
    }

    pub(crate) fn push_optional(&mut self, piece: Option<&[u8]>) {
        match piece {
            Some(piece) => self.push_tagged(1, piece),
            None => self.push_tagged(0, &[]),
        }
    }

    fn push_tagged(&mut self, tag: u8, piece: &[u8]) {
        self.0.update([tag]);
        self.0.update((piece.len() as u64).to_be_bytes());
        self.0.update(piece);
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests;
