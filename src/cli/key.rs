//! `retrysafe key`: looks a record up, and resolves one whose outcome nobody knows (R34).
//!
//! Release, executed and forget name the owner and attempt that were read just before, and fail if these
//! changed; they set a new owner, so that a late settle is a lost lease. Each is one audit line.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{CONFIG, FAILED, OK, UNAVAILABLE};
use crate::clock::SystemClock;
use crate::config::{Config, Environment};
use crate::idempotency::key::{IdempotencyKey, parse};
use crate::idempotency::policy::{KeyPolicy, KeySyntax};
use crate::idempotency::record::{FailedWhy, Owner, State};
use crate::idempotency::scope::{KeyText, ScopeValue};
use crate::idempotency::transition::{Held, OperateOn};
use crate::idempotency::{Operation, Outcome, Policy, Record, RecordKey};
use crate::store::{self, OpenError, Store, StoreUrl, Stores};

/// What to do with a key.
#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Show what is recorded (never a body)
    Show(Target),
    /// Say that an unresolved request was not carried out: the next try executes
    Release(Target),
    /// Say that an unresolved request was carried out: retries get 410 with this status
    Executed(Executed),
    /// Forget a record whatever it holds: the next try executes
    Forget(Target),
}

/// Which record.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// The key as clients send it, quoted or not; or a record key in hex with --record
    key: String,
    /// The route whose scope applies [default: that of requests no route matches]
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// A scope part's value, as `header:x-tenant=acme`; parts not named are absent
    #[arg(long = "scope", value_name = "PART=VALUE")]
    scope: Vec<String>,
    /// KEY is a record key: 64 hexadecimal digits
    #[arg(long)]
    record: bool,
}

/// What is known of an execution.
#[derive(Debug, Args)]
pub(super) struct Executed {
    #[command(flatten)]
    target: Target,
    /// The status the upstream answered with
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
}

impl KeyCommand {
    fn target(&self) -> &Target {
        match self {
            Self::Show(target) | Self::Release(target) | Self::Forget(target) => target,
            Self::Executed(executed) => &executed.target,
        }
    }
}

/// Answers the exit code.
pub(super) fn key(path: Option<&Path>, env: &Environment, command: &KeyCommand) -> u8 {
    run(path, env, command).unwrap_or_else(|(code, text)| {
        if !text.is_empty() {
            eprintln!("retrysafe: {text}");
        }
        code
    })
}

type Failure = (u8, String);

fn run(path: Option<&Path>, env: &Environment, command: &KeyCommand) -> Result<u8, Failure> {
    let config = super::load_to_ask(path, env)
        .map_err(|code| (code, String::new()))?
        .config;
    let key = target_key(&config, command.target())?;
    if config.store.url == StoreUrl::Memory {
        let text = "a memory: store is seen by its own process only; nothing can be looked up";
        return Err((2, text.to_owned()));
    }
    if let StoreUrl::File(path) = &config.store.url
        && !path.exists()
    {
        return Err((FAILED, format!("{} does not exist", path.display())));
    }
    let runtime = super::runtime().map_err(|code| (code, String::new()))?;
    runtime.block_on(async {
        // A first connection takes longer than a call; a person waits for it.
        let settings = store::Settings {
            timeout: patience(&config),
            // Whether it lost its memory is for those to say who serve.
            hold_off: Duration::ZERO,
            ..config.store.clone()
        };
        let stores = Stores::open(&settings, Arc::new(SystemClock), Arc::new(|_| {}))
            .map_err(|error| not_open(&config, &error))?;
        let store = stores.handle();
        let Outcome::Held(held) = call(&*store, &config, key, Operation::Read).await? else {
            return Err((FAILED, format!("no record for {}", key.short())));
        };
        match command {
            KeyCommand::Show(_) => {
                print(&describe(key, &held));
                Ok(OK)
            }
            KeyCommand::Release(target) => {
                let record = failed(&held, policy(&config, target).failed_ttl)?;
                operate(&*store, &config, key, &held, record, "release").await
            }
            KeyCommand::Executed(executed) => {
                let ttl = policy(&config, &executed.target).ttl;
                let record = not_kept(&held, executed.status, ttl)?;
                operate(&*store, &config, key, &held, record, "executed").await
            }
            KeyCommand::Forget(target) => {
                let ttl = config.store.deleted_for(policy(&config, target).lease);
                let record = failed(&held, ttl)?;
                operate(&*store, &config, key, &held, record, "forget").await
            }
        }
    })
}

/// A reader that went away ends nothing.
fn print(text: &str) {
    let _gone = std::io::stdout().write_all(text.as_bytes()).is_err();
}

fn not_open(config: &Config, error: &OpenError) -> Failure {
    match error {
        OpenError::Unfit(text) => (CONFIG, text.clone()),
        OpenError::InUse(_) => (
            FAILED,
            format!(
                "{} is in use by a running proxy: stop it first. `retrysafe key` looks into a file \
                 store only while no proxy runs",
                config.store.url
            ),
        ),
        OpenError::Unreachable(text) => (UNAVAILABLE, text.clone()),
    }
}

/// How long the store may take.
fn patience(config: &Config) -> Duration {
    config.store.timeout.max(Duration::from_secs(2))
}

async fn call(
    store: &dyn Store,
    config: &Config,
    key: RecordKey,
    operation: Operation,
) -> Result<Outcome, Failure> {
    match tokio::time::timeout(patience(config), store.apply(key, operation)).await {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(error)) => Err((UNAVAILABLE, format!("the store: {error}"))),
        Err(_) => Err((UNAVAILABLE, "the store did not answer".to_owned())),
    }
}

async fn operate(
    store: &dyn Store,
    config: &Config,
    key: RecordKey,
    held: &Held,
    record: Record,
    action: &str,
) -> Result<u8, Failure> {
    let on = if action == "forget" {
        OperateOn::Any
    } else {
        OperateOn::Unresolved
    };
    let seen = held.record.seen();
    let outcome = call(store, config, key, Operation::Operate { seen, record, on }).await?;
    match outcome {
        Outcome::Stored { .. } => {
            // The audit line.
            eprintln!(
                "audit action={action} record={key} owner_seen={} attempt_seen={} was={}",
                seen.owner,
                seen.attempt,
                state_name(held),
            );
            print(&format!("done: {action} {}\n", key.short()));
            Ok(OK)
        }
        Outcome::Refused(now) if matches!(now.record.state, State::InFlight { .. }) => Err((
            FAILED,
            "refused: the request is in flight and its lease has not lapsed".to_owned(),
        )),
        Outcome::Refused(now) if now.record.seen() != seen => Err((
            FAILED,
            "refused: the record changed meanwhile; look again".to_owned(),
        )),
        Outcome::Refused(now) => Err((
            FAILED,
            format!(
                "refused: the record is {}, not unresolved",
                state_name(&now)
            ),
        )),
        _ => Err((FAILED, "the record is gone".to_owned())),
    }
}

fn failed(held: &Held, retention: Duration) -> Result<Record, Failure> {
    new_record(
        held,
        State::Failed {
            why: FailedWhy::Operator,
        },
        retention,
    )
}

fn not_kept(held: &Held, status: u16, retention: Duration) -> Result<Record, Failure> {
    let fingerprint = held.record.state.fingerprint().cloned();
    let fingerprint =
        fingerprint.ok_or_else(|| (FAILED, "refused: the record is failed".to_owned()))?;
    let completed_at = crate::clock::Clock::unix_millis(&SystemClock);
    let state = State::NotKept {
        fingerprint,
        status,
        location: None,
        digest: None,
        completed_at,
    };
    new_record(held, state, retention)
}

fn new_record(held: &Held, state: State, retention: Duration) -> Result<Record, Failure> {
    let mut owner = [0; 16];
    getrandom::fill(&mut owner).map_err(|error| (FAILED, format!("no random bits: {error}")))?;
    Ok(Record {
        owner: Owner(owner),
        attempt: held.record.attempt,
        retention,
        state,
    })
}

fn policy<'a>(config: &'a Config, target: &Target) -> &'a Policy {
    let named = target.route.as_ref();
    let route = named.and_then(|name| config.routes.iter().find(|route| route.name == *name));
    route.map_or(&config.policy, |route| &route.policy)
}

fn target_key(config: &Config, target: &Target) -> Result<RecordKey, Failure> {
    let usage = |text: String| (2, text);
    if let Some(name) = &target.route
        && !config.routes.iter().any(|route| route.name == *name)
    {
        return Err(usage(format!("there is no route {name:?}")));
    }
    if target.record {
        return hex_key(&target.key)
            .ok_or_else(|| usage("a record key has 64 hexadecimal digits".to_owned()));
    }
    let policy = policy(config, target);
    let lenient = KeyPolicy {
        syntax: KeySyntax::Lenient,
        ..policy.key.clone()
    };
    let key: IdempotencyKey = parse(target.key.as_bytes(), &lenient)
        .map_err(|error| usage(format!("KEY is not valid: {error}")))?;
    let mut given = target.scope.clone();
    let scope: Vec<ScopeValue> = policy
        .scope
        .iter()
        .map(|part| {
            let name = part.to_string();
            let prefix = format!("{name}=");
            let at = given.iter().position(|text| text.starts_with(&prefix));
            let value = at.map(|at| given.swap_remove(at).split_off(prefix.len()).into_bytes());
            ScopeValue { name, value }
        })
        .collect();
    if let Some(unknown) = given.first() {
        return Err(usage(format!(
            "{unknown:?} is no part of this scope, or is given twice"
        )));
    }
    let identity = config.store.identity();
    Ok(identity.record_key(&scope, KeyText::Key(&key)))
}

fn hex_key(text: &str) -> Option<RecordKey> {
    let mut key = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, octet) in key.iter_mut().enumerate() {
        *octet = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(RecordKey(key))
}

fn state_name(held: &Held) -> &'static str {
    if held.lapsed() {
        "unresolved (lease lapsed)"
    } else {
        held.record.state.name()
    }
}

fn describe(key: RecordKey, held: &Held) -> String {
    let mut lines = vec![
        format!("record    {key}"),
        format!("state     {}", state_name(held)),
        format!("attempt   {}", held.record.attempt),
        format!("owner     {}", held.record.owner),
        format!("kept for  {} s more", held.remaining().as_secs()),
    ];
    match &held.record.state {
        State::Completed { answer, .. } => {
            lines.push(format!("status    {}", answer.status));
            lines.push(format!("body      {} bytes", answer.body.len()));
        }
        State::NotKept { status, .. } => lines.push(format!("status    {status}")),
        State::Failed { why } => lines.push(format!("why       {}", failed_why(*why))),
        State::Unresolved { why, .. } => lines.push(format!("why       {}", why.name())),
        State::InFlight { lease, .. } => lines.push(format!("lease     {} s", lease.as_secs())),
    }
    lines.join("\n") + "\n"
}

fn failed_why(why: FailedWhy) -> String {
    match why {
        FailedWhy::NotSent => "not sent".to_owned(),
        FailedWhy::Status { status, .. } => format!("released by status {status}"),
        FailedWhy::Operator => "released by an operator".to_owned(),
    }
}
