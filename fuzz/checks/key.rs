//! R4, R5: what the key parser takes is a key, however it is written.

use retrysafe::idempotency::key::{KeyError, parse};
use retrysafe::idempotency::policy::{KeyPolicy, KeySyntax};

/// The octets are a field's value.
pub fn check(data: &[u8]) {
    let lenient = KeyPolicy::default();
    let strict = KeyPolicy {
        syntax: KeySyntax::Strict,
        ..KeyPolicy::default()
    };
    let taken = parse(data, &lenient);
    if let Ok(key) = &taken {
        let text = key.as_str();
        assert!((1..=lenient.max_length).contains(&text.len()));
        assert!(text.bytes().all(|octet| (0x20..=0x7e).contains(&octet)));
        // Quoted it is the same key, for both.
        let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        for policy in [&lenient, &strict] {
            assert_eq!(parse(quoted.as_bytes(), policy).as_ref(), Ok(key));
        }
    }
    match (parse(data, &strict), taken) {
        // Strict takes less, and never something else.
        (Ok(strict), lenient) => assert_eq!(lenient, Ok(strict)),
        (Err(KeyError::NotQuoted), _) => {}
        (Err(strict), lenient) => assert_eq!(lenient, Err(strict)),
    }
}
