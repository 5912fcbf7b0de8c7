//! Who may name whom: the rooms of `src/` as data, held against every path in the code.
//!
//! Test code (`tests.rs`, `tests/`, `#[cfg(test)]`) and comments are exempt: a test may name
//! anything, a doc link reads better than a rule. An arrow that the table allows and nobody uses
//! fails too, so the table is what the code does.

use std::collections::BTreeSet;

use regex::Regex;

use crate::no_findings;
use crate::packages::direct_dependencies;
use crate::source::{Source, read, sources};

/// One room and its arrows.
struct Room {
    name: &'static str,
    /// Rooms it may name besides itself; `None`: all.
    names: Option<&'static [&'static str]>,
    /// Outside crates it may name.
    outside: &'static [&'static str],
    /// Words that may not stand in its code, whatever they would mean.
    never: &'static [&'static str],
}

/// What a pure room has no business with.
const IMPURE: &[&str] = &[
    "async",
    "await",
    "Instant",
    "SystemTime",
    "std::fs",
    "std::io",
    "std::env",
    "std::net",
    "std::thread",
    "std::process",
    "std::sync::Mutex",
    "println",
    "eprintln",
];

/// A room that is given a store may not know which.
const STORES: &[&str] = &[
    "MemoryStore",
    "FileStore",
    "RedisStore",
    "RedisStores",
    "PostgresStore",
    "PostgresStores",
    "Stores",
];

/// A room that builds settings may not start what they are for.
const WORKERS: &[&str] = &[
    "async",
    "await",
    "MemoryStore",
    "FileStore",
    "RedisStores",
    "PostgresStores",
    "Stores",
    "Proxy",
    "Shared",
    "Routes",
    "Front",
    "Health",
    "Metrics",
];

#[rustfmt::skip]
const ROOMS: &[Room] = &[
    Room { name: "idempotency", names: Some(&[]), never: IMPURE,
        outside: &["bytes", "hmac", "http", "serde", "serde_json", "serde_json_canonicalizer", "sha2", "thiserror"] },
    Room { name: "routes", names: Some(&["idempotency"]), never: IMPURE,
        outside: &["http", "thiserror"] },
    Room { name: "clock", names: Some(&[]), never: &["async"],
        outside: &[] },
    Room { name: "telemetry", names: Some(&[]), never: &["async"],
        outside: &["prometheus_client", "thiserror", "tracing_subscriber"] },
    Room { name: "store", names: Some(&["clock", "idempotency", "telemetry", "tls"]), never: &[],
        outside: &["base64", "bytes", "lz4_flex", "redb", "redis", "ring", "sha2", "thiserror", "tokio", "tokio_postgres", "tracing"] },
    Room { name: "tls", names: Some(&["telemetry"]), never: &[],
        outside: &["rustls", "rustls_native_certs", "tokio", "tokio_rustls", "tracing"] },
    Room { name: "proxy", names: Some(&["clock", "idempotency", "routes", "store", "telemetry", "tls"]), never: STORES,
        outside: &["base64", "bytes", "getrandom", "h2", "http", "http_body", "http_body_util", "httpdate",
            "hyper", "hyper_util", "ipnet", "serde_json", "sha2", "thiserror", "tokio", "tracing", "uuid"] },
    Room { name: "server", names: Some(&["telemetry", "tls"]), never: &[],
        outside: &["bytes", "http", "http_body", "hyper", "hyper_util", "socket2", "tokio", "tracing"] },
    Room { name: "admin", names: Some(&["telemetry"]), never: STORES,
        outside: &["bytes", "http", "http_body_util"] },
    Room { name: "config", names: Some(&["admin", "idempotency", "proxy", "routes", "server", "store", "telemetry", "tls"]),
        never: WORKERS,
        outside: &["http", "ipnet", "strsim", "toml"] },
    Room { name: "app", names: None, never: &[],
        outside: &["thiserror", "tokio", "tracing"] },
    Room { name: "cli", names: None, never: &[],
        outside: &["bytes", "clap", "getrandom", "http", "http_body_util", "hyper", "hyper_util", "serde_json",
            "tokio", "tracing"] },
    Room { name: "main", names: Some(&["cli"]), never: &["async"],
        outside: &[] },
    Room { name: "lib", names: Some(&[]), never: &["async", "fn"],
        outside: &[] },
];

/// Crates with one door: named in this file or folder and nowhere else.
const DOORS: &[(&str, &str)] = &[
    ("clap", "src/cli/"),
    ("h2", "src/proxy/upstream/"),
    ("hmac", "src/idempotency/secret.rs"),
    ("httpdate", "src/proxy/rewrite.rs"),
    ("prometheus_client", "src/telemetry/metrics/"),
    ("lz4_flex", "src/store/vault/"),
    ("redb", "src/store/file/"),
    ("redis", "src/store/redis/"),
    ("ring", "src/store/vault/"),
    ("rustls", "src/tls/"),
    ("rustls_native_certs", "src/tls/"),
    ("serde_json_canonicalizer", "src/idempotency/json.rs"),
    ("socket2", "src/server/"),
    ("strsim", "src/config/"),
    ("tokio_postgres", "src/store/postgres/"),
    ("tokio_rustls", "src/tls/"),
    ("toml", "src/config/"),
    ("tracing_subscriber", "src/telemetry/log.rs"),
    ("uuid", "src/proxy/"),
];

fn room(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

/// A name found in the code, with the place.
struct Named {
    name: String,
    line: usize,
}

/// First segments of `crate::room` (and, in `main.rs`, `retrysafe::room`) and of `super::` paths that
/// climb to the root.
fn rooms_named(source: &Source) -> Vec<Named> {
    let start = Regex::new(r"\b(?:crate|retrysafe)\s*::\s*|\b(?:super\s*::\s*)+").unwrap();
    let code = &source.shipped;
    let mut found = Vec::new();
    for path in start.find_iter(code) {
        let climbs = path.as_str().matches("super").count();
        let after_path = code[..path.start()].trim_end().ends_with("::");
        if after_path || (climbs > 0 && climbs != depth(&source.path)) {
            continue;
        }
        let line = source.line(path.start());
        for name in heads(&code[path.end()..]) {
            found.push(Named { name, line });
        }
    }
    found
}

/// How many modules deep a file is: `src/app.rs` and `src/proxy/mod.rs` are one.
fn depth(path: &str) -> usize {
    let parts = path.trim_end_matches("/mod.rs").split('/').count();
    parts - 1
}

/// The name that a path goes on with, or all those of `{a, b::c}`.
fn heads(rest: &str) -> Vec<String> {
    let word = Regex::new(r"^[A-Za-z_][A-Za-z0-9_]*").unwrap();
    let first = |text: &str| word.find(text).map(|found| found.as_str().to_owned());
    let Some(group) = rest.strip_prefix('{') else {
        return first(rest).into_iter().collect();
    };
    let mut depth = 1;
    let mut heads = Vec::new();
    let mut expects = true;
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => expects = true,
            _ if expects && depth == 1 && !letter.is_whitespace() => {
                heads.extend(first(&group[at..]));
                expects = false;
            }
            _ => {}
        }
    }
    heads
}

/// Outside crates by the name they have in code.
fn crates_named(source: &Source, crates: &BTreeSet<String>) -> Vec<Named> {
    let path =
        Regex::new(r"\b([a-z_][a-z0-9_]*)\s*::|\buse\s+([a-z_][a-z0-9_]*)\s*(?:;|\bas\b)").unwrap();
    let code = &source.shipped;
    let mut found = Vec::new();
    for captures in path.captures_iter(code) {
        let name = captures.get(1).or_else(|| captures.get(2)).unwrap();
        let inside_a_path = goes_on(&code[..name.start()]);
        if !inside_a_path && crates.contains(name.as_str()) {
            let line = source.line(name.start());
            found.push(Named {
                name: name.as_str().to_owned(),
                line,
            });
        }
    }
    found
}

/// Whether what follows `before` continues a path: `a::` or, in a group, `a::{b, `.
fn goes_on(before: &str) -> bool {
    let mut before = before.trim_end();
    if before.ends_with(['{', ',']) {
        let mut depth = 0;
        let open = before.char_indices().rev().find(|(_, letter)| {
            match letter {
                '}' => depth += 1,
                '{' if depth == 0 => return true,
                '{' => depth -= 1,
                _ => {}
            }
            false
        });
        before = open.map_or("", |(at, _)| before[..at].trim_end());
    }
    let head = before.strip_suffix("::").unwrap_or_default();
    head.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == '>')
}

#[test]
fn every_room_names_only_whom_it_may() {
    let crates = direct_dependencies();
    let (mut findings, mut used) = (Vec::new(), BTreeSet::new());
    for source in sources("src") {
        let name = source.room().unwrap().to_owned();
        let Some(room) = room(&name) else {
            findings.push(format!("{}: room {name} is not in the table", source.path));
            continue;
        };
        for named in rooms_named(&source) {
            let is_room = self::room(&named.name).is_some();
            if is_room && named.name != name {
                used.insert((name.clone(), named.name.clone()));
                let allowed = room.names.is_none_or(|names| names.contains(&&*named.name));
                if !allowed {
                    findings.push(arrow(&source, &name, &named));
                }
            }
        }
        for named in crates_named(&source, &crates) {
            used.insert((name.clone(), format!("{}::", named.name)));
            if !room.outside.contains(&&*named.name) {
                findings.push(arrow(&source, &name, &named));
            }
        }
        for word in room.never {
            let pattern = Regex::new(&format!(r"\b{word}\b")).unwrap();
            for found in pattern.find_iter(&source.shipped) {
                let line = source.line(found.start());
                findings.push(format!(
                    "{}:{line}: {name} may never say {word}",
                    source.path
                ));
            }
        }
    }
    findings.extend(unused(&used));
    assert!(used.len() > 50, "only {} arrows were found", used.len());
    no_findings("rooms (the table is in tests/tidy/rooms.rs)", &findings);
    println!("{} arrows between rooms and to outside crates", used.len());
}

fn arrow(source: &Source, from: &str, to: &Named) -> String {
    format!(
        "{}:{}: {from} -> {} is not in the table",
        source.path, to.line, to.name
    )
}

/// Arrows of the table that nobody uses.
fn unused(used: &BTreeSet<(String, String)>) -> Vec<String> {
    let mut findings = Vec::new();
    for room in ROOMS {
        let rooms = room
            .names
            .unwrap_or_default()
            .iter()
            .map(|name| (*name).to_owned());
        let outside = room.outside.iter().map(|name| format!("{name}::"));
        for to in rooms.chain(outside) {
            if !used.contains(&(room.name.to_owned(), to.clone())) {
                findings.push(format!(
                    "{} -> {to} is in the table and in no file",
                    room.name
                ));
            }
        }
    }
    findings
}

#[test]
fn crates_with_one_door_are_named_behind_it_only() {
    let crates: BTreeSet<String> = DOORS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let (mut findings, mut seen) = (Vec::new(), BTreeSet::new());
    for source in sources("src") {
        for named in crates_named(&source, &crates) {
            let door = DOORS
                .iter()
                .find(|(name, _)| *name == named.name)
                .unwrap()
                .1;
            seen.insert(named.name.clone());
            if !source.path.starts_with(door) {
                findings.push(format!(
                    "{}:{}: {} belongs to {door}",
                    source.path, named.line, named.name
                ));
            }
        }
    }
    for name in crates.difference(&seen) {
        findings.push(format!("{name} has a door and nobody uses it"));
    }
    no_findings("doors", &findings);
}

#[test]
fn every_room_is_listed_in_the_library_and_in_the_architecture_page() {
    let (library, page) = (read("src/lib.rs"), read("docs/ARCHITECTURE.md"));
    let mut findings = Vec::new();
    let mut seen = 0;
    for room in ROOMS
        .iter()
        .filter(|room| !["main", "lib"].contains(&room.name))
    {
        seen += 1;
        if !library.contains(&format!("pub mod {};", room.name)) {
            findings.push(format!("{} is not in src/lib.rs", room.name));
        }
        let rooms = room
            .names
            .map_or("all".to_owned(), |names| names.join(", "));
        let rooms = if rooms.is_empty() { "none" } else { &rooms };
        let outside = room
            .outside
            .iter()
            .map(|name| name.replace('_', "-"))
            .collect::<Vec<_>>()
            .join(", ");
        let outside = if outside.is_empty() { "none" } else { &outside };
        let row = format!("| `{}` | {rooms} | {outside} |", room.name);
        if !page.contains(&row) {
            findings.push(format!("docs/ARCHITECTURE.md has no row {row}"));
        }
    }
    assert!(seen > 10);
    no_findings("rooms in the documents", &findings);
}

#[test]
fn a_broken_arrow_is_found_where_it_is() {
    let crates = BTreeSet::from(["redis".to_owned(), "tokio".to_owned()]);
    let text = "use crate::{config, store::{self, redis::X}};\nuse super::super::routes;\n\
                fn f() { let x: crate::proxy::Y = redis::z(); ::tokio::spawn(store::redis::w()); }\n";
    let source = Source {
        path: "src/idempotency/key/mod.rs".into(),
        text: text.into(),
        code: text.into(),
        shipped: text.into(),
    };
    let rooms: Vec<_> = rooms_named(&source)
        .into_iter()
        .map(|named| (named.name, named.line))
        .collect();
    let expected = [("config", 1), ("store", 1), ("routes", 2), ("proxy", 3)];
    assert_eq!(rooms, expected.map(|(name, line)| (name.to_owned(), line)));
    let outside: Vec<_> = crates_named(&source, &crates)
        .into_iter()
        .map(|named| named.name)
        .collect();
    assert_eq!(outside, ["redis", "tokio"]);
}
