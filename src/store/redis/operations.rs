//! How each operation is carried out on Redis.
//!
//! Invariant: the answer is what [`transition()`] would have answered at the moment the server
//! carried the operation out. Claims, settles and renewals, the common ones, are one round trip.
//! Everything else reads, lets `transition()` itself decide, and writes only if nothing has changed
//! since: same state, owner and attempt, and not renewed.
//!
//! Deliberately absent: the loop around a lost reply. Every operation here may be sent again.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use super::RedisStore;
use super::connection::Trouble;
use super::errors;
use super::exchange::{Call, How, Said};
use super::scripts::answer;
use crate::idempotency::record::State;
use crate::idempotency::transition::{ABANDONED_RETENTION, Claim, Entry, Held, millis, rank};
use crate::idempotency::{Operation, Outcome, Record, RecordKey, codec, transition};
use crate::store::{StoreError, StoreErrorKind};

/// Rounds of reading and writing before a record that never stands still is an error.
const ROUNDS: usize = 3;
/// Values from this size on travel on a connection of their own.
const LARGE: usize = 64 * 1024;
/// A key without an end, which only somebody else can have made.
const ENDLESS: i64 = -1;

impl RedisStore {
    pub(super) async fn run(
        &self,
        key: RecordKey,
        operation: Operation,
    ) -> Result<Outcome, StoreError> {
        match operation {
            Operation::Claim(claim) => self.claim(key, claim).await,
            Operation::Settle { record } => self.settle(key, &record).await,
            Operation::Renew { record, dispatched } => self.renew(key, &record, dispatched).await,
            Operation::Read
            | Operation::TakeOver { .. }
            | Operation::Abandon { .. }
            | Operation::Operate { .. } => self.decide(key, operation).await,
        }
    }

    async fn claim(&self, key: RecordKey, claim: Claim) -> Result<Outcome, StoreError> {
        let record = claim.record(1);
        let value = self.encode(key, &record)?;
        let said = match self.set_if_absent(key, &value, record.retention).await {
            Ok(said) => said,
            Err(Trouble::Answered(error)) => {
                let code = errors::code(&error).to_owned();
                let refused = errors::answered(&error);
                return self.replay_though_refused(key, &code, refused).await;
            }
            Err(Trouble::Replica) => {
                let refused = Trouble::Replica.into();
                return self.replay_though_refused(key, "READONLY", refused).await;
            }
            Err(Trouble::Lost(error)) => return Err(error),
        };
        if said.value == Value::Nil {
            said.confirmation.given().await?;
            return Ok(Outcome::Acquired { attempt: 1 });
        }
        let found = self.decode(key, said.value)?;
        match found.state {
            State::Completed { .. } | State::NotKept { .. } => Ok(held_without_age(found)),
            State::InFlight { .. } if found.owner == claim.owner => {
                self.confirm_again(key).await?;
                Ok(Outcome::Acquired {
                    attempt: found.attempt,
                })
            }
            _ => self.decide(key, Operation::Claim(claim)).await,
        }
    }

    /// The common case, in one command: nil says that the key is ours now.
    async fn set_if_absent(
        &self,
        key: RecordKey,
        value: &Bytes,
        retention: Duration,
    ) -> Result<Said, Trouble> {
        let ends_in = px(retention);
        let mut set = redis::cmd("SET");
        set.arg(self.name(key)).arg(value.as_ref());
        set.arg("NX").arg("GET").arg("PX").arg(&ends_in);
        let args = [value.as_ref(), ends_in.as_bytes()];
        let how = How::Either(set, |scripts| &scripts.claim);
        self.exchange(key, &Call::of(how, &args).claims()).await
    }

    /// An operation that found its work done has written nothing that replicas could confirm: it
    /// may have been done on another connection. So the record is written as it is.
    async fn confirm_again(&self, key: RecordKey) -> Result<(), StoreError> {
        if !self.confirms {
            return Ok(());
        }
        let call = Call::new(|scripts| &scripts.touch, &[]).confirmed();
        self.exchange(key, &call).await?.confirmation.given().await
    }

    /// A server that takes no writes may still know the answer; only a final one is used.
    async fn replay_though_refused(
        &self,
        key: RecordKey,
        code: &str,
        refused: StoreError,
    ) -> Result<Outcome, StoreError> {
        if !matches!(code, "OOM" | "MISCONF" | "NOREPLICAS" | "READONLY") {
            return Err(refused);
        }
        let get = redis::cmd("GET").arg(self.name(key)).to_owned();
        match self.ask(key, Call::of(How::Command(get), &[])).await {
            Ok(Value::Nil) | Err(_) => Err(refused),
            Ok(found) => {
                let found = self.decode(key, found)?;
                match found.state {
                    State::Completed { .. } | State::NotKept { .. } => Ok(held_without_age(found)),
                    _ => Err(refused),
                }
            }
        }
    }

    async fn settle(&self, key: RecordKey, record: &Record) -> Result<Outcome, StoreError> {
        let value = self.encode(key, record)?;
        let absent = match record.state {
            State::Failed { .. } => {
                let retention = ABANDONED_RETENTION;
                let ended = Record {
                    retention,
                    ..record.clone()
                };
                self.encode(key, &ended)?
            }
            _ => Bytes::new(),
        };
        let rank = rank(&record.state).to_string();
        let (ends_in, absent_ends_in) = (px(record.retention), px(ABANDONED_RETENTION));
        let args = [
            record.owner.0.as_slice(),
            rank.as_bytes(),
            &value,
            ends_in.as_bytes(),
            &absent,
            absent_ends_in.as_bytes(),
            if self.confirms { b"1" } else { b"0" },
        ];
        let call = Call::new(|scripts| &scripts.settle, &args).then_wake();
        let call = call.large(is_large(&value)).confirmed();
        let said = self.exchange(key, &call).await?;
        if matches!(said.value, Value::Int(answer::STORED | answer::WRITTEN)) {
            said.confirmation.given().await?;
        }
        stored(&said.value)
    }

    async fn renew(
        &self,
        key: RecordKey,
        record: &Record,
        dispatched: bool,
    ) -> Result<Outcome, StoreError> {
        let value = self.encode(key, record)?;
        let ends_in = px(record.retention);
        let args = [
            record.owner.0.as_slice(),
            &value,
            ends_in.as_bytes(),
            if dispatched { b"1" } else { b"0" },
        ];
        let call = Call::new(|scripts| &scripts.renew, &args);
        stored(&self.ask(key, call).await?)
    }

    fn encode(&self, key: RecordKey, record: &Record) -> Result<Bytes, StoreError> {
        self.shared.vault.encode(key, record)
    }

    fn decode(&self, key: RecordKey, value: Value) -> Result<Record, StoreError> {
        let Value::BulkString(octets) = value else {
            return Err(errors::odd("a value"));
        };
        let record = self.shared.vault.decode(key, &Bytes::from(octets));
        record.map_err(|error| errors::unreadable(&error.to_string()))
    }

    /// Reads, asks the specification, writes if nothing has changed since.
    async fn decide(&self, key: RecordKey, operation: Operation) -> Result<Outcome, StoreError> {
        for _ in 0..ROUNDS {
            let seen = self.read(key).await?;
            let before = seen.as_ref().map(|seen| seen.entry.clone());
            let (after, outcome) = transition(before.clone(), operation.clone(), 0);
            let Some(after) = after.filter(|after| Some(after) != before.as_ref()) else {
                if matches!(outcome, Outcome::Acquired { .. }) {
                    self.confirm_again(key).await?;
                }
                return Ok(outcome);
            };
            if self.swap(key, seen.as_ref(), &after, &operation).await? {
                return Ok(outcome);
            }
        }
        let message = format!("the record changed {ROUNDS} times while it was looked at");
        // The server answers; the breaker has no part in this.
        Err(StoreError::not_sent(StoreErrorKind::Refused, message))
    }

    /// The record and what remains of it, at one moment, which is called 0.
    async fn read(&self, key: RecordKey) -> Result<Option<SeenEntry>, StoreError> {
        let call = Call::new(|scripts| &scripts.read, &[]);
        let said = self.ask(key, call).await?;
        let [value, remaining] = match said {
            Value::Nil => return Ok(None),
            Value::Array(parts) => {
                <[Value; 2]>::try_from(parts).map_err(|_| errors::odd("read"))?
            }
            _ => return Err(errors::odd("read")),
        };
        let Value::Int(remaining) = remaining else {
            return Err(errors::odd("read"));
        };
        let record = self.decode(key, value)?;
        // A key about to end in this millisecond is still there.
        let ends_at = match remaining {
            ENDLESS => millis(record.retention).max(1),
            left => u64::try_from(left).unwrap_or(0).max(1),
        };
        Ok(Some(SeenEntry {
            entry: Entry { record, ends_at },
            remaining,
        }))
    }

    async fn swap(
        &self,
        key: RecordKey,
        seen: Option<&SeenEntry>,
        after: &Entry,
        operation: &Operation,
    ) -> Result<bool, StoreError> {
        let head = seen.map_or_else(Vec::new, |seen| seen_octets(&seen.entry.record));
        let remaining = seen.map_or(0, |seen| seen.remaining).to_string();
        let same_end = seen.is_some_and(|seen| seen.entry.ends_at == after.ends_at);
        let ends_in = if same_end {
            "0".to_owned()
        } else {
            px(Duration::from_millis(after.ends_at))
        };
        let value = self.encode(key, &after.record)?;
        let args = [
            head.as_slice(),
            remaining.as_bytes(),
            &value,
            ends_in.as_bytes(),
        ];
        let call = match operation {
            Operation::Claim(_) | Operation::TakeOver { .. } => {
                Call::new(|scripts| &scripts.take, &args).claims()
            }
            _ => Call::new(|scripts| &scripts.replace, &args).then_wake(),
        };
        let said = self.exchange(key, &call.large(is_large(&value))).await?;
        match said.value {
            Value::Int(answer::WRITTEN) => {
                said.confirmation.given().await?;
                Ok(true)
            }
            Value::Int(answer::UNREADABLE) => Err(errors::unreadable("not a record")),
            Value::Int(_) => Ok(false),
            _ => Err(errors::odd("swap")),
        }
    }
}

/// A record as read, and the milliseconds Redis said it had left.
struct SeenEntry {
    entry: Entry,
    remaining: i64,
}

fn is_large(value: &Bytes) -> bool {
    value.len() > LARGE
}

/// Octets 1 to 22 of the value, as `swap` compares them.
fn seen_octets(record: &Record) -> Vec<u8> {
    let state = [codec::state_number(&record.state)];
    let attempt = record.attempt.to_be_bytes();
    [state.as_slice(), &record.owner.0, &attempt].concat()
}

/// The exception of the contract: a replay is one command, and its age is nobody's business.
fn held_without_age(record: Record) -> Outcome {
    let age = Duration::ZERO;
    Outcome::Held(Held { record, age })
}

fn stored(said: &Value) -> Result<Outcome, StoreError> {
    match said {
        Value::Int(answer::STORED) => Ok(Outcome::Stored { reasserted: false }),
        Value::Int(answer::WRITTEN) => Ok(Outcome::Stored { reasserted: true }),
        Value::Int(answer::LOST) => Ok(Outcome::LeaseLost),
        Value::Int(answer::UNREADABLE) => Err(errors::unreadable("not a record")),
        _ => Err(errors::odd("a script")),
    }
}

/// Milliseconds as Redis takes them: at least one, and far below where its own sums overflow.
fn px(duration: Duration) -> String {
    millis(duration).clamp(1, 1 << 53).to_string()
}
