//! The scripted upstream of `reports.json`: answers per route, counted per route.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;

use crate::conformance::octets::{Blob, latin1};
use crate::conformance::wire::lines;
use crate::support::upstream::{Act, Seen};

/// The upstream of one case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    #[serde(default)]
    routes: Vec<Route>,
    pub(super) idle_close_ms: Option<u64>,
    bind: Option<String>,
    #[serde(default)]
    pub(super) initially_down: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Route {
    when: When,
    #[serde(rename = "do")]
    answers: Vec<Answer>,
}

/// Which requests: what is absent does not matter.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct When {
    method: Option<String>,
    path: Option<String>,
}

impl When {
    pub(super) fn path(path: String) -> Self {
        Self {
            method: None,
            path: Some(path),
        }
    }

    pub(super) fn matches(&self, method: &str, target: &str) -> bool {
        let path = target.split('?').next();
        self.method.as_deref().is_none_or(|wanted| wanted == method)
            && self
                .path
                .as_deref()
                .is_none_or(|wanted| Some(wanted) == path)
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Answer {
    status: Option<u16>,
    headers: Vec<(String, String)>,
    body: Option<Blob>,
    framing: Framing,
    version: Option<String>,
    delay_ms: u64,
    interim: Vec<Interim>,
    head_gap_ms: u64,
    chunks: Vec<Chunk>,
    trailers: Vec<(String, String)>,
    declared: Option<usize>,
    stream_total: Option<usize>,
    close: bool,
    fault: Option<Fault>,
    send_bytes: usize,
    /// What a switch to another protocol would do: a case that gets there has failed before.
    upgrade: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Interim {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    gap_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chunk {
    text: String,
    #[serde(default)]
    gap_ms: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Framing {
    #[default]
    Length,
    Chunked,
    Close,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fault {
    ReadThenClose,
    ReadThenReset,
    Hang,
    CloseMidBody,
}

/// How many requests of a kind run now, and at most ran.
pub(super) type Running = Arc<Mutex<HashMap<(String, String), (usize, usize)>>>;

impl Script {
    pub(super) fn is_ipv6(&self) -> Result<bool, String> {
        match self.bind.as_deref() {
            None => Ok(false),
            Some("ipv6") => Ok(true),
            Some(other) => Err(format!("unknown word bind = {other}")),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let mut answers = self.routes.iter().flat_map(|route| &route.answers);
        if answers.any(|answer| answer.upgrade && answer.status != Some(101)) {
            return Err("unknown word upgrade".to_owned());
        }
        Ok(())
    }

    /// What to do for each request, told how many came before to its route.
    pub(super) fn player(
        self,
        running: Running,
    ) -> impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static {
        let calls = Mutex::new(vec![0; self.routes.len()]);
        move |request, number| {
            let path = request.target.split('?').next().unwrap_or_default();
            let kind = (request.method.clone(), path.to_owned());
            let mut now = running.lock().unwrap();
            let count = now.entry(kind.clone()).or_default();
            *count = (count.0 + 1, count.1.max(count.0 + 1));
            drop(now);
            let at = self
                .routes
                .iter()
                .position(|route| route.when.matches(&request.method, &request.target));
            let Some(at) = at else {
                let body = format!("default-{number}");
                return vec![crate::support::upstream::reply(200, &[], &body)];
            };
            let answers = &self.routes[at].answers;
            let mut calls = calls.lock().unwrap();
            let answer = &answers[calls[at].min(answers.len() - 1)];
            calls[at] += 1;
            let mut acts = answer.acts(request, number);
            let running = running.clone();
            // Before the last piece: who got the whole answer may come again at once.
            let last = acts.len() - 1;
            let done = Act::Do(Arc::new(move || {
                running.lock().unwrap().get_mut(&kind).unwrap().0 -= 1;
            }));
            acts.insert(last, done);
            if answer.upgrade {
                acts.push(Act::Echo);
            }
            acts
        }
    }
}

/// `%n%` and `%hdr:name%`.
fn fill(text: &str, request: &Seen, number: usize) -> String {
    let mut out = text.replace("%n%", &number.to_string());
    while let Some((before, rest)) = out.split_once("%hdr:") {
        let (name, after) = rest.split_once('%').expect("the end of %hdr:name%");
        let lines = lines(&request.headers, name);
        let value = if lines.is_empty() {
            "-".to_owned()
        } else {
            lines.join(", ")
        };
        out = format!("{before}{value}{after}");
    }
    out
}

impl Answer {
    fn acts(&self, request: &Seen, number: usize) -> Vec<Act> {
        let pause = |time| Act::Pause(Duration::from_millis(time));
        let mut acts = vec![pause(self.delay_ms)];
        match self.fault {
            Some(Fault::ReadThenClose) => return vec![Act::Close],
            Some(Fault::ReadThenReset) => return vec![Act::Reset],
            Some(Fault::Hang) => return vec![Act::Hang],
            Some(Fault::CloseMidBody) | None => {}
        }
        for interim in &self.interim {
            let head = self.head(interim.status, &interim.headers, request, number);
            acts.extend([Act::Send(head), pause(interim.gap_ms)]);
        }
        let body = self.body(request, number);
        let status = self.status.unwrap_or(200);
        let mut fields = self.headers.clone();
        let mut framing = |name: &str, value: String| fields.push((name.to_owned(), value));
        match self.framing {
            Framing::Chunked => framing("Transfer-Encoding", "chunked".to_owned()),
            Framing::Length if !matches!(status, 204 | 304) => {
                let length = self.declared.unwrap_or(body.len());
                framing("Content-Length", length.to_string());
            }
            Framing::Close => framing("Connection", "close".to_owned()),
            Framing::Length | Framing::None => {}
        }
        acts.push(Act::Send(self.head(status, &fields, request, number)));
        acts.push(pause(self.head_gap_ms));
        if request.method == "HEAD" {
            acts.push(Act::Send(Vec::new()));
        } else if self.fault == Some(Fault::CloseMidBody) {
            acts.push(Act::Send(body[..self.send_bytes].to_vec()));
            return [acts, vec![Act::Close]].concat();
        } else if let Some(total) = self.stream_total {
            let piece = vec![b'x'; 65536];
            acts.push(Act::Send(vec![b'x'; total % piece.len()]));
            acts.push(Act::Repeat(piece.clone(), total / piece.len()));
        } else if self.framing == Framing::Chunked {
            acts.extend(self.chunked(&body, request, number));
        } else {
            acts.push(Act::Send(body));
        }
        if self.close || self.framing == Framing::Close {
            acts.push(Act::Close);
        }
        acts
    }

    fn chunked(&self, body: &[u8], request: &Seen, number: usize) -> Vec<Act> {
        let mut acts = Vec::new();
        let piece = |octets: &[u8]| {
            let size = latin1(&format!("{:x}\r\n", octets.len()));
            Act::Send([&size, octets, b"\r\n"].concat())
        };
        if !body.is_empty() {
            acts.push(piece(body));
        }
        for chunk in &self.chunks {
            acts.push(piece(fill(&chunk.text, request, number).as_bytes()));
            acts.push(Act::Pause(Duration::from_millis(chunk.gap_ms)));
        }
        let mut end = b"0\r\n".to_vec();
        for (name, value) in &self.trailers {
            end.extend(latin1(&format!("{name}: {value}\r\n")));
        }
        end.extend(b"\r\n");
        acts.push(Act::Send(end));
        acts
    }

    fn body(&self, request: &Seen, number: usize) -> Vec<u8> {
        match &self.body {
            None => Vec::new(),
            Some(blob) => match blob.text() {
                Some(text) => fill(text, request, number).into_bytes(),
                None => blob.octets(),
            },
        }
    }

    fn head(
        &self,
        status: u16,
        fields: &[(String, String)],
        request: &Seen,
        number: usize,
    ) -> Vec<u8> {
        let version = self.version.as_deref().unwrap_or("1.1");
        let mut text = format!("HTTP/{version} {status} Scripted\r\n");
        for (name, value) in fields {
            let value = fill(value, request, number);
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        text.push_str("\r\n");
        latin1(&text)
    }
}
