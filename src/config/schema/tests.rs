//! The table of keys, look-ups and suggestions.

use std::collections::BTreeSet;

use super::*;

#[test]
fn names_are_unique_and_every_key_is_explained() {
    let mut paths = BTreeSet::new();
    for key in reference() {
        assert!(paths.insert(key.path), "{} twice", key.path);
        assert!(key.doc.len() > 10, "{}", key.path);
        assert!(!key.table().is_empty(), "{}", key.path);
    }
    assert!(paths.len() > 60, "{}", paths.len());
}

#[test]
fn keys_have_a_variable_and_routes_have_none() {
    let named = |path: &str| match find(path) {
        Found::Key(key) => key.variable(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        named("policy.key.missing").unwrap(),
        "RETRYSAFE__POLICY__KEY__MISSING"
    );
    assert_eq!(named("store.url").unwrap(), "RETRYSAFE__STORE__URL");
    assert_eq!(named("route.name"), None);
}

#[test]
fn a_path_is_a_key_a_table_not_there_yet_or_unknown() {
    assert!(matches!(find("policy.ttl"), Found::Key(_)));
    for table in [
        "policy",
        "policy.key",
        "server",
        "server.tls",
        "upstream.tls",
        "route",
    ] {
        assert!(matches!(find(table), Found::Table), "{table}");
    }
    for absent in ["admin", "admin.listen", "jwt.x.y"] {
        assert!(matches!(find(absent), Found::NotYet(_)), "{absent}");
    }
    for unknown in ["polic", "policy.ttls", "server.tlsx", "store.cached", ""] {
        assert!(matches!(find(unknown), Found::Unknown), "{unknown}");
    }
}

#[test]
fn what_does_not_exist_yet_is_not_in_the_reference() {
    for entry in keys::NOT_YET {
        assert!(
            reference().all(|key| key.path != entry.path),
            "{}",
            entry.path
        );
        assert!(!entry.help.is_empty());
    }
}

#[test]
fn suggestions_name_the_nearest_the_right_place_or_the_choice() {
    let cases = [
        ("server", "lisen", "did you mean `listen`?"),
        ("server", "headerTimeout", "did you mean `header_timeout`?"),
        ("policy", "in-flight-wait", "did you mean `in_flight_wait`?"),
        ("policy", "tll", "did you mean `ttl`?"),
        ("", "polcy", "did you mean [policy]?"),
        ("", "routes", "did you mean [[route]]?"),
        ("route", "polciy", "did you mean `policy`?"),
        ("route", "ttl", "`ttl` belongs in [route.policy]"),
        ("server", "url", "`url` belongs in [upstream] or [store]"),
        ("server", "lease", "`lease` belongs in [policy]"),
        ("policy", "path", "`path` belongs in [[route]]"),
        (
            "health",
            "zzzzz",
            "known keys here: listen, ready_requires_store",
        ),
        (
            "",
            "zzzzz",
            "known tables: [server], [upstream], [store], [policy], [[route]], [health], [log]",
        ),
        (
            "policy",
            "zzzzz",
            "all keys are listed in docs/configuration.md",
        ),
    ];
    for (table, name, expected) in cases {
        assert_eq!(suggestion(table, name), expected, "{table} {name}");
    }
}

#[test]
fn short_words_are_not_guessed_wildly() {
    assert_eq!(nearest("a", ["bcd"].into_iter()), None);
    assert_eq!(nearest("MODE", ["mode"].into_iter()), Some("mode"));
    assert_eq!(nearest("uri", ["url"].into_iter()), Some("url"));
    assert_eq!(nearest("x", std::iter::empty()), None);
}

#[test]
fn a_misspelt_variable_finds_its_name() {
    assert_eq!(
        nearest_variable("RETRYSAFE__STROE__URL").unwrap(),
        "RETRYSAFE__STORE__URL"
    );
    assert_eq!(nearest_variable("RETRYSAFE__NOTHING__LIKE_IT"), None);
}

#[test]
fn kinds_are_readable() {
    assert_eq!(Kind::Choice(&["a", "b"]).to_string(), "`\"a\"`, `\"b\"`");
    assert_eq!(Kind::List("methods").to_string(), "list of methods");
    assert_eq!(Kind::Text("url").to_string(), "url");
    let simple = [
        Kind::Integer,
        Kind::Boolean,
        Kind::Duration,
        Kind::Size,
        Kind::Address,
    ];
    let words: Vec<String> = simple.iter().map(Kind::to_string).collect();
    assert_eq!(
        words.join(" "),
        "integer boolean duration size address:port"
    );
}
