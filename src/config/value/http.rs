//! Values that HTTP and its relatives define: field names, methods, statuses, scope parts, JSON
//! pointers, the base of our problems' `type`.

use http::{HeaderName, Method};

use super::super::diagnostic::Sink;
use super::super::source::quoted;
use super::{Shape, Value, text};
use crate::idempotency::policy::{JsonPointer, ScopePart};

/// A field name.
pub(crate) fn field_name(value: &Value, sink: &mut Sink<'_>) -> Option<HeaderName> {
    let text = text(value, sink)?;
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) => Some(name),
        Err(_) => value.wrong(
            sink,
            format!("is not a header name: {}", quoted(text)),
            "write the name only, letters, digits and hyphens, e.g. \"X-Tenant-Id\"",
        ),
    }
}

/// A field of `fingerprint.caller`.
pub(crate) fn caller(value: &Value, sink: &mut Sink<'_>) -> Option<HeaderName> {
    if matches!(&value.shape, Shape::Text(text) if text == "client_certificate") {
        return not_yet(value, sink, "client_certificate", "remove it from the list");
    }
    field_name(value, sink)
}

/// Reports a value whose feature does not exist.
pub(crate) fn not_yet<T>(value: &Value, sink: &mut Sink<'_>, what: &str, help: &str) -> Option<T> {
    let message = format!(
        "`{}`: \"{what}\" is not available in this version yet",
        value.name
    );
    sink.error(&value.at, message, help);
    None
}

/// A protocol that `Upgrade` may name (RFC 9110 section 7.8); never `h2c`, which would carry requests
/// past the rules.
pub(crate) fn protocol(value: &Value, sink: &mut Sink<'_>) -> Option<String> {
    let name = text(value, sink)?.to_ascii_lowercase();
    if name == "h2c" || name.starts_with("http/") || name == "tls" {
        let help = "name protocols such as \"websocket\"; requests would pass the rules unseen in this one";
        return value.wrong(
            sink,
            format!(
                "has an element that may not be upgraded to: {}",
                quoted(&name)
            ),
            help,
        );
    }
    if name.is_empty() || HeaderName::from_bytes(name.replace('/', "-").as_bytes()).is_err() {
        return value.wrong(
            sink,
            "is no protocol name",
            "write a name such as \"websocket\"",
        );
    }
    Some(name)
}

/// A method that can be covered or matched.
pub(crate) fn method(value: &Value, sink: &mut Sink<'_>) -> Option<Method> {
    let text = text(value, sink)?;
    let upper = text.to_ascii_uppercase();
    let known = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
    ];
    if upper == "CONNECT" {
        return value.wrong(sink, "names CONNECT, which is always refused", "remove it");
    }
    if upper != text && known.contains(&upper.as_str()) {
        return value.wrong(
            sink,
            format!("has a method in the wrong case: {}", quoted(text)),
            format!("methods are case-sensitive: write \"{upper}\""),
        );
    }
    match Method::from_bytes(text.as_bytes()) {
        Ok(method) => Some(method),
        Err(_) => value.wrong(
            sink,
            format!("is not a method: {}", quoted(text)),
            "write e.g. [\"POST\", \"PATCH\"]",
        ),
    }
}

/// A status that may mean "not carried out".
pub(crate) fn status(value: &Value, sink: &mut Sink<'_>) -> Option<u16> {
    let number = match &value.shape {
        Shape::Integer(number) => u16::try_from(*number).ok(),
        Shape::Text(text) if value.variable_text().is_some() => text.parse().ok(),
        _ => return value.wrong_type(sink, "a list of integers", "write e.g. [409, 429]"),
    };
    match number.filter(|number| (300..=599).contains(number)) {
        Some(number) => Some(number),
        None => value.wrong(
            sink,
            "has an element that is no status from 300 to 599",
            "an answer below 300 means that the work was done",
        ),
    }
}

/// A part of the scope.
pub(crate) fn scope_part(value: &Value, sink: &mut Sink<'_>) -> Option<ScopePart> {
    let text = text(value, sink)?;
    let part = match text.split_once(':') {
        Some(("header", name)) => HeaderName::from_bytes(name.as_bytes())
            .ok()
            .map(ScopePart::Header),
        Some(("cookie", name)) if is_token(name) => Some(ScopePart::Cookie(name.to_owned())),
        Some(("basic", "user")) => Some(ScopePart::BasicUser),
        Some(("jwt", _)) => {
            let help = "use \"header:NAME\" or \"basic:user\"";
            return not_yet(value, sink, "jwt:...", help);
        }
        None if text == "client_ip" => Some(ScopePart::ClientIp),
        None if text == "route" => Some(ScopePart::Route),
        _ => None,
    };
    if part.is_some() {
        return part;
    }
    let help = if !text.contains(':') && is_token(text) {
        format!("write \"header:{text}\", if the field of that name is meant")
    } else {
        "write \"header:NAME\", \"cookie:NAME\", \"basic:user\", \"client_ip\" or \"route\""
            .to_owned()
    };
    value.wrong(sink, format!("is not a scope part: {}", quoted(text)), help)
}

/// RFC 9110 token: what a cookie's or field's name is made of.
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

/// A JSON pointer to a member; the whole document is no member.
pub(crate) fn pointer(value: &Value, sink: &mut Sink<'_>) -> Option<JsonPointer> {
    let text = text(value, sink)?;
    if let Some(pointer) = JsonPointer::parse(text).filter(|_| !text.is_empty()) {
        return Some(pointer);
    }
    let help = if text.is_empty() || text.starts_with('/') {
        "write \"/member/inner\"; in names ~ is ~0 and / is ~1".to_owned()
    } else {
        let plain = text.trim_start_matches(['$', '#', '.', '/']);
        format!(
            "it begins with a slash: write \"/{}\"",
            plain.replace('.', "/")
        )
    };
    value.wrong(
        sink,
        format!("is not a JSON pointer: {}", quoted(text)),
        help,
    )
}

/// The name of a query parameter.
pub(crate) fn parameter(value: &Value, sink: &mut Sink<'_>) -> Option<String> {
    let text = text(value, sink)?;
    if text.is_empty() || text.contains(['&', '=', '?', '#']) {
        let help = "write the name only, e.g. \"idempotency_key\"";
        return value.wrong(sink, "is not the name of a query parameter", help);
    }
    Some(text.to_owned())
}

/// The base of `type` in our problems. It also stands in `Link`, between angle brackets.
pub(crate) fn docs_url(value: &Value, sink: &mut Sink<'_>) -> Option<String> {
    let text = text(value, sink)?;
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"<>\"\\@".contains(&byte);
    if rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(plain)) {
        return Some(text.to_owned());
    }
    let help = "write e.g. \"https://docs.example.com/problems/\"; the code is appended";
    value.wrong(sink, "is not an http or https url", help)
}
