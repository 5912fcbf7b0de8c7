//! Checks that the sample files do not reach: what is pointed at, what stays silent.

use std::fmt::Write as _;

use super::super::{Diagnostic, Place, parse};

/// Errors and warnings as `line: message`.
fn findings(text: &str, env: &[(&str, &str)]) -> Vec<String> {
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let found: Vec<Diagnostic> = match parse(text, "c.toml", &env.collect()) {
        Ok((_, warnings)) => warnings,
        Err(errors) => errors.errors.into_iter().chain(errors.warnings).collect(),
    };
    let place = |place: &Place| match place {
        Place::Line { line, .. } => line.to_string(),
        Place::Variable(name) | Place::Whole(name) => name.clone(),
    };
    found
        .iter()
        .map(|finding| format!("{}: {}", place(&finding.place), finding.message))
        .collect()
}

#[test]
fn defaults_bring_no_finding() {
    assert_eq!(findings("", &[]), Vec::<String>::new());
    assert_eq!(
        findings("[[route]]\nname = \"a\"\npath = \"/a\"\n", &[]),
        Vec::<String>::new()
    );
}

#[test]
fn a_value_that_could_not_be_read_is_not_checked_further() {
    let found = findings("policy.ttl = 5\npolicy.lease = \"100h\"\n", &[]);
    assert_eq!(found, ["1: `policy.ttl` needs a unit"]);
    let text = "upstream.answer_within = \"1h\"\nupstream.give_up_after = \"soon\"\n\
        server.drain = \"2h\"\n";
    assert_eq!(
        findings(text, &[]),
        ["2: `upstream.give_up_after` is not a duration: \"soon\""]
    );
}

#[test]
fn a_finding_in_a_route_points_at_the_route_then_at_the_policy_then_at_the_header() {
    let own = "[policy]\nttl = \"20s\"\nlease = \"10s\"\n[[route]]\nname = \"a\"\npath = \"/a\"\n\
        policy.lease = \"30s\"\n";
    assert_eq!(
        findings(own, &[]),
        ["7: `ttl` (20s) is below `lease` (30s)"]
    );
    let inherited = "[policy]\nttl = \"20s\"\n[[route]]\nname = \"a\"\npath = \"/a\"\n";
    assert_eq!(
        findings(inherited, &[]),
        ["2: `ttl` (20s) is below `lease` (30s)"]
    );
    let by_timeout = "[[route]]\nname = \"a\"\npath = \"/a\"\n[store]\ntimeout = \"10s\"\n";
    assert_eq!(
        findings(by_timeout, &[]),
        ["5: `lease` (30s) is below 4 x `store.timeout` (40s)"]
    );
}

#[test]
fn a_scope_or_a_caller_is_enough_to_derive() {
    let base = "[policy.key]\nmissing = \"derive\"\n[policy.fingerprint]\ncaller = []\n";
    let errors = |scope: &str| {
        let found = findings(&format!("policy.scope = [{scope}]\n{base}"), &[]);
        found
            .iter()
            .filter(|message| message.contains("two callers"))
            .count()
    };
    // `policy.scope` before `[policy.key]` is a dotted key: the table may be extended below it.
    assert_eq!(errors(""), 1);
    assert_eq!(errors("\"route\""), 1, "a route is no caller");
    assert_eq!(errors("\"header:x-tenant\""), 0);
}

#[test]
fn listeners_collide_only_where_both_cannot_be_bound() {
    let with = |server: &str, health: &str| {
        let text = format!("server.listen = \"{server}\"\nhealth.listen = \"{health}\"\n");
        findings(&text, &[]).len()
    };
    assert_eq!(with("0.0.0.0:1", "127.0.0.1:1"), 1);
    assert_eq!(with("127.0.0.1:1", "127.0.0.1:1"), 1);
    assert_eq!(with("127.0.0.1:1", "[::]:1"), 1);
    assert_eq!(with("127.0.0.1:1", "127.0.0.2:1"), 0);
    assert_eq!(with("127.0.0.1:0", "127.0.0.1:0"), 0);
    assert_eq!(with("127.0.0.1:1", "127.0.0.1:2"), 0);
}

#[test]
fn the_upstream_must_be_somebody_else() {
    let with = |listen: &str, url: &str| {
        let text = format!("server.listen = \"{listen}\"\nupstream.url = \"{url}\"\n");
        findings(&text, &[]).len()
    };
    assert_eq!(with("0.0.0.0:3000", "http://127.0.0.1:3000"), 1);
    assert_eq!(with("10.0.0.1:3000", "http://10.0.0.1:3000"), 1);
    assert_eq!(with("0.0.0.0:3000", "http://10.0.0.1:3000"), 0);
    assert_eq!(with("0.0.0.0:3000", "http://api:3000"), 0);
    assert_eq!(with("127.0.0.1:0", "http://127.0.0.1:3000"), 0);
}

#[test]
fn kubernetes_wants_a_shared_store_or_a_promise() {
    let kubernetes = [("KUBERNETES_SERVICE_HOST", "10.0.0.1")];
    let with = |text: &str| findings(text, &kubernetes);
    assert_eq!(with("").len(), 1);
    assert!(
        with("")[0].starts_with("c.toml: under Kubernetes"),
        "{:?}",
        with("")
    );
    assert_eq!(with("store.url = \"redis://r\"\n"), Vec::<String>::new());
    let promised = with("store.single_replica = true\n");
    assert_eq!(promised.len(), 1);
    assert!(promised[0].contains("a second replica"), "{promised:?}");
}

#[test]
fn a_mistake_in_the_policy_is_told_once_however_many_routes_inherit_it() {
    let mut text = "policy.fingerprint.ignore = [\"/a\"]\n".to_owned();
    for index in 0..20 {
        write!(
            text,
            "[[route]]\nname = \"r{index}\"\npath = \"/{index}\"\n"
        )
        .unwrap();
    }
    assert_eq!(findings(&text, &[]).len(), 1);
}

#[test]
fn the_drain_is_compared_only_once_somebody_chose() {
    let slow = findings("upstream.answer_within = \"60s\"\n", &[]);
    assert_eq!(slow, ["1: `drain` (25s) is below `answer_within` (1m)"]);
    let enough = "upstream.answer_within = \"20s\"\n";
    assert_eq!(findings(enough, &[]), Vec::<String>::new());
}

#[test]
fn an_environment_variable_is_pointed_at() {
    let found = findings("", &[("RETRYSAFE__POLICY__SCOPE", "client_ip,header:x-a")]);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("RETRYSAFE__POLICY__SCOPE: scope \"client_ip\""),
        "{found:?}"
    );
}
