//! The expectations of `cases.json` against what came.

use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::conformance::octets::{body, from_latin1, shown};
use crate::conformance::wire::{Ending, Got, lines};
use crate::support::upstream::{Seen, Upstream};

/// What a step expects; what is absent is not judged.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) status: Option<Value>,
    #[serde(default)]
    headers: Map<String, Value>,
    body: Option<Value>,
    upstream_calls: Option<Value>,
    upstream_request: Option<Request>,
    interim: Option<Value>,
    #[serde(default)]
    pub(super) responses: Vec<Self>,
    pub(super) connection_closed: Option<bool>,
    http_version: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    method: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: Map<String, Value>,
    body: Option<Value>,
}

/// The answers of earlier steps, by number.
pub(super) type Answers = std::collections::HashMap<usize, Got>;

impl Expect {
    /// Whether nothing is to be read.
    pub(super) fn is_unread(&self) -> bool {
        self.status == Some(Value::from("none"))
    }

    /// Judges one answer; each fault is a line.
    pub(super) fn answer(&self, got: &Got, answers: &Answers, faults: &mut Vec<String>) {
        let mut note = |fault: Result<(), String>| faults.extend(fault.err());
        if let Some(expected) = &self.status {
            note(status(expected, got));
        }
        for (name, expected) in &self.headers {
            note(field(name, expected, &got.lines(name)));
        }
        if let Some(expected) = &self.body {
            note(content(expected, got, answers));
        }
        if let Some(expected) = &self.interim {
            note(interim(expected, &got.interim));
        }
        if let Some(expected) = &self.http_version
            && *expected != got.version
        {
            note(Err(format!("version {expected}, got {}", got.version)));
        }
    }

    /// Judges what reached the upstream by now.
    pub(super) fn upstream(&self, upstream: Option<&Upstream>, faults: &mut Vec<String>) {
        let mut note = |fault: Result<(), String>| faults.extend(fault.err());
        if let Some(expected) = &self.upstream_calls {
            // A request nobody waits for is still on its way.
            if let (true, Some(upstream), Some(least)) =
                (self.is_unread(), upstream, expected.as_u64())
            {
                let limit = Duration::from_secs(2);
                upstream.wait_until(limit, |seen| seen.len() as u64 >= least);
            }
            note(calls(expected, upstream.map_or(0, Upstream::calls)));
        }
        if let Some(expected) = &self.upstream_request {
            match upstream.map(Upstream::seen).unwrap_or_default().last() {
                None => note(Err("a request at the upstream, got none".to_owned())),
                Some(seen) => request(expected, seen, faults),
            }
        }
    }

    /// The number of calls still holds a moment later.
    pub(super) fn still(&self, upstream: Option<&Upstream>) -> Result<(), String> {
        match &self.upstream_calls {
            None => Ok(()),
            Some(expected) => calls(expected, upstream.map_or(0, Upstream::calls))
                .map_err(|fault| format!("a moment later: {fault}")),
        }
    }
}

fn calls(expected: &Value, got: usize) -> Result<(), String> {
    let holds = match expected {
        Value::Number(number) => number.as_u64() == Some(got as u64),
        Value::Object(map) if map.len() == 1 => match map.get("max").and_then(Value::as_u64) {
            Some(max) => got as u64 <= max,
            None => return Err(format!("unknown word in upstream_calls: {expected}")),
        },
        _ => return Err(format!("unknown word in upstream_calls: {expected}")),
    };
    if holds {
        return Ok(());
    }
    Err(format!("upstream_calls {expected}, got {got}"))
}

fn status(expected: &Value, got: &Got) -> Result<(), String> {
    let one = |expected: &Value| match expected {
        Value::Number(number) => {
            Ok(got.ending == Ending::Whole && number.as_u64() == Some(u64::from(got.status)))
        }
        Value::String(word) => match word.as_str() {
            "aborted" => Ok(got.ending == Ending::Aborted),
            "closed" => Ok(matches!(got.ending, Ending::Closed | Ending::Reset)),
            "reset" => Ok(got.ending == Ending::Reset),
            "none" => Ok(got.ending == Ending::Unread),
            other => Err(format!("unknown word in status: {other}")),
        },
        other => Err(format!("unknown word in status: {other}")),
    };
    let mut holds = false;
    match expected {
        Value::Array(several) => {
            for expected in several {
                holds |= one(expected)?;
            }
        }
        expected => holds = one(expected)?,
    }
    if holds {
        return Ok(());
    }
    let body = shown(&got.body);
    Err(format!(
        "status {expected}, got {} ({:?}) {body}",
        got.status, got.ending
    ))
}

/// Judges the lines of one field.
pub(super) fn field(name: &str, expected: &Value, lines: &[&str]) -> Result<(), String> {
    let joined = lines.join(", ");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let holds = match expected {
        Value::String(text) => lines == [text],
        Value::Object(map) if map.len() == 1 => {
            let (word, value) = map.iter().next().unwrap();
            match (word.as_str(), value) {
                ("absent", Value::Bool(true)) => lines.is_empty(),
                ("present", Value::Bool(true)) => !lines.is_empty(),
                ("matches", Value::String(pattern)) => {
                    !lines.is_empty() && Regex::new(pattern).unwrap().is_match(&joined)
                }
                ("not_matches", Value::String(pattern)) => {
                    !Regex::new(pattern).unwrap().is_match(&joined)
                }
                ("not", Value::String(text)) => !lines.contains(&text.as_str()),
                ("all", Value::Array(all)) => {
                    let all = all.iter().map(text).collect::<Option<Vec<_>>>();
                    all.is_some_and(|all| lines == all)
                }
                _ => return Err(format!("unknown word in the field {name}: {expected}")),
            }
        }
        _ => return Err(format!("unknown word in the field {name}: {expected}")),
    };
    if holds {
        return Ok(());
    }
    Err(format!("{name} {expected}, got {lines:?}"))
}

fn content(expected: &Value, got: &Got, answers: &Answers) -> Result<(), String> {
    let map = expected.as_object();
    let expected_octets = match map.and_then(|map| map.iter().next()) {
        Some((word, value)) if word == "equals_step" => {
            let number = value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok());
            let answer = number.and_then(|number| answers.get(&number));
            answer
                .ok_or("equals_step names no earlier step")?
                .body
                .clone()
        }
        Some((word, Value::Object(members))) if word == "json" => return json(members, got),
        _ => body(expected)?.unwrap_or_default(),
    };
    if expected_octets == got.body {
        return Ok(());
    }
    let (expected, got) = (shown(&expected_octets), shown(&got.body));
    Err(format!("body {expected}, got {got}"))
}

fn json(members: &Map<String, Value>, got: &Got) -> Result<(), String> {
    let document: Value = serde_json::from_slice(&got.body)
        .map_err(|_| format!("a JSON body, got {}", shown(&got.body)))?;
    for (name, expected) in members {
        let value = document.get(name);
        let fault = || Err(format!("member {name} {expected}, got {document}"));
        let holds = match expected.as_object() {
            None => value == Some(expected),
            Some(map) if map.len() == 1 => match map.iter().next().unwrap() {
                (word, Value::Bool(true)) if word == "present" => value.is_some(),
                (word, Value::Bool(true)) if word == "absent" => value.is_none(),
                (word, Value::String(pattern)) if word.ends_with("matches") => {
                    let text = value.and_then(Value::as_str).unwrap_or_default();
                    let matches = Regex::new(pattern).unwrap().is_match(text);
                    match word.as_str() {
                        "matches" => matches,
                        "not_matches" => !matches,
                        _ => return Err(format!("unknown word in the member {name}: {expected}")),
                    }
                }
                _ => return Err(format!("unknown word in the member {name}: {expected}")),
            },
            Some(_) => return Err(format!("unknown word in the member {name}: {expected}")),
        };
        if !holds {
            return fault();
        }
    }
    Ok(())
}

fn interim(expected: &Value, got: &[u16]) -> Result<(), String> {
    let got = Value::from(got);
    let allowed = match expected {
        Value::Array(_) => vec![expected.clone()],
        Value::Object(map) if map.len() == 1 && map.contains_key("one_of") => {
            map["one_of"].as_array().cloned().unwrap_or_default()
        }
        _ => return Err(format!("unknown word in interim: {expected}")),
    };
    if allowed.contains(&got) {
        return Ok(());
    }
    Err(format!("interim {expected}, got {got}"))
}

fn request(expected: &Request, seen: &Seen, faults: &mut Vec<String>) {
    let mut note = |fault: Result<(), String>| {
        faults.extend(fault.err().map(|fault| format!("at the upstream: {fault}")));
    };
    for (what, expected, got) in [
        ("method", &expected.method, &seen.method),
        ("path", &expected.path, &seen.target),
    ] {
        if let Some(expected) = expected
            && expected != got
        {
            note(Err(format!("{what} {expected:?}, got {got:?}")));
        }
    }
    for (name, expected) in &expected.headers {
        note(field(name, expected, &lines(&seen.headers, name)));
    }
    if let Some(expected) = &expected.body {
        note(match body(expected) {
            Err(fault) => Err(fault),
            Ok(octets) if octets.clone().unwrap_or_default() == seen.body => Ok(()),
            Ok(_) => Err(format!("body {expected}, got {}", from_latin1(&seen.body))),
        });
    }
}
