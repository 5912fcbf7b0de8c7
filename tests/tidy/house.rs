//! Sizes, words and places: what every file keeps to.

use std::collections::BTreeSet;

use regex::Regex;

use crate::no_findings;
use crate::source::{Source, files, item_end, read, root, sources};

/// Lines of a file, and of a function.
const FILE: usize = 400;
const FUNCTION: usize = 70;

/// Files longer than [`FILE`], with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Functions longer than [`FUNCTION`], with the reason.
const LONG_FUNCTIONS: &[(&str, &str)] = &[];

/// Files with characters outside ASCII in their code or comments, with the reason.
const NOT_ASCII: &[(&str, &str)] = &[
    ("src/cli/demo/print.rs", "arrows on a terminal"),
    ("src/config/document/mod.rs", "an ellipsis"),
    (
        "src/config/source/tests.rs",
        "columns are counted in characters",
    ),
    ("src/config/tests.rs", "random text"),
    ("src/config/value/tests/http.rs", "a value that is refused"),
    (
        "src/config/value/tests/measure.rs",
        "a value that is refused",
    ),
    ("src/config/value/tests/mod.rs", "a value that is refused"),
    ("src/lib.rs", "an ellipsis"),
    ("src/proxy/execution/mod.rs", "a diagram"),
    ("src/proxy/mod.rs", "a diagram"),
    (
        "src/store/redis/subscription.rs",
        "a channel name that is none",
    ),
];

/// Modules whose folder has no `mod.rs`. Empty on purpose.
const ROOT_MODULES: &[&str] = &["src", "src/bin"];

fn all() -> Vec<Source> {
    [sources("src"), sources("tests"), sources("examples")]
        .into_iter()
        .flatten()
        .collect()
}

/// Compares what breaks a rule with what may.
fn against(rule: &str, broken: Vec<(String, String)>, exempt: &[(&str, &str)]) {
    let names: BTreeSet<_> = broken.iter().map(|(name, _)| name.clone()).collect();
    let mut findings: Vec<String> = broken
        .into_iter()
        .filter(|(name, _)| !exempt.iter().any(|(exempt, _)| exempt == name))
        .map(|(_, finding)| finding)
        .collect();
    for (name, reason) in exempt {
        if !names.contains(*name) {
            findings.push(format!(
                "{name}: the exemption is no longer needed ({reason})"
            ));
        }
    }
    no_findings(rule, &findings);
}

#[test]
fn no_file_is_longer_than_it_can_be_held() {
    let broken = all()
        .iter()
        .map(|source| (source.path.clone(), source.text.lines().count()))
        .filter(|(_, lines)| *lines > FILE)
        .map(|(path, lines)| {
            (
                path.clone(),
                format!("{path}: {lines} lines, {FILE} at most"),
            )
        })
        .collect();
    against("file size", broken, LONG_FILES);
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let start = Regex::new(r"\bfn\s+([a-z_][a-z0-9_]*)").unwrap();
    let (mut broken, mut seen, mut longest) = (Vec::new(), 0, 0);
    for source in all() {
        for captures in start.captures_iter(&source.code) {
            let at = captures.get(0).unwrap().start();
            let end = item_end(&source.code, at);
            let lines = 1 + source.code[at..end].matches('\n').count();
            seen += 1;
            longest = longest.max(lines);
            if lines > FUNCTION {
                let name = format!("{}::{}", source.path, &captures[1]);
                let finding = format!(
                    "{}:{}: {} has {lines} lines, {FUNCTION} at most",
                    source.path,
                    source.line(at),
                    &captures[1]
                );
                broken.push((name, finding));
            }
        }
    }
    assert!(seen > 500, "only {seen} functions were found");
    println!("{seen} functions, the longest has {longest} lines");
    against("function size", broken, LONG_FUNCTIONS);
}

#[test]
fn every_file_opens_by_saying_what_it_owns() {
    let findings: Vec<String> = [sources("src"), sources("tests")]
        .into_iter()
        .flatten()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| format!("{}:1: does not open with //!", source.path))
        .collect();
    no_findings("module docs", &findings);
}

#[test]
fn every_module_folder_has_its_door_in_mod_rs() {
    let mut folders = BTreeSet::new();
    let mut findings = Vec::new();
    for path in files("src", ".rs") {
        let (folder, _) = path.rsplit_once('/').unwrap();
        folders.insert(folder.to_owned());
        let beside = path.trim_end_matches(".rs");
        if root().join(beside).is_dir() {
            findings.push(format!("{path}: belongs into {beside}/mod.rs"));
        }
    }
    for folder in &folders {
        if !ROOT_MODULES.contains(&folder.as_str()) && !root().join(folder).join("mod.rs").exists()
        {
            findings.push(format!("{folder}: has no mod.rs"));
        }
    }
    assert!(folders.len() > 10);
    no_findings("module folders", &findings);
}

#[test]
fn nothing_is_left_undone_or_skipped() {
    // Written in two pieces, so that this file does not find itself.
    let in_code = [
        concat!("to", "do!"),
        concat!("unimple", "mented!"),
        concat!("#[igno", "re"),
        concat!("#[should", "_panic"),
        concat!("dbg", "!("),
    ];
    let anywhere = [
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("TO", "DO"),
    ];
    let mut findings = Vec::new();
    for source in all() {
        let lines = source.text.lines().zip(source.code.lines()).enumerate();
        for (at, (text, code)) in lines {
            let word = in_code.iter().find(|word| code.contains(**word));
            let word = word.or_else(|| anywhere.iter().find(|word| text.contains(**word)));
            if let Some(word) = word {
                findings.push(format!("{}:{}: {word}", source.path, at + 1));
            }
        }
    }
    no_findings("words", &findings);
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    // Folders of a machine, settings that send a package manager elsewhere, papers nobody else has.
    let words = [
        concat!("seed", " lesson"),
        concat!("DESIGN", "'s words"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("index", "-url"),
        concat!("replace", "-with"),
        concat!("artifact", "ory"),
    ];
    // The user of an image has a home there.
    let exempt = ["tests/container/base-images"];
    let (mut findings, mut seen) = (Vec::new(), 0);
    for path in files(".", "") {
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else {
            continue;
        };
        seen += 1;
        for (at, line) in text.lines().enumerate() {
            let word = words.iter().find(|word| line.contains(**word));
            if let Some(word) = word.filter(|_| !exempt.contains(&path.as_str())) {
                findings.push(format!("{path}:{}: {word}", at + 1));
            }
        }
    }
    assert!(seen > 100, "only {seen} files were read");
    assert!(
        !root().join(".cargo").exists(),
        ".cargo/ configures one machine"
    );
    no_findings("machine paths and registries", &findings);
}

#[test]
fn source_is_ascii_but_where_it_says_why() {
    let broken = all()
        .iter()
        .filter_map(|source| {
            let (at, _) = source
                .text
                .lines()
                .enumerate()
                .find(|(_, line)| !line.is_ascii())?;
            Some((
                source.path.clone(),
                format!("{}:{}: not ASCII", source.path, at + 1),
            ))
        })
        .collect();
    against("ASCII", broken, NOT_ASCII);
}

/// Rust, scripts, and sample configurations with their expected messages. Not counted: the
/// conversations of `tests/cases`, whose lines say little about their size.
#[test]
fn there_is_at_least_as_much_test_as_code() {
    let lines = |text: &str| text.lines().filter(|line| is_content(line)).count();
    let (mut code, mut tests) = (0, 0);
    for source in [sources("src"), sources("tests")].into_iter().flatten() {
        let shipped = if source.path.starts_with("src/") {
            lines(&source.shipped)
        } else {
            0
        };
        code += shipped;
        tests += lines(&source.code) - shipped;
    }
    let rust = tests;
    for folder in ["tests/configs", "tests/real", "tests/container"] {
        for path in files(folder, "") {
            if !path.contains("requirements") && !path.contains("/.") {
                tests += lines(&read(&path));
            }
        }
    }
    println!(
        "{code} lines of code, {tests} of tests, {rust} of them Rust (no blanks, no comments)"
    );
    assert!(
        code > 1000 && tests >= code,
        "{tests} lines of tests for {code} of code"
    );
}

fn is_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("# ") && line != "#"
}

#[test]
fn lints_stand_in_the_manifest() {
    let manifest = read("Cargo.toml");
    for lint in [
        "unsafe_code = \"forbid\"",
        "unwrap_used = \"warn\"",
        "too_many_lines = \"warn\"",
    ] {
        assert!(manifest.contains(lint), "Cargo.toml lacks {lint}");
    }
    assert!(read("clippy.toml").contains(&format!("too-many-lines-threshold = {FUNCTION}")));
}
