//! Durations and sizes: a whole number and a unit, nothing else.
//!
//! A bare number is refused on purpose: `timeout = 30` is seconds to one reader and milliseconds
//! to the next.

use std::time::Duration;

use super::super::diagnostic::Sink;
use super::super::source::quoted;
use super::{Shape, Value};

/// The longest duration: ten years. What is longer is a slip, and sums must not overflow.
const LONGEST: Duration = Duration::from_hours(3650 * 24);

const DURATION_HELP: &str = "write a whole number and a unit: 500ms, 30s, 5m, 24h or 7d";
const SIZE_HELP: &str = "write a whole number and a unit: 512B, 64KiB, 1MiB or 2GiB";

/// A duration, zero included.
pub(crate) fn duration(value: &Value, sink: &mut Sink<'_>) -> Option<Duration> {
    let text = match &value.shape {
        Shape::Text(text) => text.trim(),
        Shape::Integer(number) if *number >= 0 => {
            return value.wrong(sink, "needs a unit", bare_duration(&number.to_string()));
        }
        _ => return value.wrong_type(sink, "a duration", "write a string such as \"30s\""),
    };
    let (digits, unit) = split(text);
    let number = digits.parse::<u64>();
    let factor = match (unit, &number) {
        ("ms", _) => 1,
        ("s", _) => 1_000,
        ("m", _) => 60_000,
        ("h", _) => 3_600_000,
        ("d", _) => 86_400_000,
        ("", Ok(_)) => return value.wrong(sink, "needs a unit", bare_duration(digits)),
        (other, Ok(number)) => {
            let help = match similar_unit(other) {
                Some(unit) => format!("write \"{number}{unit}\""),
                None => DURATION_HELP.to_owned(),
            };
            return value.wrong(sink, format!("is not a duration: {}", quoted(text)), help);
        }
        _ => 0,
    };
    let Ok(number) = number else {
        let message = format!("is not a duration: {}", quoted(text));
        return value.wrong(sink, message, DURATION_HELP);
    };
    let duration = number.checked_mul(factor).map(Duration::from_millis);
    match duration.filter(|duration| *duration <= LONGEST) {
        Some(duration) => Some(duration),
        None => value.wrong(sink, "is too long", "at most 3650d"),
    }
}

/// A duration above zero.
pub(crate) fn above_zero(value: &Value, sink: &mut Sink<'_>) -> Option<Duration> {
    let duration = duration(value, sink)?;
    if duration.is_zero() {
        return value.wrong(sink, "must not be zero", "write a duration above zero");
    }
    Some(duration)
}

/// A number of bytes.
pub(crate) fn size(value: &Value, sink: &mut Sink<'_>) -> Option<u64> {
    let text = match &value.shape {
        Shape::Text(text) => text.trim(),
        Shape::Integer(number) if *number >= 0 => {
            let help = u64::try_from(*number).map_or(SIZE_HELP.to_owned(), |bytes| {
                format!("write \"{}\"", show_size(bytes))
            });
            return value.wrong(sink, "needs a unit", help);
        }
        _ => return value.wrong_type(sink, "a size", "write a string such as \"1MiB\""),
    };
    let (digits, unit) = split(text);
    let number = digits.parse::<u64>();
    let shift = match (unit, &number) {
        ("B", _) => 0,
        ("KiB", _) => 10,
        ("MiB", _) => 20,
        ("GiB", _) => 30,
        ("", Ok(bytes)) => {
            let help = format!("write \"{}\"", show_size(*bytes));
            return value.wrong(sink, "needs a unit", help);
        }
        (other, Ok(number)) => {
            let help = match other.trim().to_ascii_lowercase().as_str() {
                "b" | "byte" | "bytes" => format!("write \"{number}B\""),
                "k" | "kb" | "kib" => format!("write \"{number}KiB\""),
                "m" | "mb" | "mib" => format!("write \"{number}MiB\""),
                "g" | "gb" | "gib" => format!("write \"{number}GiB\""),
                _ => SIZE_HELP.to_owned(),
            };
            return value.wrong(sink, format!("is not a size: {}", quoted(text)), help);
        }
        _ => 0,
    };
    let Ok(number) = number else {
        return value.wrong(sink, format!("is not a size: {}", quoted(text)), SIZE_HELP);
    };
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes <= 1 << 40 => Some(bytes),
        _ => value.wrong(sink, "is too large", "at most 1024GiB"),
    }
}

/// The number in front and what follows it.
fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'))
        .unwrap_or(text.len());
    // A blank stays with the unit, so that the answer to "30 s" shows how to write it.
    text.split_at(end)
}

fn bare_duration(digits: &str) -> String {
    format!("write \"{digits}s\" or \"{digits}ms\"; units are ms, s, m, h and d")
}

/// The unit that was meant.
fn similar_unit(unit: &str) -> Option<&'static str> {
    let unit = unit.trim().to_ascii_lowercase();
    match unit.as_str() {
        "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => Some("ms"),
        "s" | "sec" | "secs" | "second" | "seconds" => Some("s"),
        "m" | "min" | "mins" | "minute" | "minutes" => Some("m"),
        "h" | "hr" | "hrs" | "hour" | "hours" => Some("h"),
        "d" | "day" | "days" => Some("d"),
        _ => None,
    }
}

/// A duration as it would be written, in the largest unit that fits.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    for (unit, factor) in units {
        if millis >= factor && millis.is_multiple_of(factor) {
            return format!("{}{unit}", millis / factor);
        }
    }
    if millis == 0 {
        return "0s".to_owned();
    }
    format!("{millis}ms")
}

/// A size as it would be written.
fn show_size(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}
