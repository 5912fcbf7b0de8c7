//! `[store.encryption]` and `store.compress_above`.

use super::Reader;
use crate::config::Config;
use crate::config::diagnostic::Sink;
use crate::config::value::measure::size;
use crate::config::value::{Value, boolean, text};
use crate::store::vault::SealingKey;

const KEY_FILE: &str = "store.encryption.key_file";
const PLAINTEXT: &str = "store.encryption.accept_plaintext";

/// Sets how records are stored.
pub(super) fn vault(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let vault = &mut config.store.vault;
    reader.set(
        "store.compress_above",
        &mut vault.compress_above,
        |value, sink| {
            let octets = size(value, sink)?;
            Some(Some(usize::try_from(octets).unwrap_or(usize::MAX)))
        },
    );
    reader.set(KEY_FILE, &mut vault.keys, key_file);
    reader.set(PLAINTEXT, &mut vault.accept_plaintext, boolean);
    if let Some(value) = reader
        .values
        .get(PLAINTEXT)
        .filter(|_| vault.accept_plaintext && !reader.has(KEY_FILE))
    {
        let message = "`accept_plaintext` means nothing without `key_file`";
        reader
            .sink
            .error(&value.at, message, "write key_file, or remove it");
    }
}

/// The keys of a file, one on each line. Never shows any.
fn key_file(value: &Value, sink: &mut Sink<'_>) -> Option<Vec<SealingKey>> {
    const HELP: &str = "the file holds keys, each on a line, the one to seal with first: write one with \
                        `openssl rand -base64 32`";
    let path = text(value, sink)?;
    let content = match std::fs::read_to_string(path) {
        Ok(content) => content,
        Err(error) => return value.wrong(sink, format!("cannot be read: {error}"), HELP),
    };
    let mut keys = Vec::new();
    for (number, line) in content.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(key) = SealingKey::parse(line) else {
            let message = format!("names a file whose line {} is no key", number + 1);
            return value.wrong(sink, message, HELP);
        };
        if keys.contains(&key) {
            let message = format!("names a file with one key twice, in line {}", number + 1);
            return value.wrong(sink, message, HELP);
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return value.wrong(sink, "names a file without a key in it", HELP);
    }
    Some(keys)
}
