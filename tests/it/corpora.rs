//! What the fuzzers check, on every input that is kept: `fuzz/corpus`, a folder for each target.
//! `tests/fuzz` looks for more.

use std::path::Path;

#[path = "../../fuzz/checks/config.rs"]
mod config;
#[path = "../../fuzz/checks/hop_by_hop.rs"]
mod hop_by_hop;
#[path = "../../fuzz/checks/json.rs"]
mod json;
#[path = "../../fuzz/checks/key.rs"]
mod key;
#[path = "../../fuzz/checks/record.rs"]
mod record;
#[path = "../../fuzz/checks/target.rs"]
mod target;

type Check = fn(&[u8]);

const TARGETS: [(&str, Check); 6] = [
    ("config", config::check),
    ("hop_by_hop", hop_by_hop::check),
    ("json", json::check),
    ("key", key::check),
    ("record", record::check),
    ("target", target::check),
];

#[test]
fn every_kept_input_holds() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let folders = std::fs::read_dir(&corpora).unwrap().count();
    assert_eq!(folders, TARGETS.len(), "a folder without a check");
    for (name, check) in TARGETS {
        let mut played = 0;
        for entry in std::fs::read_dir(corpora.join(name)).unwrap() {
            let path = entry.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            let held = std::panic::catch_unwind(|| check(&data));
            assert!(held.is_ok(), "{}", path.display());
            played += 1;
        }
        assert!(played >= 5, "{name}: {played}");
    }
}
