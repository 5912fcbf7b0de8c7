//! Every key of a configuration as data: name, type, default, one line of explanation.
//!
//! Invariant: a key that is not here is unknown, a key that is here is read (a test tries each).
//! The reference in `docs/configuration.md` and the environment names come from here. The defaults
//! are text for people; what the program uses is `Config::default()`, and a test compares the two.
//!
//! Deliberately absent: reading (`value/`, `resolve/`). Read next: `keys.rs`, `policy_keys.rs`.

mod keys;
mod policy_keys;
mod store_keys;

use std::fmt;

/// What may be written for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Free text, with what it should look like.
    Text(&'static str),
    /// A whole number.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// `"30s"`.
    Duration,
    /// `"1MiB"`.
    Size,
    /// `"0.0.0.0:4390"`.
    Address,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of these.
    List(&'static str),
}

impl fmt::Display for Kind {
    /// As the reference writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(what) => f.write_str(what),
            Self::Integer => f.write_str("integer"),
            Self::Boolean => f.write_str("boolean"),
            Self::Duration => f.write_str("duration"),
            Self::Size => f.write_str("size"),
            Self::Address => f.write_str("address:port"),
            Self::Choice(words) => {
                let quoted: Vec<String> =
                    words.iter().map(|word| format!("`\"{word}\"`")).collect();
                f.write_str(&quoted.join(", "))
            }
            Self::List(what) => write!(f, "list of {what}"),
        }
    }
}

/// One key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// `policy.key.missing`. Keys of a `[[route]]` begin with `route.`.
    pub path: &'static str,
    /// What may be written.
    pub kind: Kind,
    /// As TOML; empty: none.
    pub default: &'static str,
    /// One line for people.
    pub doc: &'static str,
}

impl Key {
    /// `policy.key` of `policy.key.missing`.
    pub fn table(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// `missing` of `policy.key.missing`.
    pub fn name(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, name)| name)
    }

    /// The environment variable that sets it; `None` for the keys of a `[[route]]`.
    pub fn variable(&self) -> Option<String> {
        let of_route = self.path.starts_with("route.");
        (!of_route).then(|| variable(self.path))
    }
}

/// The environment variable for a path.
fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.to_ascii_uppercase().replace('.', "__"))
}

/// What the variables that set keys begin with.
pub(super) const PREFIX: &str = "RETRYSAFE__";

/// Every key, in the order of the reference.
pub fn reference() -> impl Iterator<Item = &'static Key> {
    keys::PROCESS
        .iter()
        .chain(store_keys::STORE)
        .chain(policy_keys::POLICY)
        .chain(keys::REST)
}

/// A key or table whose feature does not exist yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct NotYet {
    pub(super) path: &'static str,
    pub(super) help: &'static str,
}

/// What a path names.
#[derive(Debug, Clone, Copy)]
pub(super) enum Found {
    Key(&'static Key),
    Table,
    NotYet(&'static NotYet),
    Unknown,
}

/// Looks a path up. `route` is a table here; that it is a list of tables is the walk's affair.
pub(super) fn find(path: &str) -> Found {
    if let Some(key) = reference().find(|key| key.path == path) {
        return Found::Key(key);
    }
    let is_below = |path: &str, table: &str| {
        path.strip_prefix(table)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    let not_yet = |entry: &&NotYet| entry.path == path || is_below(path, entry.path);
    if let Some(entry) = keys::NOT_YET.iter().find(not_yet) {
        return Found::NotYet(entry);
    }
    if reference().any(|key| is_below(key.path, path)) {
        return Found::Table;
    }
    Found::Unknown
}

/// What to say about the unknown `name` in `table` (empty: the top of the file).
pub(super) fn suggestion(table: &str, name: &str) -> String {
    let siblings = members(table);
    if let Some(near) = nearest(name, siblings.iter().copied()) {
        return match table {
            "" => format!("did you mean {}?", header(near)),
            _ => format!("did you mean `{near}`?"),
        };
    }
    if table == "route" && matches!(find(&format!("policy.{name}")), Found::Key(_)) {
        return format!("`{name}` belongs in [route.policy]");
    }
    let elsewhere = reference().filter(|key| key.name() == name);
    let tables: Vec<String> = elsewhere.map(|key| header(key.table())).collect();
    if !tables.is_empty() {
        return format!("`{name}` belongs in {}", tables.join(" or "));
    }
    if table.is_empty() {
        let tables: Vec<String> = siblings.iter().map(|name| header(name)).collect();
        return format!("known tables: {}", tables.join(", "));
    }
    if siblings.len() <= 12 {
        return format!("known keys here: {}", siblings.join(", "));
    }
    "all keys are listed in docs/configuration.md".to_owned()
}

/// How a table's header is written.
fn header(table: &str) -> String {
    match table {
        "route" => "[[route]]".to_owned(),
        table => format!("[{table}]"),
    }
}

/// The keys and tables directly below `table`.
fn members(table: &str) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for key in reference() {
        let below = match table {
            "" => Some(key.path),
            _ => key
                .path
                .strip_prefix(table)
                .and_then(|rest| rest.strip_prefix('.')),
        };
        let name = below.and_then(|below| below.split('.').next());
        if let Some(name) = name.filter(|name| !names.contains(name)) {
            names.push(name);
        }
    }
    if table == "route" {
        names.push("policy");
    }
    names
}

/// The variable that `name` was probably meant to be.
pub(super) fn nearest_variable(name: &str) -> Option<String> {
    let names: Vec<String> = reference().filter_map(Key::variable).collect();
    nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

/// The candidate that `word` is a misspelling of.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let word = plain(word);
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    candidates
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &plain(candidate)),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests;
