//! The steps of `reports.json`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

use serde::Deserialize;

use super::Stage;
use super::upstream::When;
use crate::conformance::octets::{Blob, latin1};
use crate::conformance::wire::{Got, Wire};
use crate::support::PATIENCE;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    Http(Http),
    Raw(Raw),
    Sleep(u64),
    Join(Vec<String>),
    Abort(Abort),
    AwaitUpstream(Await),
    Upstream(String),
    Proxy(Proxy),
    Redis(RedisStep),
    Store(StoreStep),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http {
    name: String,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Blob>,
    bg: bool,
    repeat: Option<usize>,
    conn: Option<String>,
    chunked: bool,
    chunk_size: Option<usize>,
    wait_continue: bool,
    timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    name: String,
    send: String,
    conn: Option<String>,
    pad: Option<Blob>,
    dribble_ms: Option<u64>,
    shutdown_write: bool,
    read: Read,
    timeout_ms: Option<u64>,
    then_eof_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Read {
    #[default]
    Response,
    All,
    Bytes,
    None,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Abort {
    of: String,
    how: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Await {
    path: String,
    count: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Proxy {
    action: Action,
    timeout_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisStep {
    action: String,
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreStep {
    action: String,
    name: String,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Kill,
    Term,
    Start,
    Freeze,
    Thaw,
    AwaitExit,
    Rss,
}

/// Requests under way, with what makes each go away.
#[derive(Debug, Default)]
pub(super) struct Threads(Vec<(String, JoinHandle<()>, Arc<AtomicBool>)>);

impl Threads {
    /// Waits for the requests of a name, or of a group.
    fn end(&mut self, name: &str) {
        let group = format!("{name}#");
        let (ending, going): (Vec<_>, Vec<_>) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|(known, ..)| known == name || known.starts_with(&group));
        self.0 = going;
        for (name, thread, _) in ending {
            assert!(thread.join().is_ok(), "{name} broke off");
        }
    }

    pub(super) fn end_all(&mut self) {
        for (name, thread, _) in std::mem::take(&mut self.0) {
            assert!(thread.join().is_ok(), "{name} broke off");
        }
    }
}

impl Stage {
    pub(super) fn step(&mut self, step: Step, threads: &mut Threads) -> Result<(), String> {
        match step {
            Step::Http(http) => self.http(&http, threads),
            Step::Raw(raw) => self.raw(&raw),
            Step::Sleep(time) => std::thread::sleep(Duration::from_millis(time)),
            Step::Join(names) => names.iter().for_each(|name| threads.end(name)),
            Step::Abort(abort) if abort.how == "rst" => {
                let thread = threads.0.iter().find(|(name, ..)| *name == abort.of);
                thread
                    .ok_or("abort of nothing")?
                    .2
                    .store(true, Ordering::Release);
                threads.end(&abort.of);
            }
            Step::Abort(abort) => return Err(format!("unknown word abort {}", abort.how)),
            Step::AwaitUpstream(wanted) => {
                let upstream = self.upstream.as_ref().ok_or("no upstream to wait for")?;
                let when = When::path(wanted.path.clone());
                let count = wanted.count.unwrap_or(1);
                let came = upstream.wait_until(PATIENCE, |seen| {
                    let hits = seen.iter();
                    let hits = hits.filter(|seen| when.matches(&seen.method, &seen.target));
                    hits.count() >= count
                });
                if !came {
                    return Err(format!("{count} requests to {} never came", wanted.path));
                }
            }
            Step::Upstream(_) => return Err("unknown word upstream".to_owned()),
            Step::Proxy(proxy) => self.proxy(&proxy)?,
            Step::Redis(step) => self.redis(&step)?,
            Step::Store(step) if step.action == "snapshot" => self.snapshot(step.name)?,
            Step::Store(step) => return Err(format!("unknown word store {}", step.action)),
        }
        Ok(())
    }

    fn redis(&mut self, step: &RedisStep) -> Result<(), String> {
        let redis = self.redis.as_mut().ok_or("no Redis in the harness")?;
        match step.action.as_str() {
            "stop" => redis.kill(),
            "start" => redis.restart(&[]),
            "freeze" => redis.pause(),
            "thaw" => redis.resume(),
            "cmd" => {
                let command: Vec<&str> = step.args.iter().map(String::as_str).collect();
                redis.cli(&command);
            }
            other => return Err(format!("unknown word redis {other}")),
        }
        Ok(())
    }

    /// How long each key of the store has left.
    fn snapshot(&mut self, name: String) -> Result<(), String> {
        let redis = self.redis.as_ref().ok_or("no Redis in the harness")?;
        let keys: Vec<String> = redis::from_redis_value(redis.cli(&["KEYS", "*"])).unwrap();
        let left = keys.iter().map(|key| redis.cli(&["PTTL", key]));
        let left = left.map(|left| redis::from_redis_value(left).unwrap());
        self.snapshots.insert(name, left.collect());
        Ok(())
    }

    fn http(&mut self, http: &Http, threads: &mut Threads) {
        let names: Vec<String> = match http.repeat {
            None => vec![http.name.clone()],
            Some(times) => (1..=times).map(|n| format!("{}#{n}", http.name)).collect(),
        };
        self.groups.insert(http.name.clone(), names.clone());
        let addr = self.sidecar.addr;
        for name in names {
            let go_away = Arc::new(AtomicBool::new(false));
            let (flag, http) = (http.bg.then(|| go_away.clone()), http.clone());
            let (answers, wires) = (self.answers.clone(), self.wires.clone());
            let filed = name.clone();
            let thread = std::thread::spawn(move || {
                let kept = http
                    .conn
                    .as_ref()
                    .and_then(|conn| wires.lock().unwrap().remove(conn));
                let mut wire = kept.unwrap_or_else(|| Wire::open(addr));
                let got = http.play(&mut wire, flag);
                answers.lock().unwrap().insert(filed, got);
                if let Some(conn) = http.conn {
                    wires.lock().unwrap().insert(conn, wire);
                }
            });
            threads.0.push((name, thread, go_away));
        }
        if !http.bg {
            threads.end(&http.name);
        }
    }

    fn raw(&self, raw: &Raw) {
        let kept = raw
            .conn
            .as_ref()
            .and_then(|conn| self.wires.lock().unwrap().remove(conn));
        let mut wire = kept.unwrap_or_else(|| Wire::open(self.sidecar.addr));
        let limit = raw.timeout_ms.map_or(PATIENCE, Duration::from_millis);
        wire.begin(limit, None);
        let mut octets = latin1(&raw.send);
        if let Some(pad) = &raw.pad {
            let (before, after) = raw.send.split_once("@PAD@").expect("@PAD@");
            octets = [latin1(before), pad.octets(), latin1(after)].concat();
        }
        match raw.dribble_ms {
            Some(gap) => wire.dribble(&octets, Duration::from_millis(gap)),
            None => wire.send(octets),
        }
        if raw.shutdown_write {
            wire.half_close();
        }
        let mut got = match raw.read {
            Read::Response => wire.answer(raw.send.starts_with("HEAD ")),
            Read::All => wire.everything(),
            Read::Bytes => wire.first_octets(),
            Read::None => Got::default(),
        };
        if let Some(limit) = raw.then_eof_ms {
            got.closed = wire.ends_within(Duration::from_millis(limit));
        }
        self.answers.lock().unwrap().insert(raw.name.clone(), got);
        if let Some(conn) = raw.conn.clone() {
            self.wires.lock().unwrap().insert(conn, wire);
        }
    }

    fn proxy(&mut self, proxy: &Proxy) -> Result<(), String> {
        match proxy.action {
            Action::Kill => self.sidecar.kill(),
            Action::Term => self.sidecar.signal("TERM"),
            Action::Freeze => self.sidecar.signal("STOP"),
            Action::Thaw => self.sidecar.signal("CONT"),
            Action::Start => self.sidecar = self.plan.start(),
            Action::AwaitExit => {
                let limit = proxy.timeout_ms.map_or(PATIENCE, Duration::from_millis);
                let until = Instant::now() + limit;
                while self.sidecar.is_running() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.exited = Some(!self.sidecar.is_running());
            }
            Action::Rss => {
                let path = format!("/proc/{}/status", self.sidecar.pid());
                let status = std::fs::read_to_string(path).unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
                let number = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
                self.rss_kb.push(number.ok_or("no VmRSS")?);
            }
        }
        Ok(())
    }
}

impl Http {
    fn play(&self, wire: &mut Wire, go_away: Option<Arc<AtomicBool>>) -> Got {
        let limit = self.timeout_ms.map_or(PATIENCE, Duration::from_millis);
        wire.begin(limit, go_away);
        let body = self.body.as_ref().map(Blob::octets);
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        let has = |name: &str| {
            self.headers
                .iter()
                .any(|(key, _)| key.eq_ignore_ascii_case(name))
        };
        if !has("host") {
            head.push_str("Host: api.test\r\n");
        }
        for (name, value) in &self.headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        let mut octets = body.clone().unwrap_or_default();
        if self.chunked {
            head.push_str("Transfer-Encoding: chunked\r\n");
            octets = crate::conformance::chunked(&octets, &[self.chunk_size.unwrap_or(4096)]);
        } else if let Some(body) = &body
            && !has("content-length")
        {
            write!(head, "Content-Length: {}\r\n", body.len()).unwrap();
        }
        head.push_str("\r\n");
        let head = latin1(&head);
        let mut interim = Vec::new();
        if self.wait_continue {
            wire.send(head);
            if wire.is_asked(&mut interim) {
                wire.send(octets);
            }
        } else {
            wire.send([head, octets].concat());
        }
        let mut got = wire.answer(self.method == "HEAD");
        interim.append(&mut got.interim);
        got.interim = interim;
        got
    }
}
