//! From the words of a case's configuration to the TOML the program reads.

use std::net::SocketAddr;

use serde::Deserialize;
use toml::{Table, Value};

use super::home::Home;
use crate::support::sidecar::{Plan, Tables};

/// The tables of a configuration, filled key by key.
#[derive(Debug, Default)]
pub(super) struct Settings {
    root: Table,
    routes: Vec<Value>,
    pub(super) store_url: Option<String>,
}

fn ms(count: u64) -> String {
    format!("{count}ms")
}

fn bytes(count: u64) -> String {
    format!("{count}B")
}

impl Settings {
    /// Sets `table.key`, the tables in between made as needed.
    pub(super) fn set(&mut self, path: &str, value: impl Into<Value>) {
        let mut names: Vec<&str> = path.split('.').collect();
        let last = names.pop().unwrap();
        let mut table = &mut self.root;
        for name in names {
            table = table
                .entry(name)
                .or_insert_with(|| Table::new().into())
                .as_table_mut()
                .expect("a table");
        }
        table.insert(last.to_owned(), value.into());
    }

    /// Covers the requests of one path.
    fn cover(&mut self, path: &str) {
        self.set("policy.mode", "off");
        let mut policy = Table::new();
        policy.insert("mode".to_owned(), "enforce".into());
        let mut route = Table::new();
        route.insert("name".to_owned(), "covered".into());
        route.insert("path".to_owned(), path.into());
        route.insert("policy".to_owned(), policy.into());
        self.routes.push(route.into());
    }

    /// What starts the program with it; the records are at `home` unless the case says where.
    pub(super) fn plan(mut self, upstream: SocketAddr, home: &Home) -> Plan {
        if self.store_url.is_none()
            && let Some(place) = home.place()
        {
            self.set("store.namespace", place.namespace);
            self.store_url = Some(place.url);
        }
        let lines = |name: &str| {
            let table = self.root.get(name).and_then(Value::as_table);
            table.map_or_else(String::new, |table| toml::to_string(table).unwrap())
        };
        let mut rest = Table::new();
        for (name, table) in &self.root {
            if !["server", "upstream", "store"].contains(&name.as_str()) {
                rest.insert(name.clone(), table.clone());
            }
        }
        if !self.routes.is_empty() {
            rest.insert("route".to_owned(), self.routes.clone().into());
        }
        Plan::new(
            upstream,
            &Tables {
                // Each thread has a pool of its own, and cases count connections: the machine's
                // cores must not matter.
                server: &format!("threads = 2\n{}", lines("server")),
                upstream: &lines("upstream"),
                store: &lines("store"),
                store_url: self.store_url.as_deref(),
                rest: &toml::to_string(&rest).unwrap(),
            },
        )
    }
}

/// `config.proxy` of `cases.json` and `own.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseWords {
    missing_key: Option<String>,
    required_methods: Option<Vec<String>>,
    key_syntax: Option<String>,
    key_header: Option<String>,
    key_format: Option<String>,
    max_key_length: Option<i64>,
    rule: Option<String>,
    principal: Option<String>,
    fingerprint: Option<String>,
    in_flight: Option<String>,
    wait_timeout_ms: Option<u64>,
    ttl_s: Option<u64>,
    on_5xx: Option<String>,
    on_ambiguous: Option<String>,
    record_statuses: Option<String>,
    max_request_body: Option<u64>,
    max_response_record: Option<u64>,
    upstream_timeout_ms: Option<u64>,
    trusted_proxies: Option<Vec<String>>,
    store: Option<String>,
    on_store_failure: Option<String>,
    upstream: Option<String>,
    #[serde(default)]
    no_docs_url: bool,
    /// Config keys by their names, for what has no word.
    #[serde(default)]
    keys: Table,
}

/// One of a word's values, as the configuration spells it.
fn pick(word: &str, value: &str, table: &[(&str, &str)]) -> Result<String, String> {
    let found = table.iter().find(|(name, _)| *name == value);
    found
        .map(|(_, spelled)| (*spelled).to_owned())
        .ok_or_else(|| format!("unknown word {word} = {value}"))
}

fn wait(in_flight: Option<&str>, limit: u64) -> Result<String, String> {
    match in_flight.unwrap_or("reject") {
        "reject" => Ok("0s".to_owned()),
        "wait" => Ok(ms(limit)),
        other => Err(format!("unknown word in_flight = {other}")),
    }
}

impl CaseWords {
    pub(super) fn is_upstream_down(&self) -> Result<bool, String> {
        match self.upstream.as_deref() {
            None => Ok(false),
            Some("down_at_start") => Ok(true),
            Some(other) => Err(format!("unknown word upstream = {other}")),
        }
    }

    pub(super) fn settings(&self) -> Result<Settings, String> {
        let mut out = Settings::default();
        if !self.no_docs_url {
            out.set("policy.docs_url", "https://docs.example.test/problems/");
        }
        out.cover(self.rule.as_deref().unwrap_or("/v1/{*rest}"));
        self.key(&mut out)?;
        self.outcome(&mut out)?;
        if let Some(name) = &self.principal {
            out.set("policy.scope", vec![format!("header:{name}")]);
        }
        let body = self.fingerprint.as_deref().unwrap_or("raw");
        let forms = [("raw", "raw"), ("canonical_json", "json"), ("off", "none")];
        out.set(
            "policy.fingerprint.body",
            pick("fingerprint", body, &forms)?,
        );
        let limit = self.wait_timeout_ms.unwrap_or(10_000);
        out.set(
            "policy.in_flight_wait",
            wait(self.in_flight.as_deref(), limit)?,
        );
        if let Some(seconds) = self.ttl_s {
            out.set("policy.ttl", format!("{seconds}s"));
        }
        for (name, limit) in [
            ("policy.max_request", self.max_request_body),
            ("policy.max_response", self.max_response_record),
        ] {
            if let Some(limit) = limit {
                out.set(name, bytes(limit));
            }
        }
        if let Some(limit) = self.upstream_timeout_ms {
            out.set("upstream.answer_within", ms(limit));
            out.set("upstream.give_up_after", ms(limit));
        }
        if let Some(networks) = &self.trusted_proxies {
            out.set("server.trusted_proxies", networks.clone());
        }
        match self.store.as_deref() {
            None => {}
            // The discard port: nobody listens there.
            Some("down") => out.store_url = Some("redis://127.0.0.1:9".to_owned()),
            Some(other) => return Err(format!("unknown word store = {other}")),
        }
        for (name, value) in &self.keys {
            if name == "route" {
                out.routes.extend(value.as_array().unwrap().iter().cloned());
            } else {
                out.set(name, value.clone());
            }
        }
        Ok(out)
    }

    fn key(&self, out: &mut Settings) -> Result<(), String> {
        let missing = self.missing_key.as_deref().unwrap_or("reject");
        let forms = [("reject", "reject"), ("passthrough", "pass")];
        out.set("policy.key.missing", pick("missing_key", missing, &forms)?);
        let required = self.required_methods.clone();
        let usual = || vec!["POST".to_owned(), "PATCH".to_owned()];
        out.set("policy.key.required_on", required.unwrap_or_else(usual));
        for (name, value) in [
            ("syntax", &self.key_syntax),
            ("header", &self.key_header),
            ("format", &self.key_format),
        ] {
            if let Some(value) = value {
                out.set(&format!("policy.key.{name}"), value.clone());
            }
        }
        if let Some(length) = self.max_key_length {
            out.set("policy.key.max_length", length);
        }
        Ok(())
    }

    fn outcome(&self, out: &mut Settings) -> Result<(), String> {
        if let Some(value) = &self.on_5xx {
            out.set("policy.on_5xx", value.clone());
        }
        let unknown = self.on_ambiguous.as_deref().unwrap_or("record");
        let forms = [("record", "hold"), ("release", "retry")];
        out.set("policy.on_unknown", pick("on_ambiguous", unknown, &forms)?);
        match self.record_statuses.as_deref() {
            None => {}
            Some("2xx") => out.set("policy.release_statuses", (300..600).collect::<Vec<i64>>()),
            Some(other) => return Err(format!("unknown word record_statuses = {other}")),
        }
        let failure = self.on_store_failure.as_deref().unwrap_or("reject");
        let forms = [("reject", "reject"), ("bypass", "pass")];
        let failure = pick("on_store_failure", failure, &forms)?;
        out.set("policy.on_store_error", failure);
        Ok(())
    }
}

/// `config.proxy` of `reports.json`, with its defaults.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ReportWords {
    methods: Vec<String>,
    require_key: bool,
    scope: Vec<String>,
    fingerprint_body: String,
    in_flight: String,
    wait_ms: u64,
    lease_ms: u64,
    result_ttl_ms: u64,
    do_not_record: Vec<String>,
    unknown_outcome: String,
    store_down: String,
    store_timeout_ms: u64,
    max_record_bytes: u64,
    max_request_bytes: u64,
    upstream_timeout_ms: u64,
    connect_timeout_ms: u64,
    pool_idle_ms: u64,
    header_timeout_ms: u64,
    body_timeout_ms: u64,
    idle_timeout_ms: u64,
    grace_ms: u64,
    host: String,
    strict_paths: bool,
    header_case: String,
}

impl Default for ReportWords {
    fn default() -> Self {
        let list = |text: &str| text.split(' ').map(str::to_owned).collect();
        Self {
            methods: list("POST PUT PATCH DELETE"),
            require_key: true,
            scope: list("authorization host"),
            fingerprint_body: "raw".to_owned(),
            in_flight: "reject".to_owned(),
            wait_ms: 3000,
            lease_ms: 5000,
            result_ttl_ms: 3_600_000,
            do_not_record: list("5xx 401 403 408 425 429"),
            unknown_outcome: "block".to_owned(),
            store_down: "fail_closed".to_owned(),
            store_timeout_ms: 800,
            max_record_bytes: 8 << 20,
            max_request_bytes: 10 << 20,
            upstream_timeout_ms: 10_000,
            connect_timeout_ms: 1000,
            pool_idle_ms: 2000,
            header_timeout_ms: 3000,
            body_timeout_ms: 5000,
            idle_timeout_ms: 10_000,
            grace_ms: 5000,
            host: "preserve".to_owned(),
            strict_paths: true,
            header_case: "lower".to_owned(),
        }
    }
}

impl ReportWords {
    pub(super) fn settings(&self) -> Result<Settings, String> {
        if self.host != "preserve" || !self.strict_paths {
            return Err("unknown word host or strict_paths".to_owned());
        }
        let mut out = Settings::default();
        out.set("policy.methods", self.methods.clone());
        out.set("server.header_case", self.header_case.clone());
        let missing = if self.require_key { "reject" } else { "pass" };
        out.set("policy.key.missing", missing);
        let scope = self.scope.iter().map(|name| format!("header:{name}"));
        out.set("policy.scope", scope.collect::<Vec<_>>());
        out.set("policy.fingerprint.body", self.fingerprint_body.clone());
        out.set(
            "policy.in_flight_wait",
            wait(Some(&self.in_flight), self.wait_ms)?,
        );
        let (classes, statuses): (Vec<_>, Vec<_>) = self
            .do_not_record
            .iter()
            .partition(|status| *status == "5xx");
        let on_5xx = if classes.is_empty() {
            "record"
        } else {
            "release"
        };
        out.set("policy.on_5xx", on_5xx);
        let statuses = statuses.iter().map(|status| status.parse::<i64>());
        let statuses = statuses.collect::<Result<Vec<_>, _>>();
        let statuses = statuses.map_err(|_| "unknown word in do_not_record".to_owned())?;
        out.set("policy.release_statuses", statuses);
        let forms = [("block", "hold"), ("release", "retry")];
        let unknown = pick("unknown_outcome", &self.unknown_outcome, &forms)?;
        out.set("policy.on_unknown", unknown);
        let forms = [("fail_closed", "reject"), ("fail_open", "pass")];
        let store = pick("store_down", &self.store_down, &forms)?;
        out.set("policy.on_store_error", store);
        for (name, limit) in [
            ("policy.max_response", self.max_record_bytes),
            ("policy.max_request", self.max_request_bytes),
        ] {
            out.set(name, bytes(limit));
        }
        for (name, time) in [
            ("policy.lease", self.lease_ms),
            ("policy.ttl", self.result_ttl_ms),
            ("store.timeout", self.store_timeout_ms),
            ("upstream.answer_within", self.upstream_timeout_ms),
            ("upstream.give_up_after", self.upstream_timeout_ms),
            ("upstream.connect_timeout", self.connect_timeout_ms),
            ("upstream.pool_idle_timeout", self.pool_idle_ms),
            ("server.header_timeout", self.header_timeout_ms),
            ("server.body_timeout", self.body_timeout_ms),
            ("server.idle_timeout", self.idle_timeout_ms),
            ("server.drain", self.grace_ms),
        ] {
            out.set(name, ms(time));
        }
        Ok(out)
    }
}
