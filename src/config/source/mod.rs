//! The text of a configuration file: where things stand in it, and how a line of it is shown.
//!
//! Invariant: no line leaves this module with a password in it. Masking is generous: rather too
//! much is hidden than too little, since a broken line is exactly the one that is shown.
//!
//! Deliberately absent: TOML. Positions come in as byte ranges.

use std::ops::Range;

use super::diagnostic::Place;

/// Where a value, a key or a table was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file as a whole.
    Whole,
    /// Bytes of the file.
    File(Range<usize>),
    /// An environment variable.
    Variable(String),
}

/// A configuration file that was read.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// The line and column of `at`, with the line as it may be shown.
    pub(super) fn place(&self, at: &Origin) -> Place {
        let span = match at {
            Origin::Whole => return Place::Whole(self.name.to_owned()),
            Origin::Variable(name) => return Place::Variable(name.clone()),
            Origin::File(span) => span,
        };
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = self.text.get(start..).unwrap_or_default();
        let line = line.split('\n').next().unwrap_or_default();
        let line = line.strip_suffix('\r').unwrap_or(line);
        let first = span.start.saturating_sub(start).min(line.len());
        let last = span.end.saturating_sub(start).clamp(first, line.len());
        let (shown, moved) = mask(line);
        let from = moved(first);
        Place::Line {
            file: self.name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: line.get(..first).unwrap_or(line).chars().count() + 1,
            before: from,
            width: moved(last).saturating_sub(from).max(1),
            shown,
        }
    }

    /// The line (from 1) on which the byte `at` stands.
    pub(super) fn line_of(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    /// The text of a line (from 1), for looking at only: nothing is masked.
    pub(super) fn line(&self, number: usize) -> &str {
        let mut lines = self.text.split('\n');
        lines.nth(number.saturating_sub(1)).unwrap_or_default()
    }
}

/// What stands for a secret.
const MASK: &str = "***";

/// `line` with secrets hidden, and a map from its byte offsets to characters of the result.
fn mask(line: &str) -> (String, impl Fn(usize) -> usize + use<>) {
    let hidden = secret(line);
    let clean = |text: &str| -> String {
        // A terminal must not obey what a file says.
        let visible = |c: char| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        };
        text.chars().map(visible).collect()
    };
    let shown = match &hidden {
        None => clean(line),
        Some(range) => {
            let before = line.get(..range.start).unwrap_or_default();
            let after = line.get(range.end..).unwrap_or_default();
            format!("{}{MASK}{}", clean(before), clean(after))
        }
    };
    let positions: Vec<usize> = line.char_indices().map(|(at, _)| at).collect();
    let count = move |from: usize, to: usize| {
        let inside = |at: &&usize| (from..to).contains(*at);
        positions.iter().filter(inside).count()
    };
    let moved = move |offset: usize| match &hidden {
        Some(range) if offset >= range.end => {
            count(0, range.start) + MASK.len() + count(range.end, offset)
        }
        Some(range) if offset > range.start => count(0, range.start) + MASK.len(),
        _ => count(0, offset),
    };
    (shown, moved)
}

/// Text from a configuration, fit to be quoted in a message: masked and not endless.
pub(super) fn quoted(text: &str) -> String {
    let (shown, _) = mask(text.split('\n').next().unwrap_or_default());
    let mut short: String = shown.chars().take(60).collect();
    if short != text && short.chars().count() == 60 {
        short.push_str("...");
    }
    format!("\"{short}\"")
}

/// The part of a line that must not be shown.
fn secret(line: &str) -> Option<Range<usize>> {
    let named = named_secret(line);
    let in_url = url_secret(line);
    match (named, in_url) {
        (Some(a), Some(b)) => Some(a.start.min(b.start)..a.end.max(b.end)),
        (a, b) => a.or(b),
    }
}

/// `password = "x"`, `?token=x`: all that follows a telling name and `=`.
fn named_secret(line: &str) -> Option<Range<usize>> {
    let telling = |word: &str| {
        let word = word.to_ascii_lowercase();
        let words = ["pass", "pasw", "pwd", "secret", "token", "credential"];
        words.iter().any(|name| word.contains(name)) && !word.ends_with("_file")
    };
    line.match_indices('=').find_map(|(at, _)| {
        let name = line.get(..at)?.trim_end_matches([' ', '\t', '"', '\'']);
        let start = name
            .rfind(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)))
            .map_or(0, |at| at + 1);
        let after = line.get(at + 1..)?;
        let blank = after.len() - after.trim_start().len();
        telling(name.get(start..)?).then_some(at + 1 + blank..line.len())
    })
}

/// The user info of a URL, however broken the URL is.
fn url_secret(line: &str) -> Option<Range<usize>> {
    let value = line.find('=').map_or(0, |at| at + 1);
    let scheme = line.find("://").map(|at| at + 3);
    if let Some(end) = line.rfind('@') {
        let before = line.get(value..end)?;
        let from = match scheme.filter(|from| *from <= end) {
            Some(from) => Some(from),
            None => before.find(':').map(|at| value + at + 1),
        };
        return from.filter(|from| *from < end).map(|from| from..end);
    }
    // `redis://:password`, `postgres://user:password`, whose host was forgotten: what follows the colon is no port.
    let with_password = |url: &str| url.contains("redis") || url.contains("postgres");
    let from = scheme.filter(|from| line.get(..*from).is_some_and(with_password))?;
    let rest = line.get(from..)?;
    let end = rest.find(['"', '\'']).unwrap_or(rest.len());
    let authority = rest.get(..end)?;
    if authority.starts_with('[') {
        return None;
    }
    let colon = authority.find(':')?;
    let port = authority.get(colon + 1..)?.split('/').next()?;
    let is_port = colon > 0 && port.bytes().all(|byte| byte.is_ascii_digit());
    (!is_port).then_some(from + colon + 1..from + end)
}

#[cfg(test)]
mod tests;
