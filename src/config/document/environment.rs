//! `RETRYSAFE__A__B`: the environment over the file.
//!
//! A single underscore after RETRYSAFE means nothing here: Kubernetes sets such names itself
//! (`RETRYSAFE_PORT`) for a service called retrysafe. Values are never shown.

use super::super::diagnostic::Sink;
use super::super::schema::{self, Found, PREFIX};
use super::super::source::Origin;
use super::super::value::Value;
use super::{Environment, Values};

/// What a name begins with that has one underscore too few.
const NEAR_PREFIX: &str = "RETRYSAFE_";

/// Lays the variables over the file's values; reports those that name nothing.
pub(super) fn overlay(env: &Environment, values: &mut Values, sink: &mut Sink<'_>) {
    let named =
        |name: &str| schema::reference().find(|key| key.variable().as_deref() == Some(name));
    let mut set = Vec::new();
    for (name, text) in env {
        if !name.starts_with(PREFIX) {
            // Kubernetes sets no name with two underscores: this one was meant for us.
            let rest = name.strip_prefix(NEAR_PREFIX).unwrap_or_default();
            if rest.contains("__") {
                let message = format!("{name} lacks an underscore after RETRYSAFE");
                sink.error(
                    &Origin::Variable(name.clone()),
                    message,
                    format!("write {PREFIX}{rest}"),
                );
            }
            continue;
        }
        match named(name) {
            Some(key) => set.push((key.path, Value::from_variable(key.path, name, text))),
            None => report(name, sink),
        }
    }
    // A url from the environment overrides the file's, however that one was given.
    for [url, file] in [
        ["store.url", "store.url_file"],
        ["store.cache", "store.cache_file"],
    ] {
        if set.iter().any(|(path, _)| *path == url || *path == file) {
            values.remove(url);
            values.remove(file);
        }
    }
    values.extend(set);
}

/// Says why a variable sets nothing.
fn report(name: &str, sink: &mut Sink<'_>) {
    let at = Origin::Variable(name.to_owned());
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let path = rest.replace("__", ".").to_ascii_lowercase();
    let top = path.split('.').next().unwrap_or_default();
    if top == "route" || top == "routes" {
        let message = "routes cannot be set by environment variables";
        sink.error(&at, message, "write [[route]] in the file");
        return;
    }
    let (message, help) = match schema::find(&path) {
        Found::NotYet(entry) => (
            format!("`{path}` is not available in this version yet"),
            entry.help.to_owned(),
        ),
        Found::Table => (
            format!("{name} names a table"),
            "set its keys one by one, with the key after two underscores".to_owned(),
        ),
        _ => {
            let help = match schema::nearest_variable(name) {
                Some(near) => format!("did you mean {near}?"),
                None => "all names are listed in docs/configuration.md".to_owned(),
            };
            (format!("{name} names no key"), help)
        }
    };
    sink.error(&at, message, help);
}
