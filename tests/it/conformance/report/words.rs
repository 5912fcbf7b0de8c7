//! The words of single checks of `reports.json`.

use serde_json::{Map, Value};

use crate::conformance::octets::{Blob, shown};
use crate::conformance::wire::{Ending, Got, lines};

pub(super) type Check = Map<String, Value>;
pub(super) type Held = Result<(), String>;

/// The words that are about the lines of one field.
pub(super) const LINE_WORDS: [&str; 11] = [
    "header",
    "is",
    "is_in",
    "values",
    "has",
    "lacks",
    "present",
    "absent",
    "count",
    "max_count",
    "last_token_not",
];

/// Names what does not hold.
pub(super) fn hold(holds: bool, check: &Check, got: impl std::fmt::Debug) -> Held {
    if holds {
        return Ok(());
    }
    let check = Value::from(check.clone());
    Err(format!("{check}, got {got:?}"))
}

pub(super) fn unknown(word: &str, check: &Check) -> String {
    format!("unknown word {word} in {}", Value::from(check.clone()))
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

pub(super) fn texts(value: &Value) -> Vec<&str> {
    let list = value.as_array().expect("a list");
    list.iter()
        .map(|text| text.as_str().expect("text"))
        .collect()
}

pub(super) fn has_status(value: &Value, status: u16) -> bool {
    let list = value.as_array().expect("a list");
    list.contains(&Value::from(status))
}

pub(super) fn blob(value: &Value) -> Result<Vec<u8>, String> {
    let blob: Blob = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    Ok(blob.octets())
}

/// The lines that tell where a message ends.
pub(super) fn framings(fields: &[(String, String)]) -> usize {
    lines(fields, "content-length").len() + lines(fields, "transfer-encoding").len()
}

/// Whether a field's name stands there in exactly these letters.
pub(super) fn is_spelt(fields: &[(String, String)], name: &Value) -> bool {
    fields
        .iter()
        .any(|(key, _)| Some(key.as_str()) == name.as_str())
}

pub(super) fn within(limits: &Check, what: &str, got: usize, check: &Check) -> Held {
    let got = got as u64;
    for (word, value) in limits {
        let holds = match word.as_str() {
            "eq" => got == number(value),
            "max" => got <= number(value),
            word if word == what => true,
            word => return Err(unknown(word, check)),
        };
        hold(holds, check, got)?;
    }
    Ok(())
}

/// The remaining lives of the store's keys; one without an end has -1.
pub(super) fn snapshot(lives: &[i64], check: &Check) -> Held {
    for (word, value) in check {
        let holds = match (word.as_str(), value) {
            ("snapshot", _) => true,
            ("not_empty", Value::Bool(true)) => !lives.is_empty(),
            ("every_key_has_ttl", Value::Bool(true)) => lives.iter().all(|left| *left > 0),
            ("ttl_max_ms", Value::Number(most)) => lives
                .iter()
                .all(|left| most.as_i64().is_some_and(|most| *left <= most)),
            (word, _) => return Err(unknown(word, check)),
        };
        hold(holds, check, lives)?;
    }
    Ok(())
}

pub(super) fn replayed(got: &Got, check: &Check) -> Held {
    let marker = got.lines("idempotent-replayed");
    let holds = match check.get("is") {
        Some(Value::Bool(true)) => marker == ["true"],
        Some(Value::Bool(false)) => marker.is_empty(),
        _ => return Err(unknown("is", check)),
    };
    hold(holds && check.len() == 2, check, marker)
}

pub(super) fn resp(got: &Got, check: &Check) -> Held {
    let Some(name) = check.get("header").and_then(Value::as_str) else {
        return answer(got, check);
    };
    let (about_lines, rest) = check
        .clone()
        .into_iter()
        .partition(|(word, _)| LINE_WORDS.contains(&word.as_str()));
    header(&about_lines, name, &got.lines(name))?;
    answer(got, &rest)
}

pub(super) fn answer(got: &Got, check: &Check) -> Held {
    let text = String::from_utf8_lossy(&got.body);
    for (word, value) in check {
        let most = |time: std::time::Duration| time.as_millis() <= u128::from(number(value));
        let is = value.as_bool();
        let holds = match word.as_str() {
            "resp" => true,
            "status" => number(value) == u64::from(got.status),
            "status_in" => has_status(value, got.status),
            "answered" => is == Some(got.is_answered()),
            "complete" => is == Some(got.ending == Ending::Whole),
            "closed" => is == Some(got.closed),
            "max_ms" => most(got.took),
            "first_byte_max_ms" => got.first_body_at.is_some_and(most),
            "body" => got.body == blob(value)?,
            "body_has" => text.contains(value.as_str().unwrap()),
            "body_lacks" => !text.contains(value.as_str().unwrap()),
            "one_framing" => framings(&got.fields) <= 1,
            "raw_header_name" => is_spelt(&got.fields, value),
            "total" => got.total as u64 == number(value),
            "statuses_max_len" => {
                got.further.len() as u64 + u64::from(got.status != 0) <= number(value)
            }
            word => return Err(unknown(word, check)),
        };
        hold(
            holds,
            check,
            (word, got.ending, got.status, &got.fields, shown(&got.body)),
        )?;
    }
    Ok(())
}

/// Judges the lines of one field.
pub(super) fn header(check: &Check, name: &str, lines: &[&str]) -> Held {
    let joined = lines.join(", ").to_ascii_lowercase();
    for (word, value) in check {
        let holds = match word.as_str() {
            "header" => true,
            "is" => lines == [value.as_str().unwrap()],
            "is_in" => lines.len() == 1 && texts(value).contains(&lines[0]),
            "values" => lines == texts(value),
            "has" => joined.contains(value.as_str().unwrap()),
            "lacks" => !joined.contains(value.as_str().unwrap()),
            "present" => !lines.is_empty(),
            "absent" => lines.is_empty(),
            "count" => lines.len() as u64 == number(value),
            "max_count" => lines.len() as u64 <= number(value),
            "last_token_not" => {
                let last = joined.rsplit(',').next().unwrap_or_default().trim();
                last != value.as_str().unwrap()
            }
            word => return Err(unknown(word, check)),
        };
        hold(holds, check, (name, lines))?;
    }
    Ok(())
}
