//! One question to the server that keeps a key: where it goes, and what happens on the way.
//!
//! A server that lost its scripts is taught them again; in a cluster a redirection is followed.
//! Invariant: what is sent again here was refused by the server before, so it is carried out once.
//! The number of hops is bounded, and the caller's deadline holds over all of them.
//!
//! Deliberately absent: what the commands mean (`operations.rs`), sending again what was lost.

use std::sync::Arc;

use redis::{Cmd, Pipeline, Value};

use super::RedisStore;
use super::confirmed::Confirmation;
use super::connection::{Live, Trouble};
use super::errors;
use super::route::{Hop, Redirected};
use super::scripts::{Script, Scripts};
use crate::idempotency::RecordKey;
use crate::store::loss::held_off;
use crate::store::{StoreError, StoreErrorKind};

/// Times a question is sent before a server that never answers it is an error.
const HOPS: usize = 5;

/// A command, or a script, or either, as the server's version wants it.
pub(super) enum How {
    Command(Cmd),
    Script(fn(&Scripts) -> &Script),
    /// The command for a server of today, the script for an old one.
    Either(Cmd, fn(&Scripts) -> &Script),
}

/// One question about one key.
pub(super) struct Call<'a> {
    how: How,
    args: &'a [&'a [u8]],
    wake: bool,
    large: bool,
    writes: Writes,
}

/// What must hold for what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// Nothing: a look, or what may be lost.
    Anything,
    /// Replicas have it, if any are to be asked.
    Confirmed,
    /// The same, and no loss may hide that somebody else has the key.
    Claim,
}

impl<'a> Call<'a> {
    pub(super) fn new(script: fn(&Scripts) -> &Script, args: &'a [&'a [u8]]) -> Self {
        Self::of(How::Script(script), args)
    }

    pub(super) fn of(how: How, args: &'a [&'a [u8]]) -> Self {
        Self {
            how,
            args,
            wake: false,
            large: false,
            writes: Writes::Anything,
        }
    }

    /// Tells waiters in other processes afterwards.
    pub(super) fn then_wake(self) -> Self {
        Self { wake: true, ..self }
    }

    /// On the connection for large values.
    pub(super) fn large(self, large: bool) -> Self {
        Self { large, ..self }
    }

    /// Asks the replicas whether they have what was written, if any are to be asked.
    pub(super) fn confirmed(self) -> Self {
        let writes = Writes::Confirmed;
        Self { writes, ..self }
    }

    /// Gives out a key.
    pub(super) fn claims(self) -> Self {
        let writes = Writes::Claim;
        Self { writes, ..self }
    }

    fn script<'s>(&self, scripts: &'s Scripts, modern: bool) -> Option<&'s Script> {
        match self.how {
            How::Command(_) => None,
            How::Either(..) if modern => None,
            How::Script(script) | How::Either(_, script) => Some(script(scripts)),
        }
    }
}

/// A reply, and what will say whether replicas have what was written.
pub(super) struct Said {
    pub(super) value: Value,
    pub(super) confirmation: Confirmation,
}

impl RedisStore {
    /// Asks where no replica matters.
    pub(super) async fn ask(&self, key: RecordKey, call: Call<'_>) -> Result<Value, Trouble> {
        Ok(self.exchange(key, &call).await?.value)
    }

    /// Asks, and follows wherever the servers point to.
    pub(super) async fn exchange(&self, key: RecordKey, call: &Call<'_>) -> Result<Said, Trouble> {
        let name = self.name(key);
        let mut hop = self.route.to(&name).await.map_err(Trouble::Lost)?;
        let confirm = call.writes != Writes::Anything;
        for _ in 0..HOPS {
            let lane = hop.node.lane(call.large);
            let live = lane.live(confirm).await;
            let live = live.map_err(|error| self.route.lost(error))?;
            if call.writes == Writes::Claim && !self.may_give_out(&hop, call, &live).await? {
                // Of a cluster it is known by now who is the master.
                hop = self.route.past_replica(&name).await?;
                continue;
            }
            let modern = live.info.is_modern();
            let scripts = self.shared.scripts(modern);
            let script = call.script(scripts, modern);
            let commands = self.commands(&name, key, call, script, &hop);
            let said = lane.pipeline(&live, commands, confirm).await;
            let said = said.map_err(|trouble| self.route.noted(trouble))?;
            // Writes that wait for replicas may have gone over another connection than that.
            if call.writes == Writes::Claim && self.shared.loss.left().is_some() {
                let held_off = held_off();
                let error = StoreError::maybe_sent(held_off.kind, held_off.message);
                return Err(Trouble::Lost(error));
            }
            let mut replies = said.replies.into_iter().skip(usize::from(hop.asking));
            let error = match replies.next() {
                Some(Value::ServerError(error)) => error,
                Some(value) => {
                    if let Some(Value::ServerError(error)) = replies.next() {
                        tracing::debug!("no wake-up was published: {error}");
                    }
                    return Ok(Said {
                        value,
                        confirmation: said.confirmation,
                    });
                }
                None => return Err(Trouble::Lost(errors::odd("a command"))),
            };
            match (error.code(), script) {
                ("NOSCRIPT", Some(script)) => self.teach(&hop, script).await?,
                ("MOVED" | "ASK", _) => match self.route.redirected(&hop, &error).await {
                    Ok(Redirected::To(next)) => hop = next,
                    Ok(Redirected::Nowhere) => return Err(Trouble::Answered(error)),
                    Err(error) => return Err(Trouble::Lost(error)),
                },
                _ => return Err(self.route.noted(lane.answered(&live, error))),
            }
        }
        let message = "Redis forgets its scripts, or sends us in circles";
        let error = StoreError::not_sent(StoreErrorKind::Refused, message);
        Err(Trouble::Lost(error))
    }

    /// Whether absent keys may be given out over this connection: not by a replica.
    async fn may_give_out(
        &self,
        hop: &Hop,
        call: &Call<'_>,
        live: &Arc<Live>,
    ) -> Result<bool, Trouble> {
        let lane = hop.node.lane(call.large);
        let looked = lane.has_looked(live, true).await;
        if !looked.map_err(|error| self.route.lost(error))? {
            lane.read_only(live);
            return Ok(false);
        }
        // It may have been made just now, and shown a loss.
        match self.shared.loss.left() {
            Some(_) => Err(Trouble::Lost(held_off())),
            None => Ok(true),
        }
    }

    async fn teach(&self, hop: &Hop, script: &Script) -> Result<(), Trouble> {
        let slot = hop.node.plain();
        let live = slot.live().await.map_err(Trouble::Lost)?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&script.text);
        slot.command(&live, &load).await.map(drop)
    }

    fn commands(
        &self,
        name: &str,
        key: RecordKey,
        call: &Call<'_>,
        script: Option<&Script>,
        hop: &Hop,
    ) -> Pipeline {
        let mut commands = Pipeline::with_capacity(3);
        if hop.asking {
            commands.add_command(redis::cmd("ASKING"));
        }
        match (&call.how, script) {
            (_, Some(script)) => {
                let mut run = redis::cmd("EVALSHA");
                run.arg(script.sha()).arg(1).arg(name);
                for argument in call.args {
                    run.arg(*argument);
                }
                commands.add_command(run);
            }
            (How::Command(command) | How::Either(command, _), None) => {
                commands.add_command(command.clone());
            }
            (How::Script(_), None) => {}
        }
        if call.wake {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(self.shared.channel(key)).arg("");
            commands.add_command(publish);
        }
        commands
    }

    pub(super) fn name(&self, key: RecordKey) -> String {
        format!("{}:{key}", self.shared.namespace)
    }
}
