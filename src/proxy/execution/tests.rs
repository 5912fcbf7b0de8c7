//! R29 on real connections that hand requests back.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::clock::SystemClock;
use crate::idempotency::record::{FailedWhy, Owner, State};
use crate::idempotency::{Fingerprint, Identity, Outcome, Policy};
use crate::proxy::settings::{
    HostHeader, HostPort, Settings, Underscores, UpstreamSettings, UpstreamUrl,
};
use crate::proxy::shared::Shared;
use crate::routes::Routes;
use crate::store::guarded::{Breaker, Guarded};
use crate::store::loss::Loss;
use crate::store::{MemoryStore, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::telemetry::Metrics;
use crate::tls::{ClientKeys, ClientSettings};

const KEY: RecordKey = RecordKey([3; 32]);

fn proxy(upstream: SocketAddr) -> Arc<Proxy> {
    proxy_on(upstream, Arc::new(MemoryStore::new(10)))
}

fn proxy_on(upstream: SocketAddr, store: Arc<dyn Store>) -> Arc<Proxy> {
    let second = Duration::from_secs(1);
    let settings = Settings {
        upstream: UpstreamSettings {
            url: UpstreamUrl::Http(HostPort {
                host: upstream.ip().to_string(),
                port: upstream.port(),
            }),
            connect_timeout: second * 10,
            answer_within: second * 30,
            give_up_after: second * 30,
            max_exchanges: 10,
            pool_idle_timeout: second * 60,
            pool_max_age: second * 60,
            host_header: HostHeader::Preserve,
            tls: ClientSettings::plain(ClientKeys::UPSTREAM),
        },
        body_timeout: second,
        write_timeout: second,
        buffer_budget: 1 << 20,
        underscores: Underscores::Drop,
        upgrades: Vec::new(),
        trusted_proxies: Vec::new(),
        preserve_header_case: false,
        tls: false,
    };
    let metrics = Arc::new(Metrics::new());
    let routes = Routes::new(Policy::default(), Vec::new()).unwrap();
    let clock = Arc::new(SystemClock);
    let identity = Identity {
        namespace: "test".into(),
        secret: None,
    };
    let shared = Shared::new(settings, identity, routes, metrics.clone(), clock, None);
    let breaker = Breaker::new(second, metrics, Loss::new(Duration::ZERO));
    Proxy::new(shared, Guarded::new(store, breaker.clone()), breaker)
}

/// A store that says nothing to the first claim, which is still under way.
#[derive(Debug)]
struct Silent(MemoryStore, AtomicBool);

impl Store for Silent {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        let is_claim = matches!(operation, Operation::Claim(_));
        if is_claim && !self.1.swap(true, Ordering::Relaxed) {
            let error = StoreError::maybe_sent(StoreErrorKind::Internal, "no reply");
            return Box::pin(std::future::ready(Err(error)));
        }
        self.0.apply(key, operation)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.0.ping()
    }

    fn listen(&self, key: RecordKey) -> StoreFuture<'_, ()> {
        self.0.listen(key)
    }

    fn unlisten(&self, key: RecordKey) {
        self.0.unlisten(key);
    }
}

/// What the request of these tests claims.
fn the_claim() -> Claim {
    let policy = Policy::default();
    Claim {
        owner: Owner([1; 16]),
        fingerprint: Fingerprint {
            profile: 0,
            digest: [0; 32],
            parts: Vec::new().into(),
        },
        lease: policy.lease,
        retention: policy.unresolved_ttl,
        waited: false,
    }
}

/// A POST that claims `KEY` and is executed.
async fn execute(proxy: &Arc<Proxy>) -> Reply {
    let (head, ()) = Request::builder()
        .method(Method::POST)
        .uri("/pay")
        .body(())
        .unwrap()
        .into_parts();
    let policy = Policy::default();
    let reply = start(Job {
        proxy: proxy.clone(),
        claim: the_claim(),
        route: Arc::new(Route {
            name: "test".into(),
            policy,
        }),
        prepared: Arc::new(Prepared {
            head,
            body: Bytes::from_static(b"x"),
            unary: false,
            _held: proxy.shared.budget.reservation(),
        }),
        key: KEY,
        from: None,
        ttl: Duration::from_mins(1),
        _permit: proxy.shared.exchanges.permit().unwrap(),
    });
    reply.await.unwrap()
}

/// Answers the first request that arrives, on whichever connection; what it was.
async fn serve_one(listener: TcpListener) -> String {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut stream, _peer) = accepted.unwrap();
                connections.spawn(async move {
                    let mut octets = vec![0; 4096];
                    let count = stream.read(&mut octets).await.unwrap_or(0);
                    if count > 0 {
                        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
                        stream.write_all(answer).await.unwrap();
                    }
                    String::from_utf8_lossy(&octets[..count]).into_owned()
                });
            }
            Some(read) = connections.join_next() => {
                let request = read.unwrap();
                if !request.is_empty() {
                    return request;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_request_handed_back_twice_goes_out_as_the_same_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy(listener.local_addr().unwrap());
    proxy.upstream.add_dying(2).await;
    let (reply, request) = tokio::join!(execute(&proxy), serve_one(listener));
    let Reply::Answer {
        response, attempt, ..
    } = reply
    else {
        panic!("{reply:?}");
    };
    assert_eq!((response.status(), attempt), (StatusCode::CREATED, 1));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "ok");
    assert!(request.contains("idempotency-attempt: 1"), "{request}");
}

#[tokio::test]
async fn a_request_handed_back_three_times_was_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy(listener.local_addr().unwrap());
    proxy.upstream.add_dying(5).await;
    let Reply::Problem { problem, .. } = execute(&proxy).await else {
        panic!("a problem");
    };
    assert_eq!(problem.code, crate::proxy::problem::Code::Unreachable);
    assert_eq!(proxy.upstream.idle(), 2, "three were tried");
    let read = proxy.store.apply(KEY, Operation::Read).await;
    let Ok(Outcome::Held(held)) = read else {
        panic!("{read:?}");
    };
    let why = FailedWhy::NotSent;
    assert_eq!(held.record.state, State::Failed { why });
}

/// Law 2, twice at once: a record remembers one withdrawn claim only.
#[tokio::test(start_paused = true)]
async fn a_withdrawn_claim_that_arrives_after_all_is_withdrawn_again() {
    let silent = Arc::new(Silent(MemoryStore::new(10), AtomicBool::new(false)));
    let proxy = proxy_on(([127, 0, 0, 1], 1).into(), silent.clone());
    let reply = execute(&proxy).await;
    assert!(matches!(reply, Reply::StoreDown(_)), "{reply:?}");
    let state = async || match silent.apply(KEY, Operation::Read).await {
        Ok(Outcome::Held(held)) => Some((held.record.owner, held.record.state.name())),
        _ => None,
    };
    let (own, other) = (the_claim().owner, Owner([2; 16]));
    while state().await.is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(state().await, Some((own, "failed")));
    // Another contender's withdrawal puts its own name there, and then the claim arrives.
    let abandon = Operation::Abandon { owner: other };
    silent.apply(KEY, abandon).await.unwrap();
    let late = silent.apply(KEY, Operation::Claim(the_claim())).await;
    assert!(matches!(late, Ok(Outcome::Acquired { .. })), "{late:?}");
    assert_eq!(state().await, Some((own, "in_flight")));
    tokio::time::sleep(the_claim().lease + Duration::from_secs(1)).await;
    assert_eq!(state().await, Some((own, "failed")));
}
