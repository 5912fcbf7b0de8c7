//! From TOML to named values: walks the file by hand, so that every value keeps its place.
//!
//! Invariant: what comes out are values of known keys only; all else was reported. The environment
//! is laid over afterwards and wins.
//!
//! Deliberately absent: what the values mean (`resolve/`).

mod environment;

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Environment;
use super::diagnostic::{Place, Sink};
use super::schema::{self, Found};
use super::source::{Origin, Source};
use super::value::Value;

/// Values by the path of their key.
pub(super) type Values = BTreeMap<&'static str, Value>;

/// One `[[route]]` as written.
pub(super) struct RouteTable {
    pub(super) header: Origin,
    /// `route.name` …, `policy.ttl` ….
    pub(super) values: Values,
}

/// A configuration as written.
#[derive(Default)]
pub(super) struct Document {
    pub(super) globals: Values,
    pub(super) routes: Vec<RouteTable>,
    /// Where the file is no TOML: values were lost, so nothing may be said about what is missing.
    syntax: Vec<toml::de::Error>,
}

impl Document {
    /// Reads the file, then the environment.
    pub(super) fn read(source: &Source<'_>, env: &Environment, sink: &mut Sink<'_>) -> Self {
        let mut document = Self::default();
        let (table, errors) = DeTable::parse_recoverable(source.text);
        let mut walk = Walk {
            sink,
            in_route: false,
        };
        walk.root(table.get_ref(), &mut document);
        document.syntax = errors;
        environment::overlay(env, &mut document.globals, sink);
        document
    }

    /// Whether the file is no TOML.
    pub(super) fn is_broken(&self) -> bool {
        !self.syntax.is_empty()
    }

    /// Reports what is no TOML, the first finding of each line, and drops what followed from it.
    pub(super) fn report_syntax(&self, source: &Source<'_>, sink: &mut Sink<'_>) {
        const DUPLICATE: &str = "duplicate key";
        let found: Vec<_> = self
            .syntax
            .iter()
            .map(|error| (error.span().unwrap_or_default(), error.message()))
            .map(|(span, message)| (source.line_of(span.start), span, message))
            .collect();
        // Below a broken header every key seems to stand in the wrong table.
        let header = found
            .iter()
            .filter(|(line, _, message)| {
                *message != DUPLICATE && source.line(*line).trim_start().starts_with('[')
            })
            .map(|(line, ..)| *line)
            .min();
        sink.retain(|finding| match &finding.place {
            Place::Line { line, .. } => {
                found.iter().all(|(broken, ..)| broken != line)
                    && header.is_none_or(|header| *line < header)
            }
            _ => true,
        });
        let mut reported = Vec::new();
        for (line, span, message) in found {
            if reported.contains(&line) {
                continue;
            }
            reported.push(line);
            let what = message
                .strip_suffix(", expected nothing")
                .unwrap_or(message);
            let message = format!("not valid TOML: {what}");
            sink.error(&Origin::File(span), message, syntax_help(what));
        }
    }
}

/// What to write instead, for the usual slips.
fn syntax_help(message: &str) -> &'static str {
    let has = |part: &str| message.contains(part);
    if has("duplicate key") {
        "keep one of the two"
    } else if has("escape") {
        "write a backslash as \\\\, or use single quotes"
    } else if has("invalid basic string") || has("invalid literal string") {
        "close the string with the quote it began with"
    } else if has("must be quoted") || has("float") || has("integer") || has("date") {
        "write text in double quotes: key = \"value\""
    } else {
        ""
    }
}

/// The walk through the tables.
struct Walk<'s, 'a> {
    sink: &'s mut Sink<'a>,
    in_route: bool,
}

impl Walk<'_, '_> {
    fn root(&mut self, root: &DeTable<'_>, document: &mut Document) {
        for (key, value) in root {
            if key.get_ref() == "route" {
                self.routes(key.span(), value, &mut document.routes);
            } else {
                self.member(
                    "",
                    key.get_ref(),
                    &Origin::File(key.span()),
                    value,
                    &mut document.globals,
                );
            }
        }
    }

    fn routes(
        &mut self,
        key: std::ops::Range<usize>,
        value: &Spanned<DeValue<'_>>,
        routes: &mut Vec<RouteTable>,
    ) {
        let DeValue::Array(items) = value.get_ref() else {
            let help = "write [[route]] with two brackets; each one is a route of its own";
            let message = "`route` is a list of tables";
            self.sink.error(&Origin::File(key), message, help);
            return;
        };
        self.in_route = true;
        for item in items {
            let header = Origin::File(item.span());
            let DeValue::Table(table) = item.get_ref() else {
                let help = "write [[route]] and its keys below";
                self.sink.error(&header, "a route is a table", help);
                continue;
            };
            let mut values = Values::new();
            self.table("route", table, &mut values);
            routes.push(RouteTable { header, values });
        }
        self.in_route = false;
    }

    /// `path`: where the keys of `table` stand in the schema.
    fn table(&mut self, path: &str, table: &DeTable<'_>, values: &mut Values) {
        for (key, value) in table {
            self.member(
                path,
                key.get_ref(),
                &Origin::File(key.span()),
                value,
                values,
            );
        }
    }

    fn member(
        &mut self,
        table: &str,
        name: &str,
        at: &Origin,
        value: &Spanned<DeValue<'_>>,
        values: &mut Values,
    ) {
        // `[route.policy]` has the keys of `[policy]`.
        let path = match (table, name) {
            ("", name) | ("route", name @ "policy") => name.to_owned(),
            (table, name) => format!("{table}.{name}"),
        };
        let shown = self.shown(&path);
        match schema::find(&path) {
            Found::Key(key)
                if self.in_route
                    && ["policy.max_waiters", "policy.require_tier"].contains(&key.path) =>
            {
                let message =
                    format!("`{name}` holds for the whole process and cannot be set in a route");
                let help = match name {
                    "max_waiters" => {
                        "write it under [policy]; `max_waiters_per_key` can be set here"
                    }
                    _ => "write it under [policy]",
                };
                self.sink.error(at, message, help);
            }
            Found::Key(key) => {
                values.insert(key.path, Value::from_toml(&shown, value));
            }
            Found::NotYet(entry) => {
                let message = format!("`{shown}` is not available in this version yet");
                self.sink.error(at, message, entry.help);
            }
            Found::Table => match value.get_ref() {
                // Whoever writes it wants TLS: plain HTTP would be a surprise.
                DeValue::Table(inner) if path == "server.tls" && inner.is_empty() => {
                    let help = "write cert_file and key_file, or remove it";
                    let message = "`server.tls` names no certificate";
                    self.sink.error(at, message, help);
                }
                DeValue::Table(inner) => self.table(&path, inner, values),
                DeValue::Array(_) => {
                    let message = format!("`{shown}` is one table, not a list");
                    self.sink.error(at, message, format!("write [{shown}]"));
                }
                _ => {
                    let message = format!("`{shown}` is a table, not a value");
                    let help = format!("write [{shown}] and its keys below");
                    self.sink.error(at, message, help);
                }
            },
            Found::Unknown => self.unknown(table, name, at, value.get_ref()),
        }
    }

    fn unknown(&mut self, table: &str, name: &str, at: &Origin, value: &DeValue<'_>) {
        let kind = match value {
            DeValue::Table(_) => "table",
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => "table",
            _ => "key",
        };
        let place = match self.shown(table).as_str() {
            "" if kind == "key" => " outside any table".to_owned(),
            "" => String::new(),
            "route" => " in [[route]]".to_owned(),
            table => format!(" in [{table}]"),
        };
        let message = format!("unknown {kind} `{name}`{place}");
        self.sink
            .error(at, message, schema::suggestion(table, name));
    }

    /// How a path is called where we are.
    fn shown(&self, path: &str) -> String {
        if self.in_route && path.starts_with("policy") {
            return format!("route.{path}");
        }
        path.to_owned()
    }
}
