//! Single values, from a file and from the environment.

mod http;
mod measure;

use toml::de::DeTable;

use super::http::method;
use super::*;
use crate::config::source::Source;

/// Reads the TOML `text` with `read`: the value, or the first error and its help.
fn from_file<T>(
    text: &str,
    read: impl FnOnce(&Value, &mut Sink<'_>) -> Option<T>,
) -> Result<T, String> {
    let text = format!("k = {text}");
    let table = DeTable::parse(&text).unwrap();
    let value = Value::from_toml("k", table.get_ref().get("k").unwrap());
    read_value(&text, &value, read)
}

fn from_env<T>(
    text: &str,
    read: impl FnOnce(&Value, &mut Sink<'_>) -> Option<T>,
) -> Result<T, String> {
    read_value("", &Value::from_variable("k", "K", text), read)
}

fn read_value<T>(
    text: &str,
    value: &Value,
    read: impl FnOnce(&Value, &mut Sink<'_>) -> Option<T>,
) -> Result<T, String> {
    let source = Source {
        name: "c.toml",
        text,
    };
    let mut sink = Sink::new(&source);
    let answer = read(value, &mut sink);
    let (errors, warnings) = sink.finish();
    assert!(warnings.is_empty());
    match answer {
        Some(value) if errors.is_empty() => Ok(value),
        Some(_) => panic!("a value and an error"),
        None => {
            let error = errors.first().expect("no value and no error");
            let help = error.help.clone().unwrap_or_default();
            Err(format!("{}; {help}", error.message))
        }
    }
}

#[test]
fn integers_stay_in_their_range() {
    let read = integer::<usize>(1..=10);
    assert_eq!(from_file("10", &read), Ok(10));
    assert_eq!(from_file("0xA", &read), Ok(10));
    assert_eq!(from_env("7", &read), Ok(7));
    for bad in [
        "0",
        "11",
        "-1",
        "1.0",
        "\"7\"",
        "99999999999999999999999",
        "true",
    ] {
        assert!(from_file(bad, &read).is_err(), "{bad}");
    }
    for bad in ["", "0", "x", "1.0", "1_0"] {
        assert!(from_env(bad, &read).is_err(), "{bad}");
    }
    assert!(
        from_file("\"7\"", &read)
            .unwrap_err()
            .contains("write 7 without quotes")
    );
    assert!(
        from_file("0", &read)
            .unwrap_err()
            .contains("between 1 and 10")
    );
    let open = integer::<usize>(1..=u64::MAX);
    assert!(from_file("0", open).unwrap_err().contains("at least 1"));
}

#[test]
fn booleans_are_true_or_false() {
    assert_eq!(from_file("true", boolean), Ok(true));
    assert_eq!(from_env("false", boolean), Ok(false));
    for bad in ["1", "\"true\"", "\"yes\""] {
        assert!(from_file(bad, boolean).is_err(), "{bad}");
    }
    for bad in ["1", "True", "yes", ""] {
        assert!(from_env(bad, boolean).is_err(), "{bad}");
    }
}

#[test]
fn choices_are_exact_and_near_misses_are_named() {
    let read = choice(&[("reject", 1), ("pass", 2)]);
    assert_eq!(from_file("\"pass\"", &read), Ok(2));
    assert_eq!(from_env("reject", &read), Ok(1));
    let error = from_file("\"Reject\"", &read).unwrap_err();
    assert!(error.contains("did you mean \"reject\"?"), "{error}");
    let error = from_file("\"other\"", &read).unwrap_err();
    assert!(
        error.ends_with("write one of \"reject\", \"pass\""),
        "{error}"
    );
    assert!(
        from_file("2", &read)
            .unwrap_err()
            .contains("found an integer")
    );
}

#[test]
fn lists_come_in_brackets_or_by_commas() {
    let read = list(method);
    let names =
        |list: Vec<::http::Method>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        names(from_file("[\"POST\", \"PUT\", \"POST\"]", &read).unwrap()),
        ["POST", "PUT"]
    );
    assert_eq!(
        names(from_env(" POST ,PUT,", &read).unwrap()),
        ["POST", "PUT"]
    );
    assert_eq!(from_env("", &read).unwrap(), Vec::<::http::Method>::new());
    assert_eq!(
        from_file("[]", &read).unwrap(),
        Vec::<::http::Method>::new()
    );
    for bad in ["\"POST\"", "[1]", "[\"post\"]", "1", "[[\"POST\"]]"] {
        assert!(from_file(bad, &read).is_err(), "{bad}");
    }
    assert!(
        from_file("[]", some(method, "h"))
            .unwrap_err()
            .ends_with("must not be empty; h")
    );
}

#[test]
fn addresses_are_ip_and_port() {
    for good in ["0.0.0.0:4390", "127.0.0.1:0", "[::1]:80"] {
        assert_eq!(from_env(good, address).unwrap().to_string(), good);
    }
    for bad in [
        "",
        ":80",
        "localhost:80",
        "1.2.3.4",
        "::1",
        "1.2.3.4:70000",
        "a.b:1",
    ] {
        assert!(from_env(bad, address).is_err(), "{bad}");
    }
    assert!(
        from_file("80", address)
            .unwrap_err()
            .contains("write \"0.0.0.0:80\"")
    );
}

#[test]
fn networks_may_be_single_addresses() {
    for (text, shown) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.1", "10.0.0.1/32"),
        ("::1", "::1/128"),
    ] {
        assert_eq!(from_env(text, network).unwrap().to_string(), shown);
    }
    for bad in ["", "10.0.0.0/33", "host", "10.0.0"] {
        assert!(from_env(bad, network).is_err(), "{bad}");
    }
}

#[test]
fn labels_are_short_and_plain() {
    assert_eq!(from_env("a.B_c-9", label).unwrap(), "a.B_c-9");
    assert!(from_env(&"x".repeat(64), label).is_ok());
    for bad in ["", " ", "a b", "a/b", "é", &"x".repeat(65)] {
        assert!(from_env(bad, label).is_err(), "{bad}");
    }
}

#[test]
fn log_filters_name_levels() {
    for good in [
        "info",
        "OFF",
        "warn,retrysafe::store=debug",
        "a_b::c-d = trace, error",
    ] {
        assert_eq!(from_env(good, log_filter).unwrap(), good);
    }
    for bad in [
        "",
        "verbose",
        "info,",
        "=info",
        "retrysafe",
        "a=b",
        "a b=info",
    ] {
        assert!(from_env(bad, log_filter).is_err(), "{bad}");
    }
    assert!(
        from_env("inof", log_filter)
            .unwrap_err()
            .contains("did you mean \"info\"?")
    );
}

#[test]
fn wrong_types_are_named() {
    let kinds = [
        ("1", "an integer"),
        ("true", "a boolean"),
        ("[]", "a list"),
        ("{}", "a table"),
        ("1.5", "a number with a fraction"),
        ("1979-05-27", "a date"),
    ];
    for (value, name) in kinds {
        let error = from_file(value, |value, sink| text(value, sink).map(str::to_owned));
        assert!(
            error.unwrap_err().contains(&format!("found {name};")),
            "{value}"
        );
    }
    let large = from_file("170141183460469231731687303715884105728", |value, sink| {
        text(value, sink).map(str::to_owned)
    });
    assert!(large.unwrap_err().contains("too large"));
}
