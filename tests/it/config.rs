//! Sample configurations and their exact messages, the shipped file, the reference.
//!
//! `tests/configs/valid/NAME.toml` must be accepted with the warnings of `NAME.expected`,
//! `tests/configs/invalid/NAME.toml` refused with its errors (warnings follow). A comment line
//! `#env NAME=value` at the top sets a variable. `UPDATE_EXPECTED=1` writes the expected files
//! anew: read them afterwards. `UPDATE_DOCS=1` writes the table of docs/configuration.md anew.

#![allow(clippy::unwrap_used)] // the helpers are part of the tests

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use retrysafe::config::{self, Config, Environment};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The samples of a folder: name, text.
fn samples(folder: &str) -> Vec<(String, String)> {
    let folder = root().join("tests/configs").join(folder);
    let mut samples = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "toml") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            samples.push((name, read(&path)));
        }
    }
    samples.sort();
    samples
}

fn environment(text: &str) -> Environment {
    let lines = text.lines().filter_map(|line| line.strip_prefix("#env "));
    lines
        .map(|line| line.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn joined(findings: &[config::Diagnostic]) -> String {
    findings.iter().fold(String::new(), |mut text, finding| {
        writeln!(text, "{finding}\n").unwrap();
        text
    })
}

/// What a sample leads to: whether it is valid, and all findings.
fn outcome(name: &str, text: &str) -> (bool, String) {
    let file = format!("{name}.toml");
    match config::parse(text, &file, &environment(text)) {
        Ok((_, warnings)) => (true, joined(&warnings)),
        Err(errors) => (false, joined(&errors.errors) + &joined(&errors.warnings)),
    }
}

/// A line-by-line difference, enough to see what changed.
fn difference(expected: &str, found: &str) -> String {
    let (left, right): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let mut text = String::new();
    for index in 0..left.len().max(right.len()) {
        match (left.get(index), right.get(index)) {
            (Some(a), Some(b)) if a == b => writeln!(text, "  {a}").unwrap(),
            (a, b) => {
                for (sign, line) in [('-', a), ('+', b)] {
                    if let Some(line) = line {
                        writeln!(text, "{sign} {line}").unwrap();
                    }
                }
            }
        }
    }
    text
}

fn run_samples(folder: &str, want_valid: bool, at_least: usize) {
    let samples = samples(folder);
    assert!(samples.len() >= at_least, "only {} samples", samples.len());
    let update = std::env::var_os("UPDATE_EXPECTED").is_some();
    let mut failures = String::new();
    for (name, text) in &samples {
        let path = root().join(format!("tests/configs/{folder}/{name}.expected"));
        let (valid, found) = outcome(name, text);
        if valid != want_valid {
            writeln!(failures, "{folder}/{name}: valid is {valid}\n{found}").unwrap();
            continue;
        }
        assert!(
            !found.contains("hunter2"),
            "{name} shows a password:\n{found}"
        );
        if update {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if expected != found {
            let difference = difference(&expected, &found);
            writeln!(
                failures,
                "{folder}/{name} (- expected, + found)\n{difference}"
            )
            .unwrap();
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn valid_samples_are_accepted_with_their_warnings() {
    run_samples("valid", true, 10);
}

#[test]
fn invalid_samples_are_refused_with_their_messages() {
    run_samples("invalid", false, 30);
}

#[test]
fn no_expected_file_is_left_over() {
    let mut seen = 0;
    for folder in ["valid", "invalid"] {
        let names: Vec<String> = samples(folder).into_iter().map(|(name, _)| name).collect();
        let path = root().join("tests/configs").join(folder);
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(names.contains(&name), "{} has no sample", path.display());
            seen += 1;
        }
    }
    assert!(seen > 0);
}

#[test]
fn the_shipped_file_is_valid_and_says_the_defaults() {
    let path = root().join("config.toml");
    let loaded = config::load(Some(&path), &Environment::new()).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.path, path);
}

/// `# key = value` of the shipped file: the comments must not lie.
fn uncommented(text: &str) -> (String, usize) {
    let mut count = 0;
    let mut result = String::new();
    for line in text.lines() {
        let key_line = |line: &str| {
            let name = line.split(" = ").next().unwrap_or_default();
            let plain = |c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit();
            line.contains(" = ") && !name.is_empty() && name.chars().all(plain)
        };
        let line = match line.strip_prefix("# ").filter(|rest| key_line(rest)) {
            Some(rest) => {
                count += 1;
                rest
            }
            None => line,
        };
        writeln!(result, "{line}").unwrap();
    }
    (result, count)
}

#[test]
fn the_comments_of_the_shipped_file_are_the_defaults() {
    let (text, count) = uncommented(&read(&root().join("config.toml")));
    assert!(count > 40, "{count} keys");
    let (config, warnings) = config::parse(&text, "config.toml", &Environment::new()).unwrap();
    assert_eq!(config, Config::default());
    // Written out, the default drain is a choice that is worth a warning.
    let messages: Vec<_> = warnings.iter().map(|warning| &warning.message).collect();
    assert_eq!(messages, ["`drain` (25s) is below `answer_within` (30s)"]);
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(" = ").next())
        .collect();
    for key in config::reference() {
        let line = format!("#e {}", key.name());
        let found = names
            .iter()
            .any(|name| *name == key.name() || *name == line);
        assert!(found, "config.toml does not show {}", key.path);
    }
}

#[test]
fn the_examples_of_the_shipped_file_are_valid() {
    let text = read(&root().join("config.toml"));
    let mut lines = BTreeMap::new();
    let mut used = 0;
    for (index, line) in text.lines().enumerate() {
        let example = line.strip_prefix("#e ").filter(|rest| {
            !["url", "secret", "cache_file"]
                .iter()
                .any(|key| rest.starts_with(key))
        });
        used += usize::from(example.is_some());
        lines.insert(index, example.unwrap_or(line));
    }
    assert!(used >= 8, "{used}");
    let text: Vec<&str> = lines.into_values().collect();
    // Files that are there.
    let text = text.join("\n");
    let text = text
        .replace("/run/secrets/cache-tls/", "/run/secrets/tls/")
        .replace("/run/secrets/tls/tls", "tests/configs/tls/good")
        .replace("/run/secrets/tls/ca", "tests/configs/tls/ca")
        .replace("/run/secrets/retrysafe-keys", "tests/configs/keys/good.txt")
        .replace(
            "url = \"http://127.0.0.1:3000\"",
            "url = \"https://localhost\"",
        )
        // The one that a cache belongs to.
        .replace(
            "url = \"file:retrysafe.db\"",
            "url = \"postgres://u@localhost/d?sslmode=require\"",
        );
    let parsed = config::parse(&text, "config.toml", &Environment::new());
    let (config, warnings) = parsed.unwrap();
    assert_eq!(warnings, []);
    assert_eq!(config.routes.len(), 1);
}

/// The table between the two marks of docs/configuration.md.
fn reference_table() -> String {
    let mut text = String::new();
    let mut table = "";
    for key in config::reference() {
        if key.table() != table {
            table = key.table();
            let brackets = if table == "route" {
                ("[[", "]]")
            } else {
                ("[", "]")
            };
            writeln!(text, "\n### `{}{table}{}`\n", brackets.0, brackets.1).unwrap();
            let head = if table == "route" {
                "| key | type | meaning |\n|---|---|---|"
            } else {
                "| key | type | default | meaning | environment |\n|---|---|---|---|---|"
            };
            writeln!(text, "{head}").unwrap();
        }
        let (name, kind, doc) = (key.name(), key.kind, key.doc);
        match key.variable() {
            None => writeln!(text, "| `{name}` | {kind} | {doc} |").unwrap(),
            Some(variable) => {
                let default = match key.default {
                    "" => "none".to_owned(),
                    default => format!("`{default}`"),
                };
                writeln!(
                    text,
                    "| `{name}` | {kind} | {default} | {doc} | `{variable}` |"
                )
                .unwrap();
            }
        }
    }
    text
}

#[test]
fn the_reference_in_the_docs_is_the_one_in_the_program() {
    const BEGIN: &str = "<!-- reference: written by a test, UPDATE_DOCS=1 -->";
    const END: &str = "<!-- end of reference -->";
    let path = root().join("docs/configuration.md");
    let text = read(&path);
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let expected = format!("\n{}\n", reference_table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{before}{BEGIN}{expected}{END}{after}");
        return std::fs::write(&path, text).unwrap();
    }
    assert!(found == expected, "{}", difference(&expected, found));
}
