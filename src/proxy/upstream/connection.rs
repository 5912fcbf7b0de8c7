//! One connection, or a stream of a shared one: the request handed over, then back to the pool.

use std::sync::{Arc, Weak};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::proof::failed;
use super::{Idle, MAX_IDLE, Pool, SendError, multiplexed};
use crate::proxy::body::Body;
use crate::telemetry::Metrics;

/// A checked-out connection, or a stream of a shared one. Dropped, it is closed.
#[derive(Debug)]
pub struct Connection {
    pub(super) pool: Weak<Pool>,
    pub(super) channel: Channel,
}

#[derive(Debug)]
pub(super) enum Channel {
    Own(Own),
    Shared(multiplexed::Stream),
}

#[derive(Debug)]
pub(super) struct Own {
    pub(super) sender: SendRequest<Body>,
    pub(super) _driver: Driver,
    pub(super) born: Instant,
    /// Nothing was received over it yet.
    pub(super) fresh: bool,
    /// The rest of its request will never come: nothing else can go over it.
    pub(super) stuck: bool,
}

/// The task that moves a connection's octets. It ends with its handle: a peer that reads nothing
/// would keep it for ever.
#[derive(Debug)]
pub(super) struct Driver(pub(super) AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Counts a connection as long as it is open.
#[derive(Debug)]
pub(super) struct Open(Arc<Metrics>);

impl Open {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.upstream_connections.inc();
        Self(metrics.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.upstream_connections.dec();
    }
}

impl Connection {
    /// Whether others are on it: it speaks HTTP/2.
    pub fn is_shared(&self) -> bool {
        matches!(self.channel, Channel::Shared(_))
    }

    /// Not for another exchange: the rest of this one's request never comes.
    pub fn only_this(&mut self) {
        if let Channel::Own(own) = &mut self.channel {
            own.stuck = true;
        }
    }

    /// Hands the request over at once; the future only waits for the answer's head. Dropped, it
    /// resets a stream of a shared connection.
    pub fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + Send + use<> {
        let mut fresh = false;
        let (own, shared) = match &mut self.channel {
            Channel::Own(own) => {
                fresh = std::mem::take(&mut own.fresh);
                (Some(own.sender.try_send_request(request)), None)
            }
            Channel::Shared(stream) => {
                let pool = self.pool.upgrade();
                let url = pool.as_ref().map(|pool| &pool.settings.url);
                // What cannot be said in HTTP/2 is not said.
                let sayable = url.is_some_and(|url| multiplexed::absolute(&mut request, url));
                (
                    None,
                    sayable.then(|| stream.sender.try_send_request(request)),
                )
            }
        };
        async move {
            let answer = match (own, shared) {
                (Some(answer), _) => answer.await,
                (None, Some(answer)) => answer.await,
                (None, None) => return Err(SendError::NotSent(None)),
            };
            answer.map_err(|error| failed(error, fresh))
        }
    }

    /// Back to the pool, after a whole answer.
    pub fn give_back(self) {
        let own = match self.channel {
            Channel::Own(own) => own,
            Channel::Shared(stream) => return stream.end(),
        };
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        if own.stuck || own.sender.is_closed() {
            return;
        }
        let mut idle = pool.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle {
                own,
                since: Instant::now(),
            });
        }
    }

    /// Closes the socket now, whatever is under way (R31: the upstream first). A shared one stays:
    /// its stream is reset as soon as nobody holds its answer.
    pub fn close(self) {
        drop(self);
    }
}
