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
use redis::{Cmd, Pipeline, Value};

use super::RedisStore;
use super::connection::{Slot, Trouble};
use super::errors;
use super::scripts::{Script, Scripts, answer};
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
        let value = codec::encode(&record);
        let found = match self.set_if_absent(key, &value, record.retention).await {
            Ok(None) => return Ok(Outcome::Acquired { attempt: 1 }),
            Ok(Some(found)) => found,
            Err(Trouble::Answered(error)) => {
                let code = errors::code(&error).to_owned();
                let refused = errors::answered(&error);
                return self.replay_though_refused(key, &code, refused).await;
            }
            Err(Trouble::Lost(error)) => return Err(error),
        };
        let found = decode(found)?;
        match found.state {
            State::Completed { .. } | State::NotKept { .. } => Ok(held_without_age(found)),
            State::InFlight { .. } if found.owner == claim.owner => Ok(Outcome::Acquired {
                attempt: found.attempt,
            }),
            _ => self.decide(key, Operation::Claim(claim)).await,
        }
    }

    /// The common case, in one command: `None` says that the key is ours now.
    async fn set_if_absent(
        &self,
        key: RecordKey,
        value: &Bytes,
        retention: Duration,
    ) -> Result<Option<Value>, Trouble> {
        let slot = &self.small;
        let live = slot.live().await.map_err(Trouble::Lost)?;
        let found = if live.info.is_modern() {
            let mut set = redis::cmd("SET");
            set.arg(self.name(key)).arg(value.as_ref());
            set.arg("NX").arg("GET").arg("PX").arg(px(retention));
            slot.command(&live, &set).await?
        } else {
            let ends_in = px(retention);
            let args = [value.as_ref(), ends_in.as_bytes()];
            let call = Call::new(|scripts| &scripts.claim, &args);
            self.script(slot, key, call).await?
        };
        Ok(match found {
            Value::Nil => None,
            found => Some(found),
        })
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
        let Ok(live) = self.small.live().await else {
            return Err(refused);
        };
        let get = redis::cmd("GET").arg(self.name(key)).to_owned();
        match self.small.command(&live, &get).await {
            Ok(Value::Nil) | Err(_) => Err(refused),
            Ok(found) => {
                let found = decode(found)?;
                match found.state {
                    State::Completed { .. } | State::NotKept { .. } => Ok(held_without_age(found)),
                    _ => Err(refused),
                }
            }
        }
    }

    async fn settle(&self, key: RecordKey, record: &Record) -> Result<Outcome, StoreError> {
        let value = codec::encode(record);
        let absent = match record.state {
            State::Failed { .. } => codec::encode(&Record {
                retention: ABANDONED_RETENTION,
                ..record.clone()
            }),
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
        ];
        let call = Call::new(|scripts| &scripts.settle, &args).then_wake();
        let said = self.script(self.slot_for(&value), key, call).await?;
        stored(&said)
    }

    async fn renew(
        &self,
        key: RecordKey,
        record: &Record,
        dispatched: bool,
    ) -> Result<Outcome, StoreError> {
        let value = codec::encode(record);
        let ends_in = px(record.retention);
        let args = [
            record.owner.0.as_slice(),
            &value,
            ends_in.as_bytes(),
            if dispatched { b"1" } else { b"0" },
        ];
        let call = Call::new(|scripts| &scripts.renew, &args);
        stored(&self.script(&self.small, key, call).await?)
    }

    /// Reads, asks the specification, writes if nothing has changed since.
    async fn decide(&self, key: RecordKey, operation: Operation) -> Result<Outcome, StoreError> {
        for _ in 0..ROUNDS {
            let seen = self.read(key).await?;
            let before = seen.as_ref().map(|seen| seen.entry.clone());
            let (after, outcome) = transition(before.clone(), operation.clone(), 0);
            let Some(after) = after.filter(|after| Some(after) != before.as_ref()) else {
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
        let said = self.script(&self.small, key, call).await?;
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
        let record = decode(value)?;
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
        let value = codec::encode(&after.record);
        let args = [
            head.as_slice(),
            remaining.as_bytes(),
            &value,
            ends_in.as_bytes(),
        ];
        let call = match operation {
            Operation::Claim(_) | Operation::TakeOver { .. } => {
                Call::new(|scripts| &scripts.take, &args)
            }
            _ => Call::new(|scripts| &scripts.replace, &args).then_wake(),
        };
        match self.script(self.slot_for(&value), key, call).await? {
            Value::Int(answer::WRITTEN) => Ok(true),
            Value::Int(answer::UNREADABLE) => Err(errors::unreadable("not a record")),
            Value::Int(_) => Ok(false),
            _ => Err(errors::odd("swap")),
        }
    }

    /// Runs a script, teaching it to the server first if it does not know it.
    async fn script(&self, slot: &Slot, key: RecordKey, call: Call<'_>) -> Result<Value, Trouble> {
        let live = slot.live().await.map_err(Trouble::Lost)?;
        let scripts = if live.info.is_modern() {
            &self.shared.modern
        } else {
            &self.shared.legacy
        };
        let script = (call.script)(scripts);
        let pipeline = self.pipeline(script, key, &call);
        for _ in 0..ROUNDS {
            let mut said = slot.pipeline(&live, &pipeline).await?.into_iter();
            match said.next() {
                Some(Value::ServerError(error)) if error.code() == "NOSCRIPT" => {
                    slot.command(&live, &load(script)).await?;
                }
                Some(Value::ServerError(error)) => return Err(slot.answered(&live, error)),
                Some(value) => {
                    if let Some(Value::ServerError(error)) = said.next() {
                        tracing::debug!("no wake-up was published: {error}");
                    }
                    return Ok(value);
                }
                None => return Err(Trouble::Lost(errors::odd("a script"))),
            }
        }
        let message = "Redis forgets its scripts as soon as it learns them";
        let error = StoreError::not_sent(StoreErrorKind::Refused, message);
        Err(Trouble::Lost(error))
    }

    fn pipeline(&self, script: &Script, key: RecordKey, call: &Call<'_>) -> Pipeline {
        let mut run = redis::cmd("EVALSHA");
        run.arg(script.sha()).arg(1).arg(self.name(key));
        for argument in call.args {
            run.arg(*argument);
        }
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(run);
        if call.wake {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(self.shared.channel(key)).arg("");
            pipeline.add_command(publish);
        }
        pipeline
    }

    fn name(&self, key: RecordKey) -> String {
        format!("{}:{key}", self.shared.namespace)
    }

    fn slot_for(&self, value: &Bytes) -> &Slot {
        if value.len() > LARGE {
            &self.large
        } else {
            &self.small
        }
    }
}

/// A record as read, and the milliseconds Redis said it had left.
struct SeenEntry {
    entry: Entry,
    remaining: i64,
}

/// One call of a script.
struct Call<'a> {
    script: fn(&Scripts) -> &Script,
    args: &'a [&'a [u8]],
    wake: bool,
}

impl<'a> Call<'a> {
    fn new(script: fn(&Scripts) -> &Script, args: &'a [&'a [u8]]) -> Self {
        Self {
            script,
            args,
            wake: false,
        }
    }

    /// Tells waiters in other processes afterwards.
    fn then_wake(self) -> Self {
        Self { wake: true, ..self }
    }
}

/// Octets 1 to 22 of the value, as `swap` compares them.
fn seen_octets(record: &Record) -> Vec<u8> {
    let state = [codec::state_number(&record.state)];
    let attempt = record.attempt.to_be_bytes();
    [state.as_slice(), &record.owner.0, &attempt].concat()
}

fn load(script: &Script) -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(&script.text);
    load
}

fn decode(value: Value) -> Result<Record, StoreError> {
    let Value::BulkString(octets) = value else {
        return Err(errors::odd("a value"));
    };
    codec::decode(&Bytes::from(octets)).map_err(|error| errors::unreadable(&error.to_string()))
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
