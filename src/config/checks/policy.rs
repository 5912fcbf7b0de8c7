//! Checks on one merged policy: `[policy]` itself, or a route's.

use super::super::Config;
use super::super::document::RouteTable;
use super::super::value::measure::show_duration;
use super::Checks;
use crate::idempotency::Policy;
use crate::idempotency::policy::{
    BodyMode, Grpc, MissingKey, Mode, On5xx, OnStoreError, OnUnknown, ScopePart,
};

type Route<'r> = Option<&'r RouteTable>;

impl Checks<'_, '_> {
    /// Errors in any mode, warnings only where the rules apply.
    pub(super) fn policy(&mut self, route: Route<'_>, config: &Config, policy: &Policy) {
        self.derive_errors(route, policy);
        self.key_and_body_errors(route, policy);
        self.grpc_errors(route, config, policy);
        if policy.mode == Mode::Enforce {
            self.time_warnings(route, config, policy);
            self.choice_warnings(route, policy);
            self.scope_warnings(route, policy);
        }
    }

    /// R6: a derived key must tell callers and payloads apart.
    fn derive_errors(&mut self, route: Route<'_>, policy: &Policy) {
        if policy.key.missing != MissingKey::Derive {
            return;
        }
        let by_caller = policy.scope.iter().any(|part| *part != ScopePart::Route);
        if policy.fingerprint.caller.is_empty() && !by_caller {
            self.error(
                route,
                &[
                    "policy.key.missing",
                    "policy.fingerprint.caller",
                    "policy.scope",
                ],
                "missing = \"derive\" would take two callers for one",
                "name fields in fingerprint.caller, or a part in scope",
            );
        }
        if policy.fingerprint.body == BodyMode::None {
            self.error(
                route,
                &["policy.key.missing", "policy.fingerprint.body"],
                "missing = \"derive\" would take two bodies for one: fingerprint.body is \"none\"",
                "write body = \"raw\" or \"json\" in [policy.fingerprint], or another `missing`",
            );
        }
        if policy.mode == Mode::Enforce {
            let window = show_duration(policy.key.derive_window);
            self.warning(
                route,
                &["policy.key.missing", "policy.key.derive_window"],
                format!("missing = \"derive\" absorbs repetitions for {window} only"),
                "a later retry without a key runs again; clients that must be safe send a key",
            );
        }
    }

    fn key_and_body_errors(&mut self, route: Route<'_>, policy: &Policy) {
        if policy.key.aliases.contains(&policy.key.header) {
            self.error(
                route,
                &["policy.key.aliases", "policy.key.header"],
                format!("key.aliases repeats key.header: {}", policy.key.header),
                "remove it from aliases",
            );
        }
        if !policy.fingerprint.ignore.is_empty() && policy.fingerprint.body != BodyMode::Json {
            self.error(
                route,
                &["policy.fingerprint.ignore", "policy.fingerprint.body"],
                "fingerprint.ignore needs fingerprint.body = \"json\"",
                "write body = \"json\" in [policy.fingerprint], or remove ignore",
            );
        }
    }

    /// R28: a call needs HTTP/2 all the way.
    fn grpc_errors(&mut self, route: Route<'_>, config: &Config, policy: &Policy) {
        if policy.grpc == Grpc::Unary && !config.proxy.upstream.url.may_speak_http2() {
            self.error(
                route,
                &["policy.grpc", "upstream.url"],
                "grpc = \"unary\" needs an upstream that speaks HTTP/2",
                "write \"h2c://HOST:PORT\" or \"https://HOST:PORT\" for upstream.url, or another `grpc`",
            );
        }
    }

    fn time_warnings(&mut self, route: Route<'_>, config: &Config, policy: &Policy) {
        let lease = show_duration(policy.lease);
        if policy.ttl < policy.lease {
            let ttl = show_duration(policy.ttl);
            self.warning(
                route,
                &["policy.ttl", "policy.lease"],
                format!("`ttl` ({ttl}) is below `lease` ({lease})"),
                "a completed record is forgotten sooner than a lost one is noticed; raise ttl",
            );
        }
        let timeout = config.store.timeout;
        if policy.lease < timeout.saturating_mul(4) {
            let four = show_duration(timeout.saturating_mul(4));
            self.warning(
                route,
                &["policy.lease", "store.timeout"],
                format!("`lease` ({lease}) is below 4 x `store.timeout` ({four})"),
                "a slow store can cost a running request its lease; raise lease",
            );
        }
    }

    fn choice_warnings(&mut self, route: Route<'_>, policy: &Policy) {
        if policy.on_store_error == OnStoreError::Pass {
            self.warning(
                route,
                &["policy.on_store_error"],
                "on_store_error = \"pass\": while the store is down every retry runs again",
                "write \"reject\" to answer 503 then",
            );
        }
        if policy.on_5xx == On5xx::Release {
            self.warning(
                route,
                &["policy.on_5xx"],
                "on_5xx = \"release\": a request that failed with 5xx may run more than once",
                "write \"record\" for at most one execution",
            );
        }
        if policy.on_unknown == OnUnknown::Retry {
            self.warning(
                route,
                &["policy.on_unknown"],
                "on_unknown = \"retry\": a request whose outcome is unknown may run more than once",
                "write \"auto\" or \"hold\" for at most one execution of POST and PATCH",
            );
        }
    }

    /// R8: a scope part must be the same on every try.
    fn scope_warnings(&mut self, route: Route<'_>, policy: &Policy) {
        for part in &policy.scope {
            let why = match part {
                ScopePart::Header(name) if *name == http::header::AUTHORIZATION => {
                    "a refreshed token"
                }
                ScopePart::Header(name) if *name == http::header::COOKIE => "a new cookie",
                ScopePart::ClientIp => "a change of network",
                ScopePart::Cookie(_) => "a new session",
                _ => continue,
            };
            let Some(list) = self.spot(route, &["policy.scope"]) else {
                return;
            };
            let text = part.to_string();
            self.sink.warning(
                &self.element(&list, &text),
                format!("scope \"{text}\" can change: after {why} a retry runs again"),
                "callers are told apart by fingerprint.caller; scope by what lasts, e.g. a tenant",
            );
        }
    }
}
