//! The record: what a store holds for a record key, and the words for its parts.
//!
//! A record never says when it ends in wall time: it carries durations, and the store's own clock
//! gives the age (`transition.rs`). `completed_at` is a stamp for people and for R23, never used to
//! decide anything.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::fingerprint::Fingerprint;

/// 128 random bits that name one claim. Decides who may settle (law 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub [u8; 16]);

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Which execution of a key this is: 1 for the first (R9).
pub type Attempt = u32;

/// Who made a state: the pair that takeovers and operators compare (law 5, R34).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The owner of the record that was read.
    pub owner: Owner,
    /// Its attempt.
    pub attempt: Attempt,
}

/// What a store holds for a record key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Who made this state.
    pub owner: Owner,
    /// Which execution this was.
    pub attempt: Attempt,
    /// How long this state is kept from entering it (R22).
    pub retention: Duration,
    /// The state itself.
    pub state: State,
}

impl Record {
    /// The pair a compare-and-set names.
    pub fn seen(&self) -> Seen {
        Seen {
            owner: self.owner,
            attempt: self.attempt,
        }
    }
}

/// The states of a record; absent is `None` of the record itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Somebody holds the lease.
    InFlight {
        /// Of the request that claimed.
        fingerprint: Fingerprint,
        /// Lapsed once the record is older than this (R14).
        lease: Duration,
    },
    /// The upstream answered and the answer is here.
    Completed {
        /// Of the request that was answered.
        fingerprint: Fingerprint,
        /// What the upstream said.
        answer: Answer,
        /// Milliseconds since the Unix epoch, by the owner's wall clock; for display and R23.
        completed_at: u64,
    },
    /// The upstream answered; the answer was too large to keep (R19).
    NotKept {
        /// Of the request that was answered.
        fingerprint: Fingerprint,
        /// The upstream's status.
        status: u16,
        /// Its `Location`, if any.
        location: Option<Bytes>,
        /// SHA-256 of the body's octets, when the whole body went by.
        digest: Option<[u8; 32]>,
        /// As in `Completed`.
        completed_at: u64,
    },
    /// An attempt that provably did nothing, or that policy lets run again.
    Failed {
        /// Why the next try may execute.
        why: FailedWhy,
    },
    /// The request went out and nobody knows what became of it.
    Unresolved {
        /// Of the request that went out.
        fingerprint: Fingerprint,
        /// What happened.
        why: UnknownWhy,
        /// What the first client was told, if anybody was.
        problem: Option<HeldProblem>,
    },
}

impl State {
    /// The fingerprint, in every state but failed (R11).
    pub fn fingerprint(&self) -> Option<&Fingerprint> {
        match self {
            Self::InFlight { fingerprint, .. }
            | Self::Completed { fingerprint, .. }
            | Self::NotKept { fingerprint, .. }
            | Self::Unresolved { fingerprint, .. } => Some(fingerprint),
            Self::Failed { .. } => None,
        }
    }

    /// The state's name in logs, metrics and `key show`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::InFlight { .. } => "in_flight",
            Self::Completed { .. } => "completed",
            Self::NotKept { .. } => "completed_not_kept",
            Self::Failed { .. } => "failed",
            Self::Unresolved { .. } => "unresolved",
        }
    }
}

/// Why a failed record lets the next try execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedWhy {
    /// R16: the request never left, with proof.
    NotSent,
    /// R17: the upstream said "not carried out".
    Status {
        /// Its status.
        status: u16,
        /// Its `Retry-After` in seconds, 0 where there was none.
        retry_after: u32,
    },
    /// R34: somebody decided it.
    Operator,
}

/// Why nobody knows the outcome (R18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownWhy {
    /// The connection broke before a whole answer head.
    ConnectionLost,
    /// The answer was cut off.
    Truncated,
    /// The answer was no HTTP, or not one to this request.
    BadAnswer,
    /// `give_up_after` passed.
    GaveUp,
    /// The owner's lease lapsed.
    LeaseLapsed,
    /// Shut down before the answer came (R31).
    Drained,
    /// A fault of our own.
    Fault,
}

impl UnknownWhy {
    /// All of them, for tables and codecs.
    pub const ALL: [Self; 7] = [
        Self::ConnectionLost,
        Self::Truncated,
        Self::BadAnswer,
        Self::GaveUp,
        Self::LeaseLapsed,
        Self::Drained,
        Self::Fault,
    ];

    /// The name in logs, metrics and `key show`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConnectionLost => "connection_lost",
            Self::Truncated => "truncated",
            Self::BadAnswer => "bad_answer",
            Self::GaveUp => "gave_up",
            Self::LeaseLapsed => "lease_lapsed",
            Self::Drained => "drained",
            Self::Fault => "fault",
        }
    }
}

/// The problem that the first client got and that a held retry gets again (R18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldProblem {
    /// 502 `idempotency_outcome_unknown`
    OutcomeUnknown,
    /// 502 `upstream_connection_lost`
    ConnectionLost,
    /// 502 `upstream_bad_response`
    BadResponse,
    /// 504 `upstream_timeout`
    Timeout,
}

/// What the upstream said, as it is replayed (R21).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// End-to-end fields in order, repeats kept, names in lower case.
    pub fields: Vec<(Bytes, Bytes)>,
    /// The body's octets in their stored coding.
    pub body: Bytes,
    /// Trailer fields.
    pub trailers: Vec<(Bytes, Bytes)>,
}
