//! The scripted upstream of `cases.json`: a list of answers, one per call, the last one repeats.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::conformance::octets::{body, field_value, latin1};
use crate::support::upstream::{Act, Seen};

/// One answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    #[serde(default = "ok")]
    status: u16,
    #[serde(default)]
    headers: Vec<(String, Value)>,
    #[serde(default)]
    body: Value,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    interim: Vec<Interim>,
    #[serde(default)]
    framing: Framing,
    raw: Option<String>,
    action: Option<Action>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Interim {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, Value)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Framing {
    #[default]
    Length,
    Chunked,
    ChunkedNoLast,
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Hang,
    CloseWithoutResponse,
    CloseAfterBody,
}

fn ok() -> u16 {
    200
}

/// A status line and field lines, with the empty line.
fn head(status: u16, fields: &[(String, Value)], framing: &str) -> Vec<u8> {
    let mut octets = latin1(&format!("HTTP/1.1 {status} Scripted\r\n"));
    for (name, value) in fields {
        octets.extend(latin1(name));
        octets.extend(b": ");
        octets.extend(field_value(value).unwrap());
        octets.extend(b"\r\n");
    }
    octets.extend(latin1(framing));
    octets.extend(b"\r\n");
    octets
}

impl Answer {
    /// What the upstream does; unknown words were found by [`Answer::check`].
    pub(super) fn acts(&self, request: &Seen) -> Vec<Act> {
        let mut acts = Vec::new();
        match self.action {
            Some(Action::Hang) => return vec![Act::Hang],
            Some(Action::CloseWithoutResponse) => return vec![Act::Close],
            Some(Action::CloseAfterBody) | None => {}
        }
        for interim in &self.interim {
            acts.push(Act::Send(head(interim.status, &interim.headers, "")));
        }
        if self.delay_ms > 0 {
            acts.push(Act::Pause(Duration::from_millis(self.delay_ms)));
        }
        let closes = matches!(self.framing, Framing::ChunkedNoLast | Framing::Close);
        acts.push(Act::Send(match &self.raw {
            Some(raw) => latin1(raw),
            None => self.octets(request.method == "HEAD"),
        }));
        if closes || self.action == Some(Action::CloseAfterBody) {
            acts.push(Act::Close);
        }
        acts
    }

    fn octets(&self, to_head: bool) -> Vec<u8> {
        let content = body(&self.body).unwrap().unwrap_or_default();
        let bodiless = matches!(self.status, 204 | 304);
        let has_length = self
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let framing = match self.framing {
            Framing::Length if bodiless || has_length => String::new(),
            Framing::Length => format!("Content-Length: {}\r\n", content.len()),
            Framing::Chunked | Framing::ChunkedNoLast => "Transfer-Encoding: chunked\r\n".into(),
            Framing::Close => "Connection: close\r\n".into(),
        };
        let mut octets = head(self.status, &self.headers, &framing);
        if to_head {
            return octets;
        }
        match self.framing {
            Framing::Length | Framing::Close => octets.extend(content),
            Framing::Chunked | Framing::ChunkedNoLast => {
                if !content.is_empty() {
                    octets.extend(latin1(&format!("{:x}\r\n", content.len())));
                    octets.extend(content);
                    octets.extend(b"\r\n");
                }
                if self.framing == Framing::Chunked {
                    octets.extend(b"0\r\n\r\n");
                }
            }
        }
        octets
    }

    /// The words inside values, which the shape alone does not tell.
    pub(super) fn check(&self) -> Result<(), String> {
        body(&self.body)?;
        let interim = self.interim.iter().flat_map(|interim| &interim.headers);
        for (_, value) in self.headers.iter().chain(interim) {
            field_value(value)?;
        }
        Ok(())
    }
}
