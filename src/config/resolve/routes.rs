//! `[[route]]`: host, path pattern, methods, and the policy that results (R2).

use super::super::diagnostic::Sink;
use super::super::document::{Document, RouteTable};
use super::super::source::quoted;
use super::super::value::http::method;
use super::super::value::{Value, label, some, text};
use super::{Reader, policy};
use crate::idempotency::Policy;
use crate::routes::RouteSettings;

/// Every route in the order of the file, also those with mistakes, so that indices agree.
pub(super) fn routes(
    document: &Document,
    base: &Policy,
    reader: &mut Reader<'_, '_>,
) -> Vec<RouteSettings> {
    let mut routes = Vec::new();
    for table in &document.routes {
        let mut inner = Reader {
            values: &table.values,
            sink: &mut *reader.sink,
            failed: &mut *reader.failed,
        };
        let mut route = route(table, document.is_broken(), &mut inner);
        route.policy = base.clone();
        policy::overlay(&mut inner, &mut route.policy);
        if !inner.has("policy.failed_ttl") && !reader.has("policy.failed_ttl") {
            route.policy.failed_ttl = route.policy.ttl;
        }
        if !table.values.contains_key("policy.unresolved_ttl")
            && !reader.has("policy.unresolved_ttl")
        {
            route.policy.unresolved_ttl = route.policy.ttl;
        }
        routes.push(route);
    }
    routes
}

fn route(table: &RouteTable, broken: bool, reader: &mut Reader<'_, '_>) -> RouteSettings {
    let mut route = RouteSettings {
        name: String::new(),
        host: None,
        path: String::new(),
        methods: None,
        policy: Policy::default(),
    };
    for (key, what, help) in [
        ("route.name", "name", "write name = \"payments\" below it"),
        (
            "route.path",
            "path",
            "write path = \"/v1/payments\" below it",
        ),
    ] {
        if !reader.has(key) && !broken {
            reader
                .sink
                .error(&table.header, format!("the route has no `{what}`"), help);
        }
    }
    reader.set("route.name", &mut route.name, label);
    reader.set("route.host", &mut route.host, |value, sink| {
        host(value, sink).map(Some)
    });
    reader.set("route.path", &mut route.path, path);
    let help = "leave it out to match any method";
    reader.set("route.methods", &mut route.methods, |value, sink| {
        some(method, help)(value, sink).map(Some)
    });
    route
}

/// `api.example.com`, `*.example.com` or an address; lower case.
fn host(value: &Value, sink: &mut Sink<'_>) -> Option<String> {
    let host = text(value, sink)?.to_ascii_lowercase();
    let name = host.strip_prefix("*.").unwrap_or(&host);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let label = |label: &str| !label.is_empty() && label.bytes().all(fits);
    let ipv6 = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    if ipv6 || name.split('.').all(label) {
        return Some(host);
    }
    let bare = host
        .split_once("://")
        .map_or(host.as_str(), |(_, rest)| rest);
    let bare = bare.split([':', '/']).next().unwrap_or_default();
    let help = if bare.split('.').all(label) {
        format!("without scheme, port and path: \"{bare}\"")
    } else {
        "write \"api.example.com\" or \"*.example.com\"".to_owned()
    };
    value.wrong(sink, format!("is not a host name: {}", quoted(&host)), help)
}

/// A path pattern: literal segments, `{name}`, and `{*rest}` at the end.
fn path(value: &Value, sink: &mut Sink<'_>) -> Option<String> {
    let text = text(value, sink)?;
    let Some(rest) = text.strip_prefix('/') else {
        let help = format!("write \"/{}\"", text.split('\n').next().unwrap_or_default());
        return value.wrong(sink, "must begin with a slash", help);
    };
    if text.contains(['?', '#']) {
        let help = "routes match by path only; remove it";
        return value.wrong(sink, "has a query or fragment", help);
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let help = "write such characters percent-encoded, as they come in requests";
        return value.wrong(sink, "has a blank or a character that is not ASCII", help);
    }
    let segments: Vec<&str> = rest.split('/').collect();
    for (index, segment) in segments.iter().enumerate() {
        let last = index + 1 == segments.len();
        if let Err((message, help)) = check_segment(segment, last) {
            return value.wrong(sink, message, help);
        }
    }
    Some(text.to_owned())
}

fn check_segment(segment: &str, last: bool) -> Result<(), (String, &'static str)> {
    const FORM: &str = "a segment is plain text, {name}, or {*rest} at the end";
    if segment.is_empty() && !last {
        return Err((
            "has an empty segment".to_owned(),
            "requests are matched with // as /: write one slash",
        ));
    }
    if matches!(segment, "." | "..") {
        return Err((
            format!("has the segment {segment}, which no request keeps"),
            "write the path without dot segments",
        ));
    }
    if segment == "*" || segment == "**" {
        return Err((
            format!("has the segment {segment}"),
            "write {name} for one segment, {*rest} for one or more",
        ));
    }
    if !segment.contains(['{', '}']) {
        return Ok(());
    }
    let inner = segment
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    let (rest, name) = match inner.map(|inner| (inner.strip_prefix('*'), inner)) {
        Some((Some(name), _)) => (true, name),
        Some((None, name)) => (false, name),
        None => return Err((format!("has the segment {segment}"), FORM)),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(fits) {
        let help = "a name is letters, digits and _, as in {id} or {*rest}";
        return Err((format!("has the segment {segment}"), help));
    }
    if rest && !last {
        let message = format!("has {segment} before its end");
        return Err((
            message,
            "{*rest} takes all that follows: move it to the end",
        ));
    }
    Ok(())
}
