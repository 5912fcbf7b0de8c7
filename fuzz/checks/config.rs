//! A configuration is read or refused with a place and a help; it never makes the program fall.

use retrysafe::config::{Environment, parse};

/// The octets are a file.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if text.contains("_file") {
        // It would be read.
        return;
    }
    if let Err(errors) = parse(text, "config.toml", &Environment::new()) {
        assert!(!errors.errors.is_empty());
        assert!(!errors.to_string().is_empty());
    }
}
