//! Durations and sizes.

use std::time::Duration;

use super::super::measure::{above_zero, duration, show_duration, size};
use super::{from_env, from_file};

#[test]
fn durations_need_a_number_and_a_unit() {
    let good = [
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("0s", 0),
        (" 1s ", 1_000),
        ("3650d", 315_360_000_000),
    ];
    for (text, millis) in good {
        let expected = Ok(Duration::from_millis(millis));
        assert_eq!(
            from_file(&format!("\"{text}\""), duration),
            expected,
            "{text}"
        );
        assert_eq!(from_env(text, duration), expected, "{text}");
    }
    for bad in [
        "", "s", "ms", "1", "1.5s", "-1s", "1 s", "1S", "1w", "1m30s", "3651d", "+1s", "٣s",
    ] {
        assert!(from_file(&format!("\"{bad}\""), duration).is_err(), "{bad}");
        assert!(from_env(bad, duration).is_err(), "{bad}");
    }
    for bad in ["1", "-1", "1.0", "true", "[]", "{}", "1979-05-27"] {
        assert!(from_file(bad, duration).is_err(), "{bad}");
    }
    let huge = format!("\"{}d\"", u64::MAX);
    assert!(from_file(&huge, duration).unwrap_err().contains("too long"));
}

#[test]
fn duration_errors_say_what_to_write() {
    let help = |text: &str| from_file(text, duration).unwrap_err();
    assert!(help("30").contains("write \"30s\" or \"30ms\""));
    assert!(help("\"30\"").contains("write \"30s\" or \"30ms\""));
    for (bad, good) in [
        ("5 min", "5m"),
        ("5secs", "5s"),
        ("2 hours", "2h"),
        ("1Day", "1d"),
        ("9MS", "9ms"),
    ] {
        let expected = format!("write \"{good}\"");
        assert!(help(&format!("\"{bad}\"")).ends_with(&expected), "{bad}");
    }
    assert_eq!(
        from_file("\"0s\"", above_zero).unwrap_err(),
        "`k` must not be zero; write a duration above zero"
    );
}

#[test]
fn durations_are_shown_as_written() {
    for text in ["0s", "1ms", "1500ms", "2s", "90s", "5m", "24h", "7d"] {
        let shown = show_duration(from_env(text, duration).unwrap());
        assert_eq!(
            from_env(&shown, duration),
            from_env(text, duration),
            "{text} {shown}"
        );
    }
    assert_eq!(show_duration(Duration::from_hours(24)), "1d");
    assert_eq!(show_duration(Duration::from_millis(1500)), "1500ms");
}

#[test]
fn sizes_need_a_number_and_a_unit() {
    let good = [
        ("0B", 0),
        ("512B", 512),
        ("64KiB", 65_536),
        ("1MiB", 1 << 20),
        ("2GiB", 2 << 30),
    ];
    for (text, bytes) in good {
        assert_eq!(from_file(&format!("\"{text}\""), size), Ok(bytes), "{text}");
        assert_eq!(from_env(text, size), Ok(bytes), "{text}");
    }
    for bad in [
        "", "B", "1", "1M", "1MB", "1 MiB", "-1B", "1.5MiB", "1TiB", "1025GiB", "x",
    ] {
        assert!(from_file(&format!("\"{bad}\""), size).is_err(), "{bad}");
    }
    assert!(from_file("\"18446744073709551615GiB\"", size).is_err());
    let help = |text: &str| from_file(text, size).unwrap_err();
    for (bad, good) in [
        ("\"1M\"", "1MiB"),
        ("\"2 gb\"", "2GiB"),
        ("\"3k\"", "3KiB"),
        ("\"4 bytes\"", "4B"),
        ("1048576", "1MiB"),
        ("1000", "1000B"),
        ("\"2048\"", "2KiB"),
    ] {
        assert!(
            help(bad).ends_with(&format!("write \"{good}\"")),
            "{bad}: {}",
            help(bad)
        );
    }
}
