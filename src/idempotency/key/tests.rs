//! Spellings of a key that are accepted, and those that are not.

use http::{HeaderName, HeaderValue};

use super::*;

fn lenient(value: &str) -> Result<String, KeyError> {
    parse(value.as_bytes(), &KeyPolicy::default()).map(|key| key.0)
}

fn strict(value: &str) -> Result<String, KeyError> {
    let policy = KeyPolicy {
        syntax: KeySyntax::Strict,
        ..KeyPolicy::default()
    };
    parse(value.as_bytes(), &policy).map(|key| key.0)
}

#[test]
fn quoted_and_bare_forms_of_one_text_are_one_key() {
    for (value, key) in [
        ("abc", "abc"),
        ("\"abc\"", "abc"),
        ("  abc\t", "abc"),
        (
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
        ),
        ("\"a b, c;d\"", "a b, c;d"),
        (r#""say \"hi\" \\""#, r#"say "hi" \"#),
        ("a%20b", "a%20b"),
        ("AbC", "AbC"),
        ("a/b:c=d?e", "a/b:c=d?e"),
    ] {
        assert_eq!(lenient(value).as_deref(), Ok(key), "{value}");
    }
}

#[test]
fn parameters_are_read_and_ignored() {
    for value in [
        "\"k\";a",
        "\"k\";a=1;b=-2.5",
        "\"k\"; a=\"x;y\"",
        "\"k\";a=tok/en;b=?0;c=:YWJj:",
        "\"k\";a=@1659578233;b=%\"f%c3%bc\"",
        "\"k\";*x=*",
    ] {
        assert_eq!(lenient(value).as_deref(), Ok("k"), "{value}");
        assert_eq!(strict(value).as_deref(), Ok("k"), "{value}");
    }
    for value in [
        "\"k\";",
        "\"k\";A=1",
        "\"k\" ;a",
        "\"k\";a=",
        "\"k\";a b",
        "\"k\";a=:",
        "\"k\";a=\"x",
    ] {
        assert_eq!(lenient(value), Err(KeyError::Malformed), "{value}");
    }
}

#[test]
fn what_is_malformed_is_never_missing() {
    for (value, error) in [
        ("", KeyError::Empty),
        ("   ", KeyError::Empty),
        ("\"\"", KeyError::Empty),
        ("\"abc", KeyError::Malformed),
        ("\"a\\bc\"", KeyError::Malformed),
        ("\"a\"b", KeyError::Malformed),
        ("\"a\", \"b\"", KeyError::Malformed),
        ("\"a\tb\"", KeyError::Malformed),
        ("a b", KeyError::NotBare),
        ("a,b", KeyError::NotBare),
        ("a;b", KeyError::NotBare),
        ("a\"b", KeyError::NotBare),
        ("a\\b", KeyError::NotBare),
        ("caf\u{e9}", KeyError::NotAscii),
        ("a\u{7f}", KeyError::NotAscii),
    ] {
        assert_eq!(lenient(value), Err(error), "{value:?}");
    }
}

#[test]
fn strict_takes_strings_only() {
    assert_eq!(strict("\"abc\"").as_deref(), Ok("abc"));
    for value in ["abc", "123", "1.5", ":YWJj:", "?1"] {
        assert_eq!(strict(value), Err(KeyError::NotQuoted), "{value}");
    }
}

#[test]
fn length_counts_after_unquoting() {
    let at_limit = "k".repeat(255);
    assert!(lenient(&at_limit).is_ok());
    assert!(lenient(&format!("\"{at_limit}\"")).is_ok());
    assert!(lenient(&format!("\"{}\"", "\\\\".repeat(255))).is_ok());
    assert_eq!(
        lenient(&format!("{at_limit}k")),
        Err(KeyError::TooLong(255))
    );
}

#[test]
fn uuids_where_they_are_asked_for() {
    let policy = KeyPolicy {
        format: KeyFormat::Uuid,
        ..KeyPolicy::default()
    };
    let uuid = |value: &str| parse(value.as_bytes(), &policy).map(|key| key.0);
    assert!(uuid("8E03978e-40d5-43e8-bc93-6894a57f9324").is_ok());
    for value in [
        "8e03978e40d543e8bc936894a57f9324",
        "abc",
        "8e03978e-40d5-43e8-bc93-6894a57f932g",
    ] {
        assert_eq!(uuid(value), Err(KeyError::NotUuid));
    }
}

#[test]
fn several_lines_are_refused_even_if_equal_and_across_aliases() {
    let alias = HeaderName::from_static("x-idempotency-key");
    let policy = KeyPolicy {
        aliases: vec![alias.clone()],
        ..KeyPolicy::default()
    };
    let mut headers = HeaderMap::new();
    assert_eq!(from_headers(&headers, &policy), Ok(None));
    headers.append(&alias, HeaderValue::from_static("k"));
    assert_eq!(
        from_headers(&headers, &policy).unwrap().unwrap().as_str(),
        "k"
    );
    headers.append(&policy.header, HeaderValue::from_static("k"));
    assert_eq!(from_headers(&headers, &policy), Err(KeyError::Repeated));
    headers.remove(&alias);
    headers.append(&policy.header, HeaderValue::from_static("k"));
    assert_eq!(from_headers(&headers, &policy), Err(KeyError::Repeated));
}

#[test]
fn a_key_never_shows_in_debug_output() {
    let key = plain("secret-key".into(), &KeyPolicy::default()).unwrap();
    assert!(!format!("{key:?}").contains("secret"));
}

proptest::proptest! {
    /// RFC 9651: whatever is serialised as an sf-string is read back.
    #[test]
    fn every_sf_string_is_read_back(text in "[ -~]{1,255}") {
        let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        proptest::prop_assert_eq!(lenient(&quoted), Ok(text));
    }

    #[test]
    fn any_octets_give_a_key_or_an_error(value in proptest::collection::vec(0_u8..=255, 0..300)) {
        if let Ok(key) = parse(&value, &KeyPolicy::default()) {
            proptest::prop_assert!((1..=255).contains(&key.0.len()));
        }
    }
}
