//! The file, the environment, and what they mean.
//!
//! What was written (`document/`, values with their places) becomes what is meant ([`Config`],
//! plain settings of every room) by `resolve/`; `checks/` looks at values together. Every mistake
//! is reported at once, with its place and what to write instead.
//!
//! Invariant: a [`Config`] that came out of here is valid, and neither it nor a finding shows a
//! password.
//!
//! Deliberately absent: printing (`cli/`), reloading, expansion of `${VAR}`.
//!
//! Read next: `schema/` (every key as data), `diagnostic.rs`.

mod checks;
mod defaults;
mod diagnostic;
mod document;
mod resolve;
mod schema;
mod source;
mod url;
mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use diagnostic::{ConfigErrors, Diagnostic, Place, Severity};
pub use schema::{Key, Kind, reference};
pub use url::{UrlError, parse_store_url};

use crate::idempotency::Policy;
use crate::routes::RouteSettings;
use crate::{admin, proxy, server, store, telemetry};

/// A valid configuration, every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[server]`
    pub server: server::Settings,
    /// `[server]` and `[upstream]` as one request sees them.
    pub proxy: proxy::Settings,
    /// `[store]`
    pub store: store::Settings,
    /// `[policy]`
    pub policy: Policy,
    /// `[[route]]`
    pub routes: Vec<RouteSettings>,
    /// `[health]`
    pub health: admin::Settings,
    /// `[log]`
    pub log: telemetry::Settings,
}

/// Environment variables by name. May hold secrets: never print it.
pub type Environment = BTreeMap<String, String>;

/// A configuration that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// What is worth knowing about it.
    pub warnings: Vec<Diagnostic>,
    /// The file it came from.
    pub path: PathBuf,
}

/// The variable that names the file.
const FILE_VARIABLE: &str = "RETRYSAFE_CONFIG";

/// The variables of this process that a configuration looks at. Text that is not UTF-8 is
/// replaced, so that it is found to be wrong and not overlooked.
pub fn environment() -> Environment {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let of_ours = |name: &str| name.starts_with("RETRYSAFE_") || name == "KUBERNETES_SERVICE_HOST";
    std::env::vars_os()
        .map(|(name, value)| (text(name), text(value)))
        .filter(|(name, _)| of_ours(name))
        .collect()
}

/// Reads the file at `path`, else at `RETRYSAFE_CONFIG`, else `config.toml` here, with the
/// environment laid over it.
pub fn load(path: Option<&Path>, env: &Environment) -> Result<Loaded, ConfigErrors> {
    read(path, env, true)
}

/// The same for commands that serve nobody: certificates are not looked at, so that one that was
/// replaced by something broken does not take a running sidecar's health with it.
pub fn load_to_ask(path: Option<&Path>, env: &Environment) -> Result<Loaded, ConfigErrors> {
    read(path, env, false)
}

fn read(
    path: Option<&Path>,
    env: &Environment,
    certificates: bool,
) -> Result<Loaded, ConfigErrors> {
    let variable = env.get(FILE_VARIABLE).filter(|name| !name.is_empty());
    let (path, help) = match (path, variable) {
        (Some(path), _) => (path.to_owned(), "--config names the file"),
        (None, Some(name)) => (PathBuf::from(name), "RETRYSAFE_CONFIG names the file"),
        (None, None) => (
            PathBuf::from("config.toml"),
            "name the file with --config FILE or RETRYSAFE_CONFIG",
        ),
    };
    let name = path.display().to_string();
    let unreadable = |what: String| ConfigErrors {
        errors: vec![Diagnostic {
            severity: Severity::Error,
            message: what,
            place: Place::Whole(name.clone()),
            help: Some(help.to_owned()),
        }],
        warnings: Vec::new(),
    };
    let bytes = std::fs::read(&path)
        .map_err(|error| unreadable(format!("the configuration file cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        unreadable(format!(
            "the configuration file is not UTF-8 text (byte {at})"
        ))
    })?;
    let (config, warnings) = parse_with(&text, &name, env, certificates)?;
    Ok(Loaded {
        config,
        warnings,
        path,
    })
}

/// Reads `text`, which findings call `file`, with `env` laid over it. Answers the configuration
/// and the warnings.
pub fn parse(
    text: &str,
    file: &str,
    env: &Environment,
) -> Result<(Config, Vec<Diagnostic>), ConfigErrors> {
    parse_with(text, file, env, true)
}

fn parse_with(
    text: &str,
    file: &str,
    env: &Environment,
    certificates: bool,
) -> Result<(Config, Vec<Diagnostic>), ConfigErrors> {
    let source = source::Source { name: file, text };
    let mut sink = diagnostic::Sink::new(&source);
    let document = document::Document::read(&source, env, &mut sink);
    let (config, failed) = resolve::resolve(&document, &mut sink);
    // What a broken file lost may be what a check misses.
    if !document.is_broken() {
        let mut checks = checks::Checks {
            document: &document,
            failed: &failed,
            sink: &mut sink,
            certificates,
        };
        checks.run(&config, env);
    }
    document.report_syntax(&source, &mut sink);
    let (errors, warnings) = sink.finish();
    if errors.is_empty() {
        Ok((config, warnings))
    } else {
        Err(ConfigErrors { errors, warnings })
    }
}

#[cfg(test)]
mod tests;
