//! R2, R27: no spelling of a path carries a request past a covering route.

use http::Method;
use retrysafe::idempotency::Policy;
use retrysafe::idempotency::policy::Mode;
use retrysafe::routes::{RouteSettings, Routes};

/// The octets are a path; what cannot be one is nobody's concern.
pub fn check(data: &[u8]) {
    let Ok(path) = std::str::from_utf8(data) else {
        return;
    };
    let routes = routes();
    let found = routes.find("api.test", path, &Method::POST);
    let covered = found.route.covers(&Method::POST);
    let refused = found
        .ambiguous
        .is_some_and(|other| covered || other.covers(&Method::POST))
        || covered && found.suspicious;
    if covered || refused {
        return;
    }
    // It passes uncovered: then no upstream may take it for what is covered.
    for reading in readings(path) {
        assert!(!is_payments(&reading), "{path:?} is read as {reading:?}");
    }
}

/// Payments are covered, nothing else is.
fn routes() -> Routes {
    let off = Policy {
        mode: Mode::Off,
        ..Policy::default()
    };
    let route = RouteSettings {
        name: "payments".to_owned(),
        host: None,
        path: "/v1/payments".to_owned(),
        methods: None,
        policy: Policy::default(),
    };
    Routes::new(off, vec![route]).expect("one route ties with none")
}

fn is_payments(path: &str) -> bool {
    path == "/v1/payments"
}

/// What upstreams of many kinds do to a path before they look at it, one thing after another.
fn readings(path: &str) -> Vec<String> {
    let steps: [fn(&str) -> String; 7] = [
        |path| path.replace('\\', "/"),
        decoded,
        |path| path.replace('\\', "/"),
        without_parameters,
        resolved,
        |path| path.to_ascii_lowercase(),
        |path| path.strip_suffix('/').unwrap_or(path).to_owned(),
    ];
    let mut readings = vec![path.to_owned()];
    for step in steps {
        let more: Vec<String> = readings.iter().map(|reading| step(reading)).collect();
        for reading in more {
            if !readings.contains(&reading) {
                readings.push(reading);
            }
        }
    }
    readings
}

fn decoded(path: &str) -> String {
    let mut out = Vec::new();
    let mut octets = path.bytes();
    while let Some(octet) = octets.next() {
        let mut ahead = octets.clone();
        let digits = (ahead.next(), ahead.next());
        let value = |digit: Option<u8>| char::from(digit?).to_digit(16);
        match (octet, value(digits.0), value(digits.1)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                octets = ahead;
            }
            _ => out.push(octet),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn without_parameters(path: &str) -> String {
    let bare = path
        .split('/')
        .map(|part| part.split(';').next().unwrap_or_default());
    bare.collect::<Vec<_>>().join("/")
}

/// Dot segments resolved, slashes merged.
fn resolved(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(kept.pop()),
            part => kept.push(part),
        }
    }
    format!("/{}", kept.join("/"))
}
