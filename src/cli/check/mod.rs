//! `retrysafe check`: every mistake at once, or what the configuration amounts to.
//!
//! Invariant: prints no secret (the findings and `StoreUrl` hold none).
//!
//! Deliberately absent: binding, connecting; a valid configuration may still find its store down.

use std::io;
use std::path::Path;

use crate::config::{self, Config, ConfigErrors, Diagnostic, Environment, Loaded};
use crate::idempotency::policy::Mode;

/// Valid, with or without warnings.
pub const VALID: u8 = 0;
/// The answer could not be written.
pub const FAILED: u8 = 1;
/// Not valid (`EX_CONFIG`).
pub const INVALID: u8 = 78;

/// Checks the configuration at `path` (see [`config::load`]), writes the findings and a summary
/// to `out`, and answers the exit code.
pub fn check(path: Option<&Path>, env: &Environment, out: &mut dyn io::Write) -> u8 {
    let (text, code) = match config::load(path, env) {
        Ok(loaded) => (valid(&loaded), VALID),
        Err(errors) => (invalid(&errors), INVALID),
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => code,
        Err(_) => FAILED,
    }
}

fn valid(loaded: &Loaded) -> String {
    let found = listed(&loaded.warnings);
    let warnings = match loaded.warnings.len() {
        0 => String::new(),
        count => format!(" ({})", counted(count, "warning")),
    };
    let path = loaded.path.display();
    let summary = summary(&loaded.config);
    format!("{found}Valid configuration: {path}{warnings}\n{summary}")
}

fn invalid(found: &ConfigErrors) -> String {
    let (errors, warnings) = (listed(&found.errors), listed(&found.warnings));
    let mut count = counted(found.errors.len(), "error");
    if !found.warnings.is_empty() {
        count = format!("{count}, {}", counted(found.warnings.len(), "warning"));
    }
    format!("{errors}{warnings}Invalid configuration: {count}\n")
}

/// What the configuration amounts to, a few lines.
fn summary(config: &Config) -> String {
    let mode = match config.policy.mode {
        Mode::Enforce => "enforce",
        Mode::Off => "off",
    };
    let methods: Vec<&str> = config
        .policy
        .methods
        .iter()
        .map(http::Method::as_str)
        .collect();
    let names: Vec<&str> = config
        .routes
        .iter()
        .map(|route| route.name.as_str())
        .collect();
    let routes = match names.as_slice() {
        [] => "0".to_owned(),
        names => format!("{} ({})", names.len(), names.join(", ")),
    };
    let over = if config.server.tls.is_some() {
        " over TLS"
    } else {
        ""
    };
    let listen = format!("{}{over}", config.server.listen);
    let rows = [
        ("listen", listen),
        ("health", config.health.listen.to_string()),
        ("upstream", config.proxy.upstream.url.to_string()),
        ("store", config.store.to_string()),
        ("policy", format!("{mode} on {}", methods.join(", "))),
        ("routes", routes),
    ];
    let lines: Vec<String> = rows
        .iter()
        .map(|(name, value)| format!("  {name:<9} {value}\n"))
        .collect();
    lines.concat()
}

/// Findings, each followed by a blank line.
fn listed(findings: &[Diagnostic]) -> String {
    let texts: Vec<String> = findings
        .iter()
        .map(|finding| format!("{finding}\n\n"))
        .collect();
    texts.concat()
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

#[cfg(test)]
mod tests;
