//! JSON bodies: the canonical form of RFC 8785, and strings at a pointer (R7, R10).
//!
//! Invariant: two bodies have the same canonical form only if every parser that reads numbers as
//! doubles (RFC 8785 does, so does JavaScript) reads the same from both. Where that is in doubt (a
//! repeated member, an integer that a double cannot hold, text that is no JSON) there is none, and
//! the caller compares octets.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::policy::JsonPointer;

/// The canonical form without what `ignore` points at; `None` where octets must be compared.
pub fn canonical(body: &[u8], ignore: &[JsonPointer]) -> Option<Vec<u8>> {
    let mut value = serde_json::from_slice::<Unambiguous<true>>(body).ok()?.0;
    for pointer in ignore {
        remove(&mut value, pointer.as_str());
    }
    serde_json_canonicalizer::to_vec(&value).ok()
}

/// R7: the string at `pointer`. A body that is no JSON, repeats a member, or holds something else
/// there has none; how large its numbers are does not matter.
pub fn string_at(body: &[u8], pointer: &JsonPointer) -> Option<String> {
    let value = serde_json::from_slice::<Unambiguous<false>>(body).ok()?.0;
    value.pointer(pointer.as_str())?.as_str().map(str::to_owned)
}

fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else {
        *value = Value::Null;
        return;
    };
    let last = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            members.remove(&last);
        }
        Some(Value::Array(items)) => {
            if let Some(item) = last.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                // The others keep their places.
                *item = Value::Null;
            }
        }
        _ => {}
    }
}

/// The largest integer up to which every integer is a double.
const LARGEST: u64 = 1 << 53;

/// JSON without repeated members and, where `EXACT`, without numbers that a double cannot hold.
struct Unambiguous<const EXACT: bool>(Value);

impl<'de, const EXACT: bool> Deserialize<'de> for Unambiguous<EXACT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(UnambiguousVisitor::<EXACT>)
            .map(Self)
    }
}

struct UnambiguousVisitor<const EXACT: bool>;

impl<'de, const EXACT: bool> Visitor<'de> for UnambiguousVisitor<EXACT> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON that every parser reads alike")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        if EXACT && value > LARGEST {
            return Err(E::custom("integer beyond 2^53"));
        }
        Ok(Value::from(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        if EXACT && value.unsigned_abs() > LARGEST {
            return Err(E::custom("integer beyond 2^53"));
        }
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        // Integers beyond 64 bits arrive here too.
        #[allow(clippy::cast_precision_loss)] // 2^53 is exact
        if EXACT && value.abs() > LARGEST as f64 {
            return Err(E::custom("number beyond 2^53"));
        }
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not finite"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous::<EXACT>(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut seen = HashSet::new();
        let mut map = Map::new();
        while let Some((name, Unambiguous::<EXACT>(value))) = members.next_entry::<String, _>()? {
            if !seen.insert(name.clone()) {
                return Err(de::Error::custom("repeated member"));
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(body: &str) -> Option<String> {
        canonical(body.as_bytes(), &[]).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn member_order_blanks_and_spelling_of_numbers_do_not_matter() {
        assert_eq!(
            form(r#"{ "b": 1.0, "a": "\u0041" }"#).unwrap(),
            r#"{"a":"A","b":1}"#
        );
        assert_eq!(form("[1e2, 0.5]").unwrap(), "[100,0.5]");
    }

    #[test]
    fn what_parsers_read_differently_has_no_canonical_form() {
        for body in [
            r#"{"a":1,"a":2}"#,
            r#"{"x":{"a":1,"a":1}}"#,
            "9007199254740993",
            "123456789012345678901234567890",
            "-9007199254740993",
            "{",
            "",
            "nonsense",
        ] {
            assert_eq!(form(body), None, "{body}");
        }
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(form(&deep), None);
    }

    #[test]
    fn ignored_pointers_are_left_out() {
        let ignore = [
            JsonPointer::parse("/sent_at").unwrap(),
            JsonPointer::parse("/l/1").unwrap(),
        ];
        let one = canonical(br#"{"sent_at":1,"l":[1,2,3],"v":7}"#, &ignore).unwrap();
        let two = canonical(br#"{"v":7,"l":[1,9,3]}"#, &ignore).unwrap();
        assert_eq!(one, two);
        let other = canonical(br#"{"v":7,"l":[1,9,4]}"#, &ignore).unwrap();
        assert_ne!(one, other);
    }

    #[test]
    fn strings_at_pointers() {
        let pointer = JsonPointer::parse("/meta/key").unwrap();
        let at = |body: &str| string_at(body.as_bytes(), &pointer);
        assert_eq!(at(r#"{"meta":{"key":"k-1"}}"#).as_deref(), Some("k-1"));
        assert_eq!(at(r#"{"meta":{"key":7}}"#), None);
        assert_eq!(at(r#"{"meta":{}}"#), None);
        assert_eq!(at(r#"{"meta":{"key":"a","key":"b"}}"#), None);
        assert_eq!(at("not json"), None);
        let large = r#"{"n":9007199254740993,"x":1e300,"meta":{"key":"k-1"}}"#;
        assert_eq!(at(large).as_deref(), Some("k-1"));
    }
}
