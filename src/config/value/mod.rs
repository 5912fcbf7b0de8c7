//! Single values: from what was written to what is meant, or a finding that says what to write.
//!
//! Every reader takes the value and the sink, and answers `None` once it has reported why. A value
//! from the environment is text; the readers for numbers, booleans and lists take that, too.
//!
//! Deliberately absent: defaults, and anything about two values together (`checks/`).
//! Read next: `measure.rs` (durations and sizes), `http.rs` (field names, methods, pointers).

pub(super) mod http;
pub(super) mod measure;

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::DeValue;

use super::diagnostic::Sink;
use super::schema::nearest;
use super::source::{Origin, quoted};

/// What was written for a key.
#[derive(Clone)]
pub(super) struct Value {
    /// The key's name for messages: `policy.ttl`, `route.policy.ttl`.
    pub(super) name: String,
    pub(super) at: Origin,
    pub(super) shape: Shape,
}

/// The form of a value.
#[derive(Clone)]
pub(super) enum Shape {
    Text(String),
    Integer(i128),
    Boolean(bool),
    List(Vec<Value>),
    /// Nothing that any key takes: a float, a date, a table.
    Other(&'static str),
}

impl Value {
    /// From the file.
    pub(super) fn from_toml(name: &str, value: &Spanned<DeValue<'_>>) -> Self {
        let shape = match value.get_ref() {
            DeValue::String(text) => Shape::Text(text.clone().into_owned()),
            DeValue::Boolean(flag) => Shape::Boolean(*flag),
            DeValue::Integer(digits) => i128::from_str_radix(digits.as_str(), digits.radix())
                .map_or(Shape::Other("integer"), Shape::Integer),
            DeValue::Array(items) => Shape::List(
                items
                    .iter()
                    .map(|item| Self::from_toml(name, item))
                    .collect(),
            ),
            other => Shape::Other(other.type_str()),
        };
        Self {
            name: name.to_owned(),
            at: Origin::File(value.span()),
            shape,
        }
    }

    /// From the environment.
    pub(super) fn from_variable(name: &str, variable: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            at: Origin::Variable(variable.to_owned()),
            shape: Shape::Text(text.to_owned()),
        }
    }

    /// The text of a variable; `None` for what a file says.
    fn variable_text(&self) -> Option<&str> {
        match (&self.at, &self.shape) {
            (Origin::Variable(_), Shape::Text(text)) => Some(text.trim()),
            _ => None,
        }
    }

    fn found(&self) -> &'static str {
        match &self.shape {
            Shape::Text(_) => "a string",
            Shape::Integer(_) => "an integer",
            Shape::Boolean(_) => "a boolean",
            Shape::List(_) => "a list",
            Shape::Other("table") => "a table",
            Shape::Other("datetime") => "a date",
            Shape::Other("integer") => "an integer that is too large",
            Shape::Other(_) => "a number with a fraction",
        }
    }

    /// Reports that the type is wrong.
    pub(super) fn wrong_type<T>(&self, sink: &mut Sink<'_>, wanted: &str, help: &str) -> Option<T> {
        let message = format!("`{}` expects {wanted}, found {}", self.name, self.found());
        sink.error(&self.at, message, help);
        None
    }

    /// Reports that the value is wrong.
    pub(super) fn wrong<T>(
        &self,
        sink: &mut Sink<'_>,
        what: impl Display,
        help: impl Into<String>,
    ) -> Option<T> {
        sink.error(&self.at, format!("`{}` {what}", self.name), help);
        None
    }
}

/// Any string.
pub(super) fn text<'v>(value: &'v Value, sink: &mut Sink<'_>) -> Option<&'v str> {
    match &value.shape {
        Shape::Text(text) => Some(text),
        _ => value.wrong_type(sink, "a string", "write it in double quotes"),
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &Value, sink: &mut Sink<'_>) -> Option<bool> {
    match (&value.shape, value.variable_text()) {
        (Shape::Boolean(flag), _) => Some(*flag),
        (_, Some("true")) => Some(true),
        (_, Some("false")) => Some(false),
        (_, Some(_)) => value.wrong(sink, "is neither true nor false", "set it to true or false"),
        (Shape::Text(text), _) if matches!(text.as_str(), "true" | "false") => {
            value.wrong_type(sink, "a boolean", &format!("write {text} without quotes"))
        }
        _ => value.wrong_type(sink, "a boolean", "write true or false"),
    }
}

/// A whole number within `range`.
pub(super) fn integer<T>(range: RangeInclusive<u64>) -> impl Fn(&Value, &mut Sink<'_>) -> Option<T>
where
    T: TryFrom<u64>,
{
    move |value, sink| {
        let number = match (&value.shape, value.variable_text()) {
            (Shape::Integer(number), _) => *number,
            (_, Some(text)) => match text.parse() {
                Ok(number) => number,
                Err(_) => return value.wrong(sink, "is not a whole number", "write digits only"),
            },
            (Shape::Text(text), _) if text.parse::<i128>().is_ok() => {
                let help = format!("write {text} without quotes");
                return value.wrong_type(sink, "an integer", &help);
            }
            _ => return value.wrong_type(sink, "an integer", "write digits only"),
        };
        let number = u64::try_from(number).ok();
        let number = number.filter(|number| range.contains(number));
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Some(number),
            None if *range.end() == u64::MAX => value.wrong(
                sink,
                format!("must be at least {}", range.start()),
                String::new(),
            ),
            None => value.wrong(
                sink,
                format!("must be between {} and {}", range.start(), range.end()),
                String::new(),
            ),
        }
    }
}

/// One of some words.
pub(super) fn choice<T: Copy>(
    choices: &'static [(&'static str, T)],
) -> impl Fn(&Value, &mut Sink<'_>) -> Option<T> {
    move |value, sink| {
        let words: Vec<String> = choices
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let one_of = format!("one of {}", words.join(", "));
        let Shape::Text(text) = &value.shape else {
            return value.wrong_type(sink, "a string", &format!("write {one_of}"));
        };
        if let Some((_, meaning)) = choices.iter().find(|(word, _)| word == text) {
            return Some(*meaning);
        }
        let help = match nearest(text, choices.iter().map(|(word, _)| *word)) {
            Some(near) => format!("did you mean \"{near}\"? ({one_of})"),
            None => format!("write {one_of}"),
        };
        value.wrong(sink, format!("does not know {}", quoted(text)), help)
    }
}

/// A list; every wrong element is reported.
pub(super) fn list<T: PartialEq>(
    item: impl Fn(&Value, &mut Sink<'_>) -> Option<T>,
) -> impl Fn(&Value, &mut Sink<'_>) -> Option<Vec<T>> {
    move |value, sink| {
        let items = match (&value.shape, value.variable_text()) {
            (Shape::List(items), _) => items.clone(),
            (_, Some(text)) => split(value, text),
            (Shape::Text(_), _) => {
                return value.wrong_type(sink, "a list", "write it in brackets: [\"...\"]");
            }
            _ => return value.wrong_type(sink, "a list", "write [...]"),
        };
        let read: Vec<Option<T>> = items.iter().map(|one| item(one, sink)).collect();
        let read: Option<Vec<T>> = read.into_iter().collect();
        let mut distinct = Vec::new();
        for one in read? {
            if !distinct.contains(&one) {
                distinct.push(one);
            }
        }
        Some(distinct)
    }
}

/// A list that must not be empty.
pub(super) fn some<T: PartialEq>(
    item: impl Fn(&Value, &mut Sink<'_>) -> Option<T>,
    help: &'static str,
) -> impl Fn(&Value, &mut Sink<'_>) -> Option<Vec<T>> {
    let read = list(item);
    move |value, sink| {
        let items = read(value, sink)?;
        if items.is_empty() {
            return value.wrong(sink, "must not be empty", help);
        }
        Some(items)
    }
}

/// The elements of a variable's comma-separated text.
fn split(value: &Value, text: &str) -> Vec<Value> {
    let parts = text.split(',').map(str::trim);
    let parts = parts.filter(|part| !part.is_empty());
    parts
        .map(|part| Value {
            name: value.name.clone(),
            at: value.at.clone(),
            shape: Shape::Text(part.to_owned()),
        })
        .collect()
}

/// An address to listen on.
pub(super) fn address(value: &Value, sink: &mut Sink<'_>) -> Option<SocketAddr> {
    let text = match &value.shape {
        Shape::Text(text) => text.trim(),
        Shape::Integer(port) => {
            let help = format!("write \"0.0.0.0:{port}\"");
            return value.wrong_type(sink, "an address with a port", &help);
        }
        _ => {
            return value.wrong_type(sink, "an address with a port", "write \"0.0.0.0:4390\"");
        }
    };
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let is_port = |text: &&str| text.parse::<u16>().is_ok();
    let help = if let Some(port) = text.strip_prefix(':').filter(is_port) {
        format!("write \"0.0.0.0:{port}\" for every address of the machine")
    } else if let Some(port) = text.strip_prefix("localhost:") {
        format!("host names are not looked up here: write \"127.0.0.1:{port}\"")
    } else if text.parse::<std::net::IpAddr>().is_ok() {
        "the port is missing: write IP:PORT, an IPv6 address in brackets".to_owned()
    } else {
        "write IP:PORT, e.g. \"0.0.0.0:4390\" or \"[::]:4390\"".to_owned()
    };
    value.wrong(
        sink,
        format!("is not an address with a port: {}", quoted(text)),
        help,
    )
}

/// A network, `10.0.0.0/8`, or a single address.
pub(super) fn network(value: &Value, sink: &mut Sink<'_>) -> Option<ipnet::IpNet> {
    let text = text(value, sink)?;
    let single = || text.parse::<std::net::IpAddr>().map(ipnet::IpNet::from);
    match text.parse().or_else(|_| single()) {
        Ok(network) => Some(network),
        Err(_) => value.wrong(
            sink,
            format!("has an element that is no network: {}", quoted(text)),
            "write \"10.0.0.0/8\", \"192.168.1.7\" or \"fd00::/8\"",
        ),
    }
}

/// A name that appears in keys, labels and logs.
pub(super) fn label(value: &Value, sink: &mut Sink<'_>) -> Option<String> {
    let text = text(value, sink)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
        return Some(text.to_owned());
    }
    let help = "write 1 to 64 characters of A-Z a-z 0-9 . _ -";
    value.wrong(sink, "is not a plain name", help)
}

/// A `tracing` filter: `info`, `warn,retrysafe::store=debug`.
pub(super) fn log_filter(value: &Value, sink: &mut Sink<'_>) -> Option<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let text = text(value, sink)?;
    let level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let part = |word: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_:-".contains(&byte);
        !word.is_empty() && word.bytes().all(fits)
    };
    for directive in text.split(',').map(str::trim) {
        let good = match directive.split_once('=') {
            None => level(directive),
            Some((target, word)) => part(target.trim()) && level(word.trim()),
        };
        if !good {
            let help = match nearest(directive, LEVELS.into_iter()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!(
                    "levels are {}; one part only: \"info,retrysafe::store=debug\"",
                    LEVELS.join(", ")
                ),
            };
            return value.wrong(sink, format!("does not know {}", quoted(directive)), help);
        }
    }
    Some(text.to_owned())
}

#[cfg(test)]
mod tests;
