//! What PostgreSQL says when it does not do as asked, in the store's words.
//!
//! Invariant: each call is one statement in a transaction of its own, so an error of the server
//! that leaves the session alive undid all of it: `NotSent`. An answer counts once the server said
//! that it is ready again, which is after the commit. Where the session ended nobody knows. No text
//! here holds a password.
//!
//! Deliberately absent: what to do about it. The caller knows.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use crate::store::{StoreError, StoreErrorKind};

/// The state that says that the table is not there.
pub(super) fn is_missing_table(error: &Error) -> bool {
    error.code() == Some(&SqlState::UNDEFINED_TABLE)
}

/// The role may not do this.
pub(super) fn is_forbidden(error: &Error) -> bool {
    error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
}

/// What it was asked about itself it does not tell, this role or anybody.
pub(super) fn is_not_told(error: &Error) -> bool {
    let of_the_table = error.as_db_error().is_some_and(|answered| {
        // Where the right to read the table is missing, its name is said.
        answered.message().contains("retrysafe_records")
    });
    let codes = [
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::FEATURE_NOT_SUPPORTED,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ];
    !of_the_table && error.code().is_some_and(|code| codes.contains(code))
}

/// Whether the session can be used no more, or leads to a server that takes no writes: behind a
/// name the primary may be somebody else by now.
pub(super) fn ends_session(error: &Error) -> bool {
    let Some(answered) = error.as_db_error() else {
        return true;
    };
    let survives = matches!(
        answered.parsed_severity(),
        Some(Severity::Error | Severity::Warning | Severity::Notice)
    );
    !survives || *answered.code() == SqlState::READ_ONLY_SQL_TRANSACTION
}

/// An error of a statement.
pub(super) fn of_statement(error: &Error) -> StoreError {
    let Some(answered) = error.as_db_error() else {
        let message = format!("the connection to PostgreSQL broke: {}", words(error));
        return StoreError::maybe_sent(StoreErrorKind::Unavailable, message);
    };
    let code = answered.code();
    let kind = kind(code.code());
    let message = match kind {
        // Without the server's words: they may quote the user.
        StoreErrorKind::Unavailable if code.code().starts_with("42") => rights(code.code()),
        _ => format!(
            "PostgreSQL answered {}: {}",
            code.code(),
            answered.message()
        ),
    };
    let ended = answered.parsed_severity() != Some(Severity::Error);
    if ended || kind == StoreErrorKind::Internal {
        return StoreError::maybe_sent(kind, message);
    }
    StoreError::not_sent(kind, message)
}

/// A connection that did not come about: nothing was sent.
pub(super) fn not_connected(address: &str, error: &Error) -> StoreError {
    let code = error.code().map_or("", SqlState::code);
    let message = match code {
        "28P01" | "28000" => {
            let hint = "check user and password in store.url, pg_hba.conf, and whether the server \
                        wants TLS (sslmode=require)";
            format!("PostgreSQL at {address} refuses this user ({code}): {hint}")
        }
        _ => format!("no connection to PostgreSQL at {address}: {}", words(error)),
    };
    StoreError::not_sent(StoreErrorKind::Unavailable, message)
}

/// The library's own words leave out the cause.
fn words(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(answered), _) => format!("{} {}", answered.code().code(), answered.message()),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

fn rights(code: &str) -> String {
    format!(
        "PostgreSQL refuses this role ({code}): `retrysafe store init --print` says what it needs"
    )
}

fn kind(code: &str) -> StoreErrorKind {
    match code {
        // Permission.
        "42501" => StoreErrorKind::Unavailable,
        // Disk full, configured limit.
        "53100" | "53400" => StoreErrorKind::Full,
        // The session or the server ends, too many connections, connection exceptions.
        _ if code.starts_with("57P") || code.starts_with("08") || code == "53300" => {
            StoreErrorKind::Unavailable
        }
        // Read-only, cancelled, lock not available, out of memory, serialisation, deadlock, no
        // such table.
        "25006" | "57014" | "55P03" | "53000" | "53200" | "42P01" => StoreErrorKind::Refused,
        _ if code.starts_with("40") => StoreErrorKind::Refused,
        _ => StoreErrorKind::Internal,
    }
}

/// Something is stored that is no record.
pub(super) fn unreadable(why: &str) -> StoreError {
    let message = format!("a stored record cannot be read: {why}");
    StoreError::not_sent(StoreErrorKind::Unreadable, message)
}

/// An answer of a shape no PostgreSQL gives.
pub(super) fn odd(what: &str) -> StoreError {
    let message = format!("PostgreSQL answered {what} with something else");
    StoreError::maybe_sent(StoreErrorKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_kind() {
        use StoreErrorKind::{Full, Internal, Refused, Unavailable};
        for (code, expected) in [
            ("25006", Refused),
            ("57014", Refused),
            ("55P03", Refused),
            ("40001", Refused),
            ("40P01", Refused),
            ("53200", Refused),
            ("53100", Full),
            ("53300", Unavailable),
            ("57P01", Unavailable),
            ("57P03", Unavailable),
            ("08006", Unavailable),
            ("42501", Unavailable),
            ("42703", Internal),
            ("XX000", Internal),
        ] {
            assert_eq!(kind(code), expected, "{code}");
        }
    }
}
