//! R28: upgrades of uncovered requests, and the tunnel behind them.
//!
//! Invariant: nothing flows before the upstream's 101 with the protocol that was asked for, and only
//! a protocol of `server.upgrades` is asked for. A covered request never gets here.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::Proxy;
use super::body::Body;
use super::phase::Phase;
use super::problem::{Code, Problem};
use super::rewrite;
use crate::idempotency::headers::nominated;

/// What a client wants to switch to.
#[derive(Debug)]
pub(super) struct Wish {
    protocol: HeaderValue,
    client: OnUpgrade,
}

impl Wish {
    /// Takes the wish out of a head, if it is one that may pass.
    pub(super) fn of(head: &mut Parts, allowed: &[String]) -> Option<Self> {
        let client = head.extensions.remove::<OnUpgrade>()?;
        let may = head.method == Method::GET && head.version == Version::HTTP_11;
        if !may || !nominated(&head.headers).any(|name| name == "upgrade") {
            return None;
        }
        let mut lines = head.headers.get_all(header::UPGRADE).iter();
        let protocol = lines.next()?.clone();
        let is_known = allowed
            .iter()
            .any(|known| names(&protocol, known.as_bytes()));
        (is_known && lines.next().is_none()).then_some(Self { protocol, client })
    }

    /// Says it again towards the upstream; the rest of the head ended here.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(header::UPGRADE, self.protocol.clone());
        let nominates = if headers.contains_key(header::TE) {
            "te, upgrade"
        } else {
            "upgrade"
        };
        headers.insert(header::CONNECTION, HeaderValue::from_static(nominates));
    }
}

impl Proxy {
    /// The upstream switched: opens the tunnel, if that was asked for.
    pub(super) fn switched(
        &self,
        wish: Option<Wish>,
        mut response: Response<Incoming>,
    ) -> Result<Response<Body>, Problem> {
        let agreed = response.headers().get(header::UPGRADE).cloned();
        let wish = wish
            .filter(|wish| agreed.is_some_and(|agreed| names(&agreed, wish.protocol.as_bytes())));
        let Some(wish) = wish else {
            return Err(Problem::new(
                Code::BadResponse,
                "The upstream switched to a protocol that was not asked for.",
            )
            .proxy_status("http_protocol_error"));
        };
        let upstream = hyper::upgrade::on(&mut response);
        let (mut head, _no_body) = response.into_parts();
        rewrite::to_client(&mut head, None, self.shared.date());
        wish.ask(&mut head.headers);
        tokio::spawn(tunnel(self.shared.clone(), wish.client, upstream));
        let mut answer = Response::from_parts(head, Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        Ok(answer)
    }
}

/// Carries octets both ways until one side ends, or the process does.
async fn tunnel(shared: Arc<super::Shared>, client: OnUpgrade, upstream: OnUpgrade) {
    let both = tokio::try_join!(client, upstream);
    let (client, upstream) = match both {
        Ok(both) => both,
        Err(error) => return tracing::debug!(event = "tunnel_failed", error = %error),
    };
    shared.metrics.tunnels.inc();
    let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
    let mut phase = shared.phases.watch();
    tokio::select! {
        ended = copy_bidirectional(&mut client, &mut upstream) => {
            if let Err(error) = ended {
                tracing::debug!(event = "tunnel_ended", error = %error);
            }
        }
        () = phase.reached(Phase::Cut) => {}
    }
    shared.metrics.tunnels.dec();
}

fn names(value: &HeaderValue, protocol: &[u8]) -> bool {
    value
        .as_bytes()
        .trim_ascii()
        .eq_ignore_ascii_case(protocol.trim_ascii())
}
