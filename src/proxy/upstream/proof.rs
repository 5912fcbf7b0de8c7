//! What an error proves about the request that met it: whether the upstream can have seen it (R16).

use std::error::Error as _;
use std::io;

use http::Request;
use hyper::client::conn::TrySendError;

use crate::proxy::body::Body;
use crate::tls::{self, Failure};

/// How a dispatched request failed.
#[derive(Debug)]
pub enum SendError {
    /// Not sent, with proof (R16, R29): the client library handed the request back, or the peer
    /// says that it did not look at it, and then the request is gone.
    NotSent(Option<Box<Request<Body>>>),
    /// Some of it may have gone out.
    MaybeSent(hyper::Error),
}

/// Whether an answer came that is no valid HTTP; else the connection broke.
pub(in crate::proxy) fn is_bad_answer(error: &hyper::Error) -> bool {
    let invalid = |error: &h2::Error| error.is_library();
    error.is_parse()
        || error.is_parse_status()
        || error.is_parse_too_large()
        || h2_error(error).is_some_and(invalid)
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    error.source()?.downcast_ref()
}

/// Whether the peer says that it did nothing about the request: it ended the connection before it
/// (RFC 9113 section 6.8). The library gives a GOAWAY only to the streams after the last one that
/// the peer names; others of its errors about one come before a stream was opened, since a
/// connection's tasks share a thread.
///
/// `REFUSED_STREAM` would say the same (section 8.7), but there are proxies that say it of requests
/// which they passed on, to make the client retry (`HAProxy`, when a kept connection to the server
/// breaks).
fn was_not_taken(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|error| error.is_remote() && error.is_go_away())
}

/// Whether the peer refused our certificate. Over TLS 1.3 it does so when our side takes the
/// handshake for finished already, and reads no request before it is.
fn was_not_let_in(error: &hyper::Error) -> bool {
    let io = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    io.and_then(tls::failure) == Some(Failure::Alert { certificate: true })
}

/// `fresh`: nothing was received over the connection before.
pub(super) fn failed(mut error: TrySendError<Request<Body>>, fresh: bool) -> SendError {
    let unsent = error.take_message().map(Box::new);
    let error = error.into_error();
    if unsent.is_some() || was_not_taken(&error) || fresh && was_not_let_in(&error) {
        SendError::NotSent(unsent)
    } else {
        SendError::MaybeSent(error)
    }
}
