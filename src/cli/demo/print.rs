//! Narration: in colour on a terminal, plain elsewhere, plain where `NO_COLOR` is set.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;

use super::client::Answer;

/// One line on standard output. A reader that went away (`| head`) ends nothing.
macro_rules! line {
    ($($text:tt)*) => {
        let _gone = writeln!(std::io::stdout(), $($text)*).is_err();
    };
}

/// Prints the demo.
#[derive(Debug)]
pub(super) struct Printer {
    colour: bool,
}

impl Printer {
    pub(super) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            colour: wanted && std::io::stdout().is_terminal(),
        }
    }

    pub(super) fn opening(&self, proxy: SocketAddr, api: SocketAddr) {
        line!(
            "{}",
            self.paint("1", "Retrysafe: retry anything. It happens once.")
        );
        line!("");
        line!("  client ──► retrysafe {proxy} ──► sample payments API {api}");
        line!("             (store: memory)      (charges whenever it is asked to)");
    }

    /// A scene begins.
    pub(super) fn scene(&self, number: usize, title: &str) {
        line!("");
        line!("{}", self.paint("1;36", &format!("{number}. {title}")));
    }

    /// What the client does.
    pub(super) fn sends(&self, key: &str, body: &str) {
        let key = self.paint("33", key);
        line!("   ► POST /payments   Idempotency-Key: {key}   {body}");
    }

    /// What it gets.
    pub(super) fn gets(&self, answer: &Answer) {
        let colour = if answer.status < 300 { "32" } else { "31" };
        let status = self.paint(colour, &answer.status.to_string());
        let how = if answer.replayed {
            self.paint("35", "  Idempotent-Replayed: true")
        } else {
            String::new()
        };
        line!("   ◄ {status} {}{how}", shorten(&answer.body));
    }

    /// A remark.
    pub(super) fn says(&self, text: &str) {
        line!("   {}", self.paint("2", text));
    }

    /// The sum.
    pub(super) fn closing(&self, requests: usize, payments: usize) {
        line!("");
        let sum = format!("{requests} requests were sent, {payments} payments were made.");
        line!("{}", self.paint("1;32", &sum));
    }

    /// How to go on by hand.
    pub(super) fn keep(proxy: SocketAddr) {
        line!("");
        line!("Still running. Try, more than once, in another terminal (Ctrl-C ends it):");
        line!("");
        line!(
            "  curl -i http://{proxy}/payments -H 'Idempotency-Key: mine-1' -d '{{\"amount\":10}}'"
        );
        line!(
            "  curl -i http://{proxy}/payments -H 'Idempotency-Key: mine-1' -d '{{\"amount\":99}}'"
        );
        line!("  curl -i http://{proxy}/payments -d '{{\"amount\":10}}'");
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// A problem in one line: its code and what to do.
fn shorten(body: &str) -> String {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(body) else {
        return body.to_owned();
    };
    match (
        value.get("code").and_then(|code| code.as_str()),
        value.get("outcome"),
    ) {
        (Some(code), Some(outcome)) => format!("{code}, outcome {outcome}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => body.to_owned(),
    }
}
