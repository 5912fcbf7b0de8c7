//! `cases.json` and `own.json`: conversations in steps, each with its own expectation.

mod judge;
mod multiplexed;
mod upstream;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::home::Home;
use super::octets::{body, field_value, latin1};
use super::settings::CaseWords;
use super::wire::{Ending, Got, Wire};
use crate::support::PATIENCE;
use crate::support::sidecar::Sidecar;
use crate::support::upstream::{Reserved, Upstream};
use judge::{Answers, Expect};

/// How long a connection may take to end, where that is expected.
const TO_CLOSE: Duration = Duration::from_millis(2500);
/// The last number of calls must still hold after it.
const MOMENT: Duration = Duration::from_millis(100);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "title")]
    _title: String,
    #[serde(rename = "rule")]
    _rule: String,
    #[serde(rename = "source")]
    _source: Option<String>,
    #[serde(rename = "note")]
    _note: Option<String>,
    config: Config,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    proxy: CaseWords,
    upstream: Vec<upstream::Answer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    send: Send,
    expect: Expect,
    #[serde(default)]
    background: bool,
    join: Option<usize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    method: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: Vec<(String, Value)>,
    #[serde(default)]
    body: Value,
    raw: Option<String>,
    framing: Option<String>,
    #[serde(default)]
    chunks: Vec<usize>,
    #[serde(default)]
    wait_ms: u64,
    before: Option<String>,
    #[serde(default)]
    hold_body: bool,
    then: Option<Then>,
    #[serde(default)]
    after_ms: u64,
    conn: Option<String>,
    http: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Then {
    ShutdownWrite,
    Disconnect,
}

/// What the steps of one case share.
struct Stage {
    sidecar: Sidecar,
    upstream: Mutex<Option<Upstream>>,
    /// Named connections, and whether the last answer on it said that it ends.
    wires: Mutex<HashMap<String, (Wire, bool)>>,
    answers: Mutex<Answers>,
    faults: Mutex<Vec<String>>,
}

/// Plays one case; the faults, and the sidecar's log if there are any.
pub(super) fn play(case: &Value, home: &Home) -> Result<(), Vec<String>> {
    let case: Case = super::read(case)?;
    for answer in &case.config.upstream {
        answer.check().map_err(|fault| vec![fault])?;
    }
    let one = |fault: String| vec![fault];
    let reserved = Reserved::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let settings = case.config.proxy.settings().map_err(one)?;
    let plan = settings.plan(reserved.addr, home);
    let answers = case.config.upstream;
    let start = move || {
        reserved.start(None, move |request, number| {
            answers[(number - 1).min(answers.len() - 1)].acts(request)
        })
    };
    let mut later = Some(start);
    let is_down = case.config.proxy.is_upstream_down().map_err(one)?;
    let upstream = if is_down {
        None
    } else {
        later.take().map(|start| start())
    };
    let stage = Arc::new(Stage {
        sidecar: plan.start(),
        upstream: Mutex::new(upstream),
        wires: Mutex::default(),
        answers: Mutex::default(),
        faults: Mutex::default(),
    });
    let mut running: HashMap<usize, JoinHandle<()>> = HashMap::new();
    let last = case.steps.last().map(|step| step.expect.clone());
    for (number, step) in (1..).zip(case.steps) {
        if let Some(thread) = step.join.and_then(|join| running.remove(&join)) {
            stage.end(thread);
        }
        std::thread::sleep(Duration::from_millis(step.send.wait_ms));
        match step.send.before.as_deref() {
            None => {}
            Some("start_upstream") => {
                *stage.upstream.lock().unwrap() = later.take().map(|start| start());
            }
            Some(other) => stage.fault(number, &format!("unknown word before = {other}")),
        }
        let background = step.background;
        let staged = stage.clone();
        let thread = std::thread::spawn(move || staged.step(number, &step));
        if background {
            running.insert(number, thread);
        } else {
            stage.end(thread);
        }
    }
    for (_, thread) in running {
        stage.end(thread);
    }
    std::thread::sleep(MOMENT);
    let still = last.map(|last| last.still(stage.upstream.lock().unwrap().as_ref()));
    let mut faults = stage.faults.lock().unwrap().clone();
    faults.extend(still.and_then(Result::err));
    super::verdict(faults, &stage.sidecar)
}

impl Stage {
    fn fault(&self, step: usize, fault: &str) {
        let mut faults = self.faults.lock().unwrap();
        faults.push(format!("step {step}: {fault}"));
    }

    fn end(&self, thread: JoinHandle<()>) {
        if thread.join().is_err() {
            self.faults
                .lock()
                .unwrap()
                .push("a step broke off".to_owned());
        }
    }

    /// A step over another version of HTTP: one request, one answer.
    fn multiplexed(&self, number: usize, step: &Step) {
        let got = match multiplexed::exchange(self.sidecar.addr, &step.send) {
            Ok(got) => got,
            Err(fault) => return self.fault(number, &fault),
        };
        let mut faults = Vec::new();
        step.expect
            .answer(&got, &self.answers.lock().unwrap(), &mut faults);
        step.expect
            .upstream(self.upstream.lock().unwrap().as_ref(), &mut faults);
        self.answers.lock().unwrap().insert(number, got);
        for fault in faults {
            self.fault(number, &fault);
        }
    }

    fn step(&self, number: usize, step: &Step) {
        match step.send.http.as_deref() {
            None => {}
            Some("2") => return self.multiplexed(number, step),
            Some(other) => return self.fault(number, &format!("unknown word http = {other}")),
        }
        let (head, content) = match step.send.octets() {
            Ok(octets) => octets,
            Err(fault) => return self.fault(number, &fault),
        };
        let mut wire = self.wire(step.send.conn.as_deref());
        wire.begin(PATIENCE, None);
        let mut interim = Vec::new();
        if step.send.hold_body {
            wire.send(head);
            if wire.is_asked(&mut interim) {
                wire.send(content);
            }
        } else {
            wire.send([head, content].concat());
        }
        match step.send.then {
            None => {}
            Some(Then::ShutdownWrite) => wire.half_close(),
            Some(Then::Disconnect) => {
                std::thread::sleep(Duration::from_millis(step.send.after_ms));
            }
        }
        let mut faults = Vec::new();
        let to_head = step.send.method.as_deref() == Some("HEAD");
        for expect in &step.expect.responses {
            let answers = self.answers.lock().unwrap();
            expect.answer(&wire.answer(false), &answers, &mut faults);
        }
        let mut got = Got::default();
        if step.expect.is_unread() {
            drop(wire);
            step.expect.answer(&got, &HashMap::new(), &mut faults);
        } else if step.expect.responses.is_empty() {
            got = wire.answer(to_head);
            interim.append(&mut got.interim);
            got.interim = interim;
            step.expect
                .answer(&got, &self.answers.lock().unwrap(), &mut faults);
            self.after(step, wire, &got, &mut faults);
        }
        let upstream = self.upstream.lock().unwrap();
        step.expect.upstream(upstream.as_ref(), &mut faults);
        drop(upstream);
        self.answers.lock().unwrap().insert(number, got);
        for fault in faults {
            self.fault(number, &fault);
        }
    }

    /// The connection after its answer.
    fn after(&self, step: &Step, mut wire: Wire, got: &Got, faults: &mut Vec<String>) {
        match step.expect.connection_closed {
            None => {}
            Some(true) => {
                if !wire.ends_within(TO_CLOSE) {
                    faults.push("the connection ends, got one that stays open".to_owned());
                }
                return;
            }
            Some(false) => faults.push("unknown word connection_closed = false".to_owned()),
        }
        if let Some(name) = step.send.conn.as_deref() {
            let name = name.trim_end_matches("_or_new").to_owned();
            let ends = got.ending != Ending::Whole || got.lines("connection").contains(&"close");
            self.wires.lock().unwrap().insert(name, (wire, ends));
        }
    }

    fn wire(&self, name: Option<&str>) -> Wire {
        if let Some(name) = name {
            let known = name.trim_end_matches("_or_new");
            let kept = self.wires.lock().unwrap().remove(known);
            if let Some((mut wire, ends)) = kept
                && (known == name || !(ends || wire.is_over()))
            {
                return wire;
            }
        }
        Wire::open(self.sidecar.addr)
    }
}

impl Send {
    /// Head and body.
    fn octets(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        if let Some(raw) = &self.raw {
            return Ok((latin1(raw), Vec::new()));
        }
        let method = self.method.as_deref().ok_or("a request without a method")?;
        let path = self.path.as_deref().ok_or("a request without a path")?;
        let has = |name: &str| {
            self.headers
                .iter()
                .any(|(key, _)| key.eq_ignore_ascii_case(name))
        };
        let mut head = latin1(&format!("{method} {path} HTTP/1.1\r\n"));
        if !has("host") {
            head.extend(b"Host: api.example.test\r\n");
        }
        for (name, value) in &self.headers {
            head.extend(latin1(name));
            head.extend(b": ");
            head.extend(field_value(value)?);
            head.extend(b"\r\n");
        }
        let mut content = body(&self.body)?;
        match self.framing.as_deref() {
            None => {
                if let Some(content) = &content
                    && !has("content-length")
                {
                    head.extend(latin1(&format!("Content-Length: {}\r\n", content.len())));
                }
            }
            Some("chunked") => {
                head.extend(b"Transfer-Encoding: chunked\r\n");
                content = Some(super::chunked(&content.unwrap_or_default(), &self.chunks));
            }
            Some(other) => return Err(format!("unknown word framing = {other}")),
        }
        head.extend(b"\r\n");
        Ok((head, content.unwrap_or_default()))
    }
}
