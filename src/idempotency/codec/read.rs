//! The reading half: sections in any order, unknown ones skipped, never past the end.

use std::time::Duration;

use bytes::Bytes;

use super::{Unreadable, tag};
use crate::idempotency::fingerprint::{Fingerprint, Part, PartKind};
use crate::idempotency::record::{Answer, FailedWhy, HeldProblem, State, UnknownWhy};

#[derive(Default)]
pub(super) struct Sections {
    fingerprint: Option<Fingerprint>,
    status: Option<u16>,
    fields: Option<Vec<(Bytes, Bytes)>>,
    body: Option<Bytes>,
    trailers: Vec<(Bytes, Bytes)>,
    completed_at: u64,
    location: Option<Bytes>,
    digest: Option<[u8; 32]>,
    failed: Option<FailedWhy>,
    unknown: Option<(UnknownWhy, Option<HeldProblem>)>,
}

impl Sections {
    pub(super) fn read(mut input: Reader) -> Result<Self, Unreadable> {
        let mut sections = Self::default();
        while !input.0.is_empty() {
            let tag = input.u8()?;
            let length = input.length()?;
            let mut section = Reader(input.take(length)?);
            match tag {
                tag::FINGERPRINT => sections.fingerprint = Some(section.fingerprint()?),
                tag::STATUS => sections.status = Some(section.u16()?),
                tag::FIELDS => sections.fields = Some(section.fields()?),
                tag::BODY => sections.body = Some(section.0),
                tag::TRAILERS => sections.trailers = section.fields()?,
                tag::COMPLETED_AT => sections.completed_at = section.u64()?,
                tag::LOCATION => sections.location = Some(section.0),
                tag::DIGEST => sections.digest = Some(section.array()?),
                tag::FAILED => sections.failed = Some(section.failed()?),
                tag::UNKNOWN => sections.unknown = Some(section.unknown()?),
                _ => {}
            }
        }
        Ok(sections)
    }

    pub(super) fn state(self, number: u8, lease: Duration) -> Result<State, Unreadable> {
        let fingerprint = self.fingerprint.ok_or(Unreadable::Malformed("fingerprint"));
        let status = self.status.ok_or(Unreadable::Malformed("status"));
        let completed_at = self.completed_at;
        Ok(match number {
            1 => State::InFlight {
                fingerprint: fingerprint?,
                lease,
            },
            2 => State::Completed {
                fingerprint: fingerprint?,
                answer: Answer {
                    status: status?,
                    fields: self.fields.ok_or(Unreadable::Malformed("fields"))?,
                    body: self.body.ok_or(Unreadable::Malformed("body"))?,
                    trailers: self.trailers,
                },
                completed_at,
            },
            3 => State::NotKept {
                fingerprint: fingerprint?,
                status: status?,
                location: self.location,
                digest: self.digest,
                completed_at,
            },
            4 => State::Failed {
                why: self.failed.ok_or(Unreadable::Malformed("reason"))?,
            },
            5 => {
                let (why, problem) = self.unknown.ok_or(Unreadable::Malformed("reason"))?;
                State::Unresolved {
                    fingerprint: fingerprint?,
                    why,
                    problem,
                }
            }
            _ => return Err(Unreadable::Malformed("state")),
        })
    }
}

/// Takes pieces off the front; never past the end.
pub(super) struct Reader(pub(super) Bytes);

impl Reader {
    pub(super) fn take(&mut self, length: usize) -> Result<Bytes, Unreadable> {
        if self.0.len() < length {
            return Err(Unreadable::Truncated);
        }
        Ok(self.0.split_to(length))
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let piece = self.take(N)?;
        <[u8; N]>::try_from(piece.as_ref()).map_err(|_| Unreadable::Truncated)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Unreadable> {
        self.array::<1>().map(|[octet]| octet)
    }

    fn u16(&mut self) -> Result<u16, Unreadable> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Unreadable> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn length(&mut self) -> Result<usize, Unreadable> {
        usize::try_from(self.u32()?).map_err(|_| Unreadable::Malformed("length"))
    }

    fn fields(&mut self) -> Result<Vec<(Bytes, Bytes)>, Unreadable> {
        let mut fields = Vec::new();
        while !self.0.is_empty() {
            let length = self.length()?;
            let name = self.take(length)?;
            let length = self.length()?;
            fields.push((name, self.take(length)?));
        }
        Ok(fields)
    }

    fn fingerprint(&mut self) -> Result<Fingerprint, Unreadable> {
        let profile = self.u64()?;
        let digest = self.array()?;
        let mut parts = Vec::new();
        while !self.0.is_empty() {
            let kind = PartKind::from_number(self.u8()?).ok_or(Unreadable::Malformed("part"))?;
            let length = usize::from(self.u16()?);
            let name = self.take(length)?;
            let name = std::str::from_utf8(&name).map_err(|_| Unreadable::Malformed("part"))?;
            let digest = if self.u8()? == 1 {
                Some(self.array()?)
            } else {
                None
            };
            parts.push(Part {
                kind,
                name: name.into(),
                digest,
            });
        }
        Ok(Fingerprint {
            profile,
            digest,
            parts: parts.into(),
        })
    }

    fn failed(&mut self) -> Result<FailedWhy, Unreadable> {
        Ok(match self.u8()? {
            1 => FailedWhy::NotSent,
            2 => FailedWhy::Status {
                status: self.u16()?,
                retry_after: self.u32()?,
            },
            3 => FailedWhy::Operator,
            _ => return Err(Unreadable::Malformed("reason")),
        })
    }

    fn unknown(&mut self) -> Result<(UnknownWhy, Option<HeldProblem>), Unreadable> {
        let why = UnknownWhy::ALL.get(usize::from(self.u8()?)).copied();
        let why = why.ok_or(Unreadable::Malformed("reason"))?;
        let problem = match self.u8()? {
            0 => None,
            1 => Some(HeldProblem::OutcomeUnknown),
            2 => Some(HeldProblem::ConnectionLost),
            3 => Some(HeldProblem::BadResponse),
            4 => Some(HeldProblem::Timeout),
            _ => return Err(Unreadable::Malformed("problem")),
        };
        Ok((why, problem))
    }
}
