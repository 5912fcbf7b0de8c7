//! What Redis says when it does not do as asked, in the store's words.
//!
//! Invariant: an answer of the server to a command proves that this command was not carried out
//! (each of ours writes once, at its end), so it is `NotSent`; a reply that never came proves
//! nothing. No text here holds a password.
//!
//! Deliberately absent: what to do about it. The caller knows.

use std::io;

use redis::{ErrorKind, RedisError, ServerError};

use crate::store::{StoreError, StoreErrorKind};
use crate::tls::{Failure, failure};

/// Codes that a script of Redis 6.2 hides behind its own `ERR`.
const HIDDEN: [&str; 6] = [
    "WRONGTYPE",
    "OOM",
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "NOPERM",
];

/// The error's code, found again where a script wrapped it.
pub(super) fn code(error: &ServerError) -> &str {
    let details = error.details().unwrap_or_default();
    let hidden = HIDDEN.into_iter().find(|code| {
        let mut words = details.split(|c: char| !c.is_ascii_uppercase());
        words.any(|word| word == *code)
    });
    match error.code() {
        "ERR" if details.contains("script") => hidden.unwrap_or("ERR"),
        code => code,
    }
}

/// An error that the server answered.
pub(super) fn answered(error: &ServerError) -> StoreError {
    let code = code(error);
    let kind = match code {
        "LOADING" | "READONLY" | "MISCONF" | "NOREPLICAS" | "BUSY" | "MASTERDOWN" | "TRYAGAIN"
        | "CLUSTERDOWN" | "MOVED" | "ASK" | "NOSCRIPT" => StoreErrorKind::Refused,
        "OOM" => StoreErrorKind::Full,
        "WRONGTYPE" => StoreErrorKind::Unreadable,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => {
            return StoreError::not_sent(StoreErrorKind::Unavailable, rights(code));
        }
        _ => StoreErrorKind::Internal,
    };
    let details = error.details().unwrap_or_default();
    let message = format!("Redis answered {code} {details}");
    match kind {
        // A code nobody here knows: no proof of anything.
        StoreErrorKind::Internal => StoreError::maybe_sent(kind, message),
        _ => StoreError::not_sent(kind, message),
    }
}

/// Without the server's words: they may quote the user.
fn rights(code: &str) -> String {
    let advice = match code {
        "NOPERM" => "give it the commands and the keys it needs",
        _ => "check user and password in store.url",
    };
    format!("Redis refuses this user ({code}): {advice}")
}

/// A connection that broke or stayed silent with a command under way.
pub(super) fn lost(error: &RedisError) -> StoreError {
    if error.is_timeout() {
        return StoreError::maybe_sent(StoreErrorKind::Timeout, "Redis did not answer in time");
    }
    let kind = match error.kind() {
        ErrorKind::Io => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Internal,
    };
    StoreError::maybe_sent(kind, format!("the connection to Redis broke: {error}"))
}

/// A connection that did not come about: nothing was sent.
pub(super) fn not_connected(address: &str, error: &RedisError) -> StoreError {
    let code = error.code().unwrap_or_default();
    let message = match error.kind() {
        ErrorKind::AuthenticationFailed => rights("WRONGPASS"),
        _ if matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM") => rights(code),
        _ => format!("no connection to Redis at {address}: {error}"),
    };
    StoreError::not_sent(StoreErrorKind::Unavailable, message)
}

/// A TLS handshake that failed: nothing was sent. `table`: where its settings are.
pub(super) fn no_tls(address: &str, error: &io::Error, table: &str) -> StoreError {
    let advice = match failure(error) {
        Some(Failure::Certificate) => {
            format!(": its certificate is not trusted; see {table}.ca_file and {table}.server_name")
        }
        Some(Failure::Alert { certificate: true }) => {
            format!(": it refuses our certificate; see {table}.cert_file")
        }
        Some(_) => ": does it speak TLS?".to_owned(),
        None => String::new(),
    };
    let message = format!("no connection to Redis at {address}: {error}{advice}");
    StoreError::not_sent(StoreErrorKind::Unavailable, message)
}

/// Nobody of several could be asked.
pub(super) fn no_node() -> StoreError {
    let message = "no server of the store could be asked";
    StoreError::not_sent(StoreErrorKind::Unavailable, message)
}

/// A node that belongs to other nodes than those that were known.
pub(super) fn foreign_cluster(place: &str) -> StoreError {
    let message = format!("{place} belongs to another cluster than the one that was in use");
    StoreError::not_sent(StoreErrorKind::Unavailable, message)
}

/// Written, and too few replicas have it: a failover may lose it.
pub(super) fn unconfirmed(found: &str, wanted: u32) -> StoreError {
    let message = format!("replicas that confirmed the write: {found} of {wanted}");
    StoreError::maybe_sent(StoreErrorKind::Unconfirmed, message)
}

/// Something is stored that is no record.
pub(super) fn unreadable(why: &str) -> StoreError {
    let message = format!("a stored record cannot be read: {why}");
    StoreError::not_sent(StoreErrorKind::Unreadable, message)
}

/// An answer of a shape no Redis gives.
pub(super) fn odd(what: &str) -> StoreError {
    let message = format!("Redis answered {what} with something else");
    StoreError::maybe_sent(StoreErrorKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::store::Delivery;

    fn server(line: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn every_refusal_has_its_kind_and_proves_that_nothing_happened() {
        use StoreErrorKind::{Full, Refused, Unavailable, Unreadable};
        for (line, kind) in [
            ("LOADING Redis is loading the dataset in memory", Refused),
            (
                "READONLY You can't write against a read only replica.",
                Refused,
            ),
            ("MISCONF Redis is configured to save RDB snapshots", Refused),
            ("NOREPLICAS Not enough good replicas to write.", Refused),
            ("BUSY Redis is busy running a script.", Refused),
            ("MASTERDOWN Link with MASTER is down", Refused),
            ("TRYAGAIN Multiple keys request during rehashing", Refused),
            ("CLUSTERDOWN The cluster is down", Refused),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Full,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind",
                Unreadable,
            ),
            ("NOAUTH Authentication required.", Unavailable),
            ("WRONGPASS invalid username-password pair", Unavailable),
            ("NOPERM this user has no permissions", Unavailable),
            // Redis 6.2, from inside a script.
            (
                "ERR Error running script (call to f_1): @user_script:2: WRONGTYPE Operation",
                Unreadable,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:4: @user_script: 4: -OOM \
                 command not allowed when used memory > 'maxmemory'.",
                Full,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:4: @user_script: 4: \
                 -READONLY You can't write against a read only replica.",
                Refused,
            ),
        ] {
            let error = answered(&server(line));
            assert_eq!(
                (error.kind, error.delivery),
                (kind, Delivery::NotSent),
                "{line}"
            );
        }
    }

    #[test]
    fn what_nobody_knows_proves_nothing() {
        for line in [
            "ERR value is not an integer",
            "STRANGE things",
            "ERR the OOM killer came",
        ] {
            let error = answered(&server(line));
            assert_eq!(error.kind, StoreErrorKind::Internal, "{line}");
            assert_eq!(error.delivery, Delivery::MaybeSent, "{line}");
        }
    }

    #[test]
    fn an_error_about_rights_quotes_nobody() {
        let error = answered(&server("NOPERM User alice has no permissions to run 'set'"));
        assert!(!error.message.contains("alice"), "{error}");
        assert!(error.message.contains("NOPERM"), "{error}");
    }
}
