//! Text and octets as the case files write them.

use serde::Deserialize;
use serde_json::Value;

/// A body: exactly one of its forms.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Blob {
    text: Option<String>,
    b64: Option<String>,
    hex: Option<String>,
    /// Repeated up to `size`.
    fill: Option<String>,
    size: Option<usize>,
    /// 00 to FF, so many times.
    bytes_all: Option<usize>,
}

impl Blob {
    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    pub(super) fn octets(&self) -> Vec<u8> {
        use base64::Engine;
        if let Some(text) = &self.text {
            return text.clone().into_bytes();
        }
        if let Some(text) = &self.b64 {
            return base64::engine::general_purpose::STANDARD
                .decode(text)
                .unwrap();
        }
        if let Some(text) = &self.hex {
            return unhex(text);
        }
        if let Some(times) = self.bytes_all {
            return (0..times).flat_map(|_| 0..=255).collect();
        }
        let fill = self.fill.as_ref().expect("a body of a known form");
        let size = self.size.expect("the size of the body");
        fill.bytes().cycle().take(size).collect()
    }
}

/// Header values, targets and raw octets: each character is one octet.
pub(super) fn latin1(text: &str) -> Vec<u8> {
    text.chars()
        .map(|letter| u8::try_from(u32::from(letter)).expect("a Latin-1 character"))
        .collect()
}

/// The same back.
pub(super) fn from_latin1(octets: &[u8]) -> String {
    octets.iter().copied().map(char::from).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| u8::try_from(digit.to_digit(16).expect("a hex digit")).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] * 16 + pair[1])
        .collect()
}

/// `{"hex": ...}`.
pub(super) fn hex_of(value: &Value) -> Option<Vec<u8>> {
    let only = value.as_object().filter(|map| map.len() == 1)?;
    only.get("hex")?.as_str().map(unhex)
}

/// A field line's value: text or `{"hex": ...}`.
pub(super) fn field_value(value: &Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) => Ok(latin1(text)),
        other => hex_of(other).ok_or_else(|| format!("unknown word in a field value: {other}")),
    }
}

/// A body in `cases.json`: text, `{"hex": ...}` or `{"fill": ..., "size": ...}`; null is none.
pub(super) fn body(value: &Value) -> Result<Option<Vec<u8>>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone().into_bytes())),
        other => match serde_json::from_value::<Blob>(other.clone()) {
            Ok(blob) => Ok(Some(blob.octets())),
            Err(error) => Err(format!("unknown word in a body: {error}")),
        },
    }
}

/// What a failure shows of octets.
pub(super) fn shown(octets: &[u8]) -> String {
    let text = from_latin1(&octets[..octets.len().min(300)]);
    if octets.len() > 300 {
        return format!("{text:?}... ({} octets)", octets.len());
    }
    format!("{text:?}")
}
