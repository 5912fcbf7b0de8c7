//! What ships: how many packages, under which licences, which never. `deny.toml` is the data, so
//! that cargo-deny and this test cannot disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::no_findings;
use crate::source::{read, root};

/// Packages in the binary, and in Cargo.lock.
const SHIPPED: usize = 250;
const LOCKED: usize = 380;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A package as cargo tells it.
struct Package {
    name: String,
    version: String,
    license: String,
    is_ours: bool,
    ships: bool,
}

/// Direct dependencies of the library and binary, as code names them.
pub(crate) fn direct_dependencies() -> BTreeSet<String> {
    let names: BTreeSet<String> = manifest_table("dependencies")
        .into_iter()
        .map(|name| name.replace('-', "_"))
        .collect();
    assert!(names.len() > 10);
    names
}

fn manifest_table(table: &str) -> Vec<String> {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    manifest[table]
        .as_table()
        .unwrap()
        .keys()
        .cloned()
        .collect()
}

/// `cargo metadata` of this platform. Offline: what was built is there.
fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = |arguments: &[&str]| {
        let output = Command::new(&cargo)
            .current_dir(root())
            .args(arguments)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "cargo {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let version = run(&["-vV"]);
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    let text = run(&[
        "metadata",
        "--locked",
        "--offline",
        "--format-version",
        "1",
        "--filter-platform",
        host,
    ]);
    serde_json::from_str(&text).unwrap()
}

fn packages() -> Vec<Package> {
    let metadata = metadata();
    let shipped = shipped(&metadata);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            license: text(&package["license"]),
            is_ours: package["source"].is_null(),
            ships: shipped.contains(package["id"].as_str().unwrap()),
        })
        .collect()
}

/// Ids of what normal dependencies reach, from the root.
fn shipped(metadata: &Value) -> BTreeSet<String> {
    let resolve = &metadata["resolve"];
    let nodes: BTreeMap<&str, &Value> = resolve["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["id"].as_str().unwrap(), node))
        .collect();
    let mut reached = BTreeSet::new();
    let mut next = vec![resolve["root"].as_str().unwrap()];
    while let Some(id) = next.pop() {
        if !reached.insert(id.to_owned()) {
            continue;
        }
        for dependency in nodes[id]["deps"].as_array().unwrap() {
            let kinds = dependency["dep_kinds"].as_array().unwrap();
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                next.push(dependency["pkg"].as_str().unwrap());
            }
        }
    }
    reached
}

fn deny() -> toml::Table {
    read("deny.toml").parse().unwrap()
}

/// `name` and `reason` of a list of `{ crate = "name@version", reason = "..." }`.
fn reasons(list: &toml::Value) -> BTreeMap<String, String> {
    let reasons: BTreeMap<_, _> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap().to_owned();
            (text("crate"), text("reason"))
        })
        .collect();
    assert!(
        reasons.values().all(|reason| reason.len() > 10),
        "a reason says why"
    );
    reasons
}

#[test]
fn the_package_budget_is_kept() {
    let packages = packages();
    let shipped = packages.iter().filter(|package| package.ships).count();
    let lock: toml::Table = read("Cargo.lock").parse().unwrap();
    let locked = lock["package"].as_array().unwrap();
    println!("{shipped} packages ship, {} in Cargo.lock", locked.len());
    assert!(
        shipped > 10 && shipped <= SHIPPED,
        "{shipped} packages ship, {SHIPPED} at most"
    );
    assert!(
        locked.len() <= LOCKED,
        "{} packages in Cargo.lock, {LOCKED} at most",
        locked.len()
    );
    let elsewhere: Vec<String> = locked
        .iter()
        .filter_map(|package| Some((package, package.get("source")?.as_str()?)))
        .filter(|(_, source)| *source != CRATES_IO)
        .map(|(package, source)| format!("{}: {source}", package["name"]))
        .collect();
    no_findings("packages from elsewhere", &elsewhere);
}

#[test]
fn every_licence_is_allowed() {
    let allowed: BTreeSet<String> = deny()["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect();
    let packages = packages();
    let findings: Vec<String> = packages
        .iter()
        .filter(|package| !is_allowed(&package.license, &allowed))
        .map(|package| {
            format!(
                "{} {}: {:?}",
                package.name, package.version, package.license
            )
        })
        .collect();
    assert!(packages.len() > 50);
    no_findings("licences (deny.toml)", &findings);
}

/// An SPDX expression: AND binds before OR; `/` is an old spelling of OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let result = any(&tokens, &mut at, allowed);
    result && at == tokens.len() && at > 0
}

fn any(tokens: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut result = every(tokens, at, allowed);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        result |= every(tokens, at, allowed);
    }
    result
}

fn every(tokens: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut result = one(tokens, at, allowed);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        result &= one(tokens, at, allowed);
    }
    result
}

fn one(tokens: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(token) = tokens.get(*at) else {
        return false;
    };
    *at += 1;
    if *token == "(" {
        let result = any(tokens, at, allowed);
        *at += 1;
        return result;
    }
    let mut id = (*token).to_owned();
    if tokens.get(*at) == Some(&"WITH") {
        id = format!("{id} WITH {}", tokens.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&id)
}

#[test]
fn licence_expressions_are_read_as_spdx_says() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Zlib".to_owned()]);
    for yes in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "MIT AND Zlib",
        "(GPL-3.0 OR Zlib) AND MIT",
    ] {
        assert!(is_allowed(yes, &allowed), "{yes}");
    }
    for no in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "MIT WITH x",
        "GPL-3.0 OR MIT AND GPL-2.0",
        "MIT MIT",
    ] {
        assert!(!is_allowed(no, &allowed), "{no}");
    }
}

#[test]
fn no_banned_crate_is_there() {
    let banned = reasons(&deny()["bans"]["deny"]);
    assert!(banned.len() > 5);
    let findings: Vec<String> = packages()
        .iter()
        .filter_map(|package| {
            let reason = banned.get(&package.name)?;
            Some(format!("{} {}: {reason}", package.name, package.version))
        })
        .collect();
    no_findings("banned crates (deny.toml)", &findings);
}

#[test]
fn no_crate_ships_twice_but_where_it_says_why() {
    let skipped = reasons(&deny()["bans"]["skip"]);
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages()
        .into_iter()
        .filter(|package| package.ships && !package.is_ours)
    {
        versions
            .entry(package.name)
            .or_default()
            .push(package.version);
    }
    assert!(versions.len() > 10);
    let is_skipped = |name: &str, version: &str| {
        skipped.keys().any(|entry| {
            let (skipped, from) = entry.split_once('@').unwrap_or((entry, ""));
            skipped == name && version.starts_with(from)
        })
    };
    let mut findings = Vec::new();
    for (name, all) in versions.iter().filter(|(_, all)| all.len() > 1) {
        let left: Vec<_> = all
            .iter()
            .filter(|version| !is_skipped(name, version))
            .collect();
        if left.len() > 1 {
            findings.push(format!("{name}: {}", all.join(", ")));
        }
    }
    for entry in skipped.keys() {
        let name = entry.split('@').next().unwrap();
        if versions.get(name).is_none_or(|all| all.len() < 2) {
            findings.push(format!("{entry}: the exemption is no longer needed"));
        }
    }
    no_findings("duplicates (deny.toml)", &findings);
}

#[test]
fn every_direct_dependency_says_why_it_is_there() {
    let page = read("docs/dependencies.md");
    let mut names = manifest_table("dependencies");
    names.extend(manifest_table("dev-dependencies"));
    let mut findings: Vec<String> = names
        .iter()
        .filter(|name| !page.contains(&format!("\n| `{name}` | ")))
        .map(|name| format!("{name} has no row"))
        .collect();
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: Vec<&str> = rows.collect();
    assert!(listed.len() > 10);
    for name in listed {
        if !names.iter().any(|known| known == name) {
            findings.push(format!("{name} is listed and not in Cargo.toml"));
        }
    }
    no_findings("docs/dependencies.md", &findings);
}
