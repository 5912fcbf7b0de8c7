//! The room as a whole: defaults, precedence, routes, files, secrets.

use std::time::Duration;

use super::*;
use crate::idempotency::policy::{BodyMode, MissingKey, Mode};
use crate::store::StoreUrl;

fn env(pairs: &[(&str, &str)]) -> Environment {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn good(text: &str, pairs: &[(&str, &str)]) -> Config {
    match parse(text, "c.toml", &env(pairs)) {
        Ok((config, _)) => config,
        Err(errors) => panic!("{errors}"),
    }
}

fn bad(text: &str, pairs: &[(&str, &str)]) -> String {
    parse(text, "c.toml", &env(pairs)).unwrap_err().to_string()
}

/// A file with nothing but one key in it, and those that it cannot be without.
fn only(key: &Key, value: &str) -> String {
    if let Some(name) = key.path.strip_prefix("server.tls.") {
        let files = [
            ("cert_file", "good.crt"),
            ("key_file", "good.key"),
            ("client_ca_file", "ca.crt"),
        ];
        let others = files.iter().filter(|(other, _)| *other != name);
        return others.fold(
            format!("[server.tls]\n{name} = {value}\n"),
            |text, (name, file)| format!("{text}{name} = \"tests/configs/tls/{file}\"\n"),
        );
    }
    match key.path.strip_prefix("route.") {
        None => format!("{} = {value}\n", key.path),
        Some(name) => {
            let others = [("name", "\"a\""), ("path", "\"/a\"")];
            let others = others.iter().filter(|(other, _)| *other != name);
            others.fold(
                format!("[[route]]\n{name} = {value}\n"),
                |text, (name, value)| format!("{text}{name} = {value}\n"),
            )
        }
    }
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(good("", &[]), Config::default());
}

#[test]
fn every_default_of_the_reference_is_the_default() {
    let mut seen = 0;
    for key in reference().filter(|key| !key.default.is_empty()) {
        assert_eq!(
            good(&only(key, key.default), &[]),
            Config::default(),
            "{}",
            key.path
        );
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn every_default_can_come_from_the_environment() {
    let mut seen = 0;
    for key in reference().filter(|key| !key.default.is_empty()) {
        let text = key.default.trim_matches(['"', '[', ']']).replace('"', "");
        let variable = key.variable().unwrap();
        assert_eq!(
            good("", &[(&variable, &text)]),
            Config::default(),
            "{}",
            key.path
        );
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn every_key_is_read_and_a_wrong_type_is_its_error() {
    let mut seen = 0;
    for key in reference() {
        let error = bad(&only(key, "1979-05-27"), &[]);
        let name = format!("error: `{}` expects", key.path);
        assert!(error.starts_with(&name), "{}: {error}", key.path);
        seen += 1;
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn every_key_of_the_policy_can_be_set_in_a_route() {
    let mut seen = 0;
    for key in reference().filter(|key| key.path.starts_with("policy.")) {
        let text = format!(
            "[[route]]\nname = \"a\"\npath = \"/a\"\n{} = 1979-05-27\n",
            key.path
        );
        let error = bad(&text, &[]);
        let name = match key.path {
            "policy.max_waiters" => "error: `max_waiters` holds for the whole process".to_owned(),
            "policy.require_tier" => "error: `require_tier` holds for the whole process".to_owned(),
            path => format!("error: `route.{path}` expects"),
        };
        assert!(error.starts_with(&name), "{}: {error}", key.path);
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn every_word_of_a_choice_is_known() {
    let mut seen = 0;
    // `grpc = "unary"` needs it.
    let http2 = ("RETRYSAFE__UPSTREAM__URL", "h2c://api");
    for key in reference() {
        let Kind::Choice(words) = key.kind else {
            continue;
        };
        for word in words {
            good(&only(key, &format!("\"{word}\"")), &[http2]);
            seen += 1;
        }
        let error = bad(&only(key, "\"no such word\""), &[]);
        for word in words {
            assert!(
                error.contains(&format!("\"{word}\"")),
                "{}: {error}",
                key.path
            );
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn the_environment_comes_before_the_file() {
    let pairs = [
        ("RETRYSAFE__POLICY__LEASE", "9s"),
        ("RETRYSAFE__POLICY__KEY__ALIASES", "x-a, x-b"),
        ("RETRYSAFE__SERVER__THREADS", "3"),
        ("RETRYSAFE__HEALTH__READY_REQUIRES_STORE", "true"),
    ];
    let text = "policy.lease = \"8s\"\npolicy.key.aliases = [\"x-c\"]\n[[route]]\nname = \"a\"\n\
        path = \"/a\"\npolicy.lease = \"7s\"\n";
    let config = good(text, &pairs);
    assert_eq!(config.policy.lease, Duration::from_secs(9));
    assert_eq!(config.policy.key.aliases, ["x-a", "x-b"]);
    assert_eq!(config.server.threads, 3);
    assert!(config.health.ready_requires_store);
    assert_eq!(
        config.routes[0].policy.lease,
        Duration::from_secs(7),
        "a route says more"
    );
    assert_eq!(config.routes[0].policy.key.aliases.len(), 2);
}

#[test]
fn names_that_are_not_ours_are_ignored() {
    let pairs = [
        ("RETRYSAFE_PORT", "tcp://10.0.0.1:4390"),
        ("RETRYSAFE_SERVICE_HOST", "10.0.0.1"),
        ("RETRYSAFE_CONFIG", "x"),
        ("retrysafe__store__url", "x"),
        ("PATH", "x"),
    ];
    assert_eq!(good("", &pairs), Config::default());
}

#[test]
fn a_route_lays_single_keys_over_the_policy() {
    let text = "[policy]\nmode = \"off\"\nttl = \"2h\"\nfingerprint.body = \"json\"\n\
        fingerprint.ignore = [\"/at\"]\n[[route]]\nname = \"a\"\nhost = \"*.Example.com\"\n\
        path = \"/a/{id}\"\nmethods = [\"PUT\"]\n[route.policy]\nmode = \"enforce\"\n\
        [route.policy.key]\nmissing = \"generate\"\n[[route]]\nname = \"b\"\npath = \"/b\"\n";
    let config = good(text, &[]);
    let [a, b] = config.routes.as_slice() else {
        panic!("{:?}", config.routes);
    };
    assert_eq!(a.host.as_deref(), Some("*.example.com"));
    assert_eq!(a.methods.as_deref(), Some([http::Method::PUT].as_slice()));
    assert_eq!(a.policy.mode, Mode::Enforce);
    assert_eq!(a.policy.key.missing, MissingKey::Generate);
    assert_eq!(a.policy.ttl, Duration::from_hours(2));
    assert_eq!(a.policy.fingerprint.body, BodyMode::Json);
    assert_eq!(a.policy.fingerprint.ignore.len(), 1);
    assert_eq!(b.policy, config.policy);
    assert_eq!((b.host.as_ref(), b.methods.as_ref()), (None, None));
}

#[test]
fn the_other_ttls_follow_ttl_unless_they_are_set() {
    let hours = |policy: &Policy| {
        let hours = |duration: Duration| duration.as_secs() / 3600;
        (
            hours(policy.ttl),
            hours(policy.failed_ttl),
            hours(policy.unresolved_ttl),
        )
    };
    let route = |keys: &str| format!("[[route]]\nname = \"a\"\npath = \"/a\"\n{keys}");
    let config = good(&format!("policy.ttl = \"2h\"\n{}", route("")), &[]);
    assert_eq!(
        (hours(&config.policy), hours(&config.routes[0].policy)),
        ((2, 2, 2), (2, 2, 2))
    );
    let text = format!(
        "policy.failed_ttl = \"1h\"\n{}",
        route("policy.ttl = \"7h\"\n")
    );
    let config = good(&text, &[]);
    assert_eq!(hours(&config.policy), (24, 1, 24));
    assert_eq!(hours(&config.routes[0].policy), (7, 1, 7));
    let text = format!(
        "policy.ttl = \"2h\"\n{}",
        route("policy.unresolved_ttl = \"9h\"\n")
    );
    assert_eq!(hours(&good(&text, &[]).routes[0].policy), (2, 2, 9));
}

#[test]
fn statuses_are_sorted_and_write_timeout_reaches_both_rooms() {
    let text = "policy.release_statuses = [429, 401, 429]\nserver.write_timeout = \"3s\"\n";
    let config = good(text, &[]);
    assert_eq!(config.policy.release_statuses, [401, 429]);
    assert_eq!(config.server.write_timeout, Duration::from_secs(3));
    assert_eq!(config.proxy.write_timeout, Duration::from_secs(3));
}

#[test]
fn a_store_url_may_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("url");
    let name = path.to_str().unwrap();
    let text = format!("store.url_file = '{name}'\n");
    for (content, expected) in [
        ("redis://:hunter2@h", true),
        ("redis://:hunter2@h\n", true),
        ("redis://:hunter2@h\r\n", true),
        ("redis://:hunter2@h\n\n", false),
        ("hunter2", false),
        ("", false),
    ] {
        std::fs::write(&path, content).unwrap();
        match parse(&text, "c.toml", &env(&[])) {
            Ok((config, _)) => {
                assert!(expected, "{content:?}");
                assert_eq!(
                    config.store.url,
                    StoreUrl::Redis("redis://:hunter2@h".to_owned())
                );
                assert!(!format!("{config:?}").contains("hunter2"));
            }
            Err(errors) => {
                assert!(!expected, "{content:?}: {errors}");
                assert!(!format!("{errors} {errors:?}").contains("hunter2"));
            }
        }
    }
}

#[test]
fn the_store_url_of_the_environment_replaces_both_of_the_file() {
    let pair = [("RETRYSAFE__STORE__URL", "memory:")];
    assert_eq!(
        good("store.url_file = \"/nowhere\"\n", &pair).store.url,
        StoreUrl::Memory
    );
    assert_eq!(
        good("store.url = \"file:a\"\n", &pair).store.url,
        StoreUrl::Memory
    );
    let both = [pair[0], ("RETRYSAFE__STORE__URL_FILE", "/nowhere")];
    assert!(bad("", &both).contains("both set"));
}

#[test]
fn secrets_show_in_no_error_and_no_debug() {
    for text in [
        "store.url = \"redis://u:hunter2@h:x\"\n",
        "store.url = \"redis://u:hunter2@h\n",
        "store.ulr = \"redis://u:hunter2@h\"\n",
        "url = \"redis://u:hunter2@h\"\n",
        "store.password = \"hunter2\"\n",
        "store.namespace = \"redis://u:hunter2@h\"\n",
        "policy.mode = \"redis://u:hunter2@h\"\n",
        "upstream.url = \"http://u:hunter2@h\"\n",
        "store = { url = \"redis://u:hunter2@h\", password = 'hunter2' }\n",
        "store.url = [\"redis://u:hunter2@h\"]\n",
        "store.url = \"\"\"\nredis://u:hunter2@h\n\"\"\"\n",
        "policy.scope = [\"redis://u:hunter2@h\"]\n",
        "server.listen = \"redis://u:hunter2@h\"\n",
    ] {
        let errors = parse(text, "c.toml", &env(&[])).unwrap_err();
        let shown = format!("{errors} {errors:?}");
        assert!(!shown.contains("hunter2"), "{text}: {shown}");
    }
    for name in ["URL", "ULR", "PASSWORD", "SECRET", "NAMESPACE"] {
        let variable = format!("RETRYSAFE__STORE__{name}");
        let error = bad("", &[(&variable, "redis://u:hunter2@h:x")]);
        assert!(!error.contains("hunter2"), "{error}");
        assert!(error.contains(&variable), "{error}");
    }
    let config = good("store.url = \"redis://u:hunter2@h\"\n", &[]);
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn line_ends_of_other_systems_and_a_byte_order_mark_are_taken() {
    let text = "\u{feff}[server]\r\nthreads = 2\r\n";
    assert_eq!(good(text, &[]).server.threads, 2);
    let error = bad("[server]\r\nthread = 2\r\n", &[]);
    assert!(error.contains(" --> c.toml:2:1\n"), "{error}");
}

#[test]
fn the_flag_comes_before_the_variable() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("1.toml"), folder.path().join("2.toml"));
    std::fs::write(&one, "server.threads = 1\n").unwrap();
    std::fs::write(&two, "server.threads = 2\n").unwrap();
    let variable = env(&[("RETRYSAFE_CONFIG", two.to_str().unwrap())]);
    let loaded = load(Some(&one), &variable).unwrap();
    assert_eq!((loaded.config.server.threads, loaded.path), (1, one));
    let loaded = load(None, &variable).unwrap();
    assert_eq!((loaded.config.server.threads, loaded.path), (2, two));
}

#[test]
fn a_file_that_cannot_be_read_says_how_to_name_one() {
    let missing = Path::new("/nowhere/c.toml");
    let error = load(Some(missing), &env(&[])).unwrap_err().to_string();
    assert!(error.contains("cannot be read: No such file"), "{error}");
    assert!(error.contains("--> /nowhere/c.toml"), "{error}");
    let error = load(None, &env(&[("RETRYSAFE_CONFIG", "/nowhere/d.toml")])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("RETRYSAFE_CONFIG names the file"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    assert!(load(Some(folder.path()), &env(&[])).is_err());
    let path = folder.path().join("latin.toml");
    std::fs::write(&path, b"# caf\xe9\n").unwrap();
    let error = load(Some(&path), &env(&[])).unwrap_err().to_string();
    assert!(error.contains("not UTF-8 text (byte 5)"), "{error}");
}

#[test]
fn errors_come_in_the_order_of_the_file_and_the_environment_last() {
    let text = "[log]\nlevel = 1\n[server]\nthreads = \"x\"\n[policy]\nttl = 0\n";
    let errors = parse(text, "c.toml", &env(&[("RETRYSAFE__A__B", "1")])).unwrap_err();
    let lines: Vec<usize> = errors
        .errors
        .iter()
        .map(|error| match error.place {
            Place::Line { line, .. } => line,
            _ => usize::MAX,
        })
        .collect();
    assert_eq!(lines, [2, 4, 6, usize::MAX]);
}

#[test]
fn the_environment_of_this_process_holds_only_what_matters() {
    let found = environment();
    let ours = |name: &String| name.starts_with("RETRYSAFE_") || name == "KUBERNETES_SERVICE_HOST";
    assert!(found.keys().all(ours), "{:?}", found.keys());
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "([a-z.]{1,9}|\\[\\[?route\\]?\\]|policy|[=\"'{},#\\\\]|[0-9]{1,3}|é|@|://|\r?\n){0,40}") {
        let findings = match parse(&text, "c.toml", &env(&[])) {
            Ok((_, warnings)) => warnings,
            Err(errors) => errors.errors,
        };
        for finding in findings {
            proptest::prop_assert!(!finding.to_string().is_empty());
        }
    }
}
