//! The documents say what the code does: metrics, log events, problem codes, exit codes, links.

use std::collections::BTreeSet;

use regex::Regex;

use crate::no_findings;
use crate::source::{files, read, root, sources};

/// First cells of the tables of a page, without backticks.
fn first_cells(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect()
}

/// What of `code` is missing in `page`, and the other way round.
fn both_ways(code: &BTreeSet<String>, page: &BTreeSet<String>, where_: &str) -> Vec<String> {
    let missing = code
        .difference(page)
        .map(|name| format!("{name} is not in {where_}"));
    let stale = page
        .difference(code)
        .map(|name| format!("{name} of {where_} is not in the code"));
    missing.chain(stale).collect()
}

#[test]
fn every_metric_is_documented_by_the_name_it_is_scraped_by() {
    let text = read("src/telemetry/metrics/mod.rs");
    let register = Regex::new(
        r#"register(_with_unit)?\(\s*"([a-z_]+)",\s*"[^"]*",\s*(?:Unit::([A-Za-z]+),)?\s*([a-z._]+)"#,
    )
    .unwrap();
    let mut names = BTreeSet::new();
    for captures in register.captures_iter(&text) {
        let unit = captures
            .get(3)
            .map(|unit| format!("_{}", unit.as_str().to_lowercase()));
        let field = captures[4]
            .trim_start_matches("self.")
            .trim_end_matches(".clone");
        let counter = Regex::new(&format!(r"pub {field}: (?:Family<[^\n]*, )?Counter\b")).unwrap();
        let total = if counter.is_match(&text) {
            "_total"
        } else {
            ""
        };
        names.insert(format!(
            "retrysafe_{}{}{total}",
            &captures[2],
            unit.unwrap_or_default()
        ));
    }
    assert_eq!(names.len(), text.matches("\n        r.register").count());
    assert!(names.len() > 10, "{names:?}");
    let page = first_cells(&read("docs/metrics.md"))
        .into_iter()
        .filter(|name| name.starts_with("retrysafe_"))
        .collect();
    no_findings("metrics", &both_ways(&names, &page, "docs/metrics.md"));
}

#[test]
fn every_log_event_is_documented() {
    let event = Regex::new(r#"\bevent = "([a-z_]+)""#).unwrap();
    let events: BTreeSet<String> = sources("src")
        .iter()
        .flat_map(|source| {
            let names = event.captures_iter(&source.text);
            names
                .map(|captures| captures[1].to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(events.len() > 10);
    let page = first_cells(&read("docs/metrics.md"))
        .into_iter()
        .filter(|name| !name.starts_with("retrysafe_"))
        .collect();
    no_findings("log events", &both_ways(&events, &page, "docs/metrics.md"));
}

#[test]
fn every_problem_code_is_documented_with_its_status() {
    let row =
        Regex::new(r#"\(\s*"([a-z_]+)",\s*(\d{3}),\s*"[^"]*",\s*(true|false),?\s*\)"#).unwrap();
    let text = read("src/proxy/problem.rs");
    let page = read("docs/protocol.md");
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for captures in row.captures_iter(&text) {
        let (code, status) = (&captures[1], &captures[2]);
        seen.insert(code.to_owned());
        let retryable = if &captures[3] == "true" { "yes" } else { "no" };
        let start = format!("| `{code}` | {status} | {retryable}");
        if !page.contains(&start) {
            findings.push(format!("docs/protocol.md has no row {start}"));
        }
    }
    // Each variant's doc is its status and nothing else.
    let status = Regex::new(r"(?m)^    /// \d{3}$").unwrap();
    let variants = status.find_iter(&text).count();
    assert_eq!(
        seen.len(),
        variants,
        "a code is not in the table, or was not read"
    );
    no_findings("problem codes", &findings);
}

#[test]
fn every_rule_is_explained_in_its_place() {
    let page = read("docs/protocol.md");
    let heads = Regex::new(r"(?m)^\*\*R(\d+)\*\*").unwrap();
    let numbers: Vec<u32> = heads
        .captures_iter(&page)
        .map(|found| found[1].parse().unwrap())
        .collect();
    assert_eq!(numbers, (1..=34).collect::<Vec<_>>());
    // A number in the code that is no rule is a typing error.
    let quoted = Regex::new(r"\bR(\d{1,2})\b").unwrap();
    let mut seen = 0;
    for source in sources("src") {
        for found in quoted.captures_iter(&source.text) {
            let number: u32 = found[1].parse().unwrap();
            assert!(
                (1..=34).contains(&number),
                "{}: R{number} is no rule",
                source.path
            );
            seen += 1;
        }
    }
    assert!(seen > 100);
}

#[test]
fn every_exit_code_is_documented() {
    let text = read("src/cli/mod.rs");
    let row = Regex::new(r"(?m)^//! \| (\d+) \| ").unwrap();
    let mut codes: BTreeSet<String> = row
        .captures_iter(&text)
        .map(|found| found[1].to_owned())
        .collect();
    let constant = Regex::new(r"pub const [A-Z_]+: u8 = (\d+);").unwrap();
    for found in constant.captures_iter(&text) {
        assert!(
            codes.contains(&found[1]),
            "exit code {} is not in the module's table",
            &found[1]
        );
    }
    assert!(codes.len() > 4);
    let page = first_cells(&read("docs/commands.md"))
        .into_iter()
        .filter(|cell| cell.parse::<u8>().is_ok())
        .collect();
    codes.retain(|code| !code.is_empty());
    no_findings("exit codes", &both_ways(&codes, &page, "docs/commands.md"));
}

#[test]
fn links_between_documents_lead_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let (mut findings, mut seen) = (Vec::new(), 0);
    for path in files(".", ".md") {
        let text = read(&path);
        let folder = root().join(&path).parent().unwrap().to_owned();
        for captures in link.captures_iter(&text) {
            let target = &captures[1];
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let full = if file.is_empty() {
                root().join(&path)
            } else {
                folder.join(file)
            };
            if !full.exists() {
                findings.push(format!("{path}: {target} is not there"));
            } else if !anchor.is_empty()
                && !has_anchor(&std::fs::read_to_string(full).unwrap(), anchor)
            {
                findings.push(format!("{path}: {target} has no such heading"));
            }
        }
    }
    assert!(seen > 10, "only {seen} links were found");
    no_findings("links", &findings);
}

/// Whether a heading of the page has this anchor, as GitHub builds it.
fn has_anchor(page: &str, anchor: &str) -> bool {
    page.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.collect::<String>().replace(' ', "-") == anchor
        })
}
