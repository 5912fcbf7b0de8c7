//! The conversations of `tests/cases`, played against the real program from outside: over files, over
//! Redis and over PostgreSQL.
//!
//! `CASE=K01` plays one case. What the format means is in `tests/cases/README.md`. A case with a word
//! that is not known here fails; the only way around is the list of cases that stand back, and
//! that list is checked: each id exists, each reason is an allowed one, and no case on it passes.

mod dialogue;
mod home;
mod octets;
mod report;
mod settings;
mod wire;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::support::sidecar::Sidecar;
use home::Home;

/// Cases at once: most of them wait, most of the time.
const WORKERS: usize = 6;
/// Lines of the sidecar's log that a failure shows.
const LOG_LINES: usize = 40;

/// Why a case may stand back.
const REASONS: [&str; 2] = ["1xx forwarding", "no config key: strip_prefix"];

type Play = fn(&Value, &Home) -> Result<(), Vec<String>>;
type StandBack = BTreeMap<String, BTreeMap<String, String>>;

/// One case to play.
struct Entry {
    file: &'static str,
    case: Value,
    play: Play,
    stands_back: bool,
}

const FILES: [(&str, &str, Play); 3] = [
    (
        "cases",
        include_str!("../../cases/cases.json"),
        dialogue::play,
    ),
    (
        "reports",
        include_str!("../../cases/reports.json"),
        report::play,
    ),
    ("own", include_str!("../../cases/own.json"), dialogue::play),
];

/// A case as its file's format says; what the format does not know is a fault.
fn read<T: DeserializeOwned>(case: &Value) -> Result<T, Vec<String>> {
    serde_json::from_value(case.clone()).map_err(|error| vec![format!("unknown word: {error}")])
}

/// The faults with the end of the sidecar's log, or none.
fn verdict(mut faults: Vec<String>, sidecar: &Sidecar) -> Result<(), Vec<String>> {
    if faults.is_empty() {
        return Ok(());
    }
    let log = sidecar.log();
    let from = log.len().saturating_sub(LOG_LINES);
    faults.extend(log[from..].iter().map(|line| format!("  log: {line}")));
    Err(faults)
}

/// A chunked body; the last size repeats.
fn chunked(octets: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = octets;
    let mut sizes = sizes.iter().copied();
    let mut size = octets.len();
    while !rest.is_empty() {
        size = sizes.next().unwrap_or(size).clamp(1, octets.len());
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        out.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        out.extend_from_slice(chunk);
        out.extend(b"\r\n");
        rest = after;
    }
    out.extend(b"0\r\n\r\n");
    out
}

fn id(case: &Value) -> &str {
    case["id"].as_str().expect("an id")
}

fn entries(stand_back: &StandBack) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (file, text, play) in FILES {
        let cases: Vec<Value> = serde_json::from_str(text).unwrap();
        for case in cases {
            let listed = stand_back
                .get(file)
                .is_some_and(|ids| ids.contains_key(id(&case)));
            entries.push(Entry {
                file,
                case,
                play,
                stands_back: listed,
            });
        }
    }
    entries
}

fn run(entry: &Entry, home: &Home) -> Result<(), Vec<String>> {
    let play = || (entry.play)(&entry.case, home);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(play)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(vec![format!("broke off: {}", text.unwrap_or_default())])
    })
}

/// Plays all, a few at once. The results, by their entry's index.
fn run_all(entries: &[&Entry], home: &Home) -> BTreeMap<usize, Result<(), Vec<String>>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(entry) = entries.get(at) else { break };
                    let result = run(entry, home);
                    results.lock().unwrap().insert(at, result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

#[test]
fn every_case_holds_or_stands_back_with_a_reason() {
    play_all(&Home::file());
}

#[test]
fn every_case_holds_on_redis() {
    if let Some(home) = Home::redis() {
        play_all(&home);
    }
}

#[test]
fn every_case_holds_on_postgres() {
    if let Some(home) = Home::postgres() {
        play_all(&home);
    }
}

/// Plays what is asked for, says how much it was, and demands that all of it holds.
fn play_all(home: &Home) {
    let stand_back: StandBack =
        serde_json::from_str(include_str!("../../cases/not-yet.json")).unwrap();
    let all = entries(&stand_back);
    let one = std::env::var("CASE").ok();
    let chosen: Vec<&Entry> = all
        .iter()
        .filter(|entry| one.as_deref().is_none_or(|one| one == id(&entry.case)))
        .collect();
    assert!(!chosen.is_empty(), "no case is called {one:?}");
    let results = run_all(&chosen, home);
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut faults = Vec::new();
    for (at, result) in results {
        let entry = chosen[at];
        let name = format!("{}/{}", entry.file, id(&entry.case));
        let count = counts.entry(entry.file).or_default();
        match (entry.stands_back, result) {
            (true, Err(_)) => count.1 += 1,
            (true, Ok(())) => {
                faults.push(format!(
                    "{name} passes: take it from tests/cases/not-yet.json"
                ));
            }
            (false, Ok(())) => count.0 += 1,
            (false, Err(lines)) => {
                count.0 += 1;
                let title = entry.case["title"].as_str().unwrap_or_default();
                faults.push(format!("{name} {title}\n    {}", lines.join("\n    ")));
            }
        }
    }
    for (file, (ran, back)) in &counts {
        println!("{file}{home}: {ran} cases ran, {back} not yet");
    }
    if let Some(places @ 1..) = home.places() {
        let records = home.records();
        println!("{places} of all{home}, which left {records} records there");
        assert!(one.is_some() || records > 0, "no record is{home}");
    }
    let is_used = home.places() != Some(0);
    assert!(one.is_some() || is_used, "no case was played{home}");
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults.join("\n")
    );
    assert!(counts.values().all(|(ran, _)| *ran > 0), "nothing ran");
    assert!(
        one.is_some() || counts.len() == FILES.len(),
        "a file is empty"
    );
}

#[test]
fn what_stands_back_exists_and_has_an_allowed_reason() {
    let stand_back: StandBack =
        serde_json::from_str(include_str!("../../cases/not-yet.json")).unwrap();
    let all = entries(&stand_back);
    for (file, ids) in &stand_back {
        for (listed, reason) in ids {
            let exists = all
                .iter()
                .any(|entry| entry.file == file && id(&entry.case) == listed);
            assert!(exists, "{file} has no case {listed}");
            assert!(REASONS.contains(&reason.as_str()), "{listed}: {reason}");
        }
    }
    let mut names: Vec<_> = all
        .iter()
        .map(|entry| (entry.file, id(&entry.case)))
        .collect();
    names.sort_unstable();
    let before = names.len();
    names.dedup();
    assert_eq!(names.len(), before, "an id stands twice in a file");
}
