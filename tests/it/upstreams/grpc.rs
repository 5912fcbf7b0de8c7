//! R17, R18, R21, R28: unary gRPC calls, covered and judged by their gRPC status.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::ResponseFuture;
use http::{HeaderMap, Request};

use super::h2_server::{Answer, Deed, Gate, H2Upstream};
use crate::support::PATIENCE;
use crate::support::sidecar::{Plan, Sidecar, Tables};

pub const UNARY: &str = "[policy]\ngrpc = \"unary\"";
/// One message, `hello`.
pub const MESSAGE: &[u8] = b"\0\0\0\0\x05hello";

pub fn sidecar_to(upstream: &H2Upstream, lines: &str, rest: &str) -> Sidecar {
    let tables = Tables {
        upstream: lines,
        rest,
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).env("RETRYSAFE__UPSTREAM__URL", &upstream.url());
    plan.start()
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub status: u16,
    pub head: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl Told {
    /// `grpc-status` and what follows the body, or the head where it is alone.
    pub fn last(&self, name: &str) -> Option<&str> {
        let fields = self.trailers.as_ref().unwrap_or(&self.head);
        Some(fields.get(name)?.to_str().unwrap())
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        Some(self.head.get(name)?.to_str().unwrap())
    }

    pub fn is_replay(&self) -> bool {
        self.field("idempotent-replayed") == Some("true")
    }

    /// R32: Trailers-Only, with this status and code.
    #[track_caller]
    pub fn is_problem(&self, status: &str, code: &str) {
        assert_eq!(self.status, 200);
        assert_eq!((self.body.as_ref(), &self.trailers), (&b""[..], &None));
        assert_eq!(self.field("content-type"), Some("application/grpc"));
        assert_eq!(self.field("retrysafe-code"), Some(code), "{self:?}");
        assert_eq!(self.field("grpc-status"), Some(status), "{self:?}");
        let message = self.field("grpc-message").unwrap();
        assert!(message.starts_with(&format!("{code}: ")), "{message}");
        assert_eq!(self.field("content-length"), None);
    }
}

/// Begins a call on a connection of its own.
pub async fn begin(
    addr: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> ResponseFuture {
    let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let mut head = Request::post(format!("http://api.test{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in fields {
        head = head.header(*name, *value);
    }
    let head = head.body(()).unwrap();
    let (answer, mut upload) = client.send_request(head, false).unwrap();
    let body = Bytes::copy_from_slice(body);
    upload.send_data(body, true).unwrap();
    answer
}

/// The whole answer, or why the stream ended.
pub async fn finish(answer: ResponseFuture) -> Result<Told, h2::Error> {
    let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap()?;
    let (head, mut body) = answer.into_parts();
    let mut whole = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        whole.extend_from_slice(&data);
    }
    Ok(Told {
        status: head.status.as_u16(),
        head: head.headers,
        body: whole.into(),
        trailers: body.trailers().await?,
    })
}

/// A call that carries one message.
pub async fn call(addr: SocketAddr, fields: &[(&str, &str)]) -> Told {
    let answer = begin(addr, "/pkg.Service/Method", fields, MESSAGE).await;
    finish(answer).await.unwrap()
}

pub async fn with_key(addr: SocketAddr, key: &str) -> Told {
    call(addr, &[("idempotency-key", key)]).await
}

/// What a server says: a message and its status.
pub fn said(n: usize, status: u16, more: &[(&'static str, &str)]) -> Answer {
    let mut trailers = vec![("grpc-status", status.to_string())];
    trailers.extend(
        more.iter()
            .map(|(name, value)| (*name, (*value).to_owned())),
    );
    let data = format!("\0\0\0\0\x03n={n}").into();
    Answer {
        fields: fields(),
        data,
        trailers,
        ..Answer::default()
    }
}

pub fn fields() -> Vec<(&'static str, String)> {
    vec![
        ("content-type", "application/grpc".to_owned()),
        ("x-initial", "i".to_owned()),
    ]
}

/// Trailers-Only.
fn alone(status: u16) -> Answer {
    let mut fields = fields();
    fields.push(("grpc-status", status.to_string()));
    Answer {
        fields,
        ..Answer::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_a_unary_call_is_executed_once_and_replayed_with_its_trailers() {
    let upstream = H2Upstream::start(|_, n| Deed::Say(said(n, 0, &[("x-trailing", "t")]), None));
    let sidecar = sidecar_to(&upstream, "", UNARY);
    let fields = [("idempotency-key", "k"), ("grpc-timeout", "5S")];
    let first = call(sidecar.addr, &fields).await;
    assert_eq!((first.status, first.is_replay()), (200, false));
    assert_eq!(first.body, Bytes::from_static(b"\0\0\0\0\x03n=1"));
    assert_eq!(first.last("grpc-status"), Some("0"));
    assert_eq!(first.last("x-trailing"), Some("t"));
    assert_eq!(first.field("x-initial"), Some("i"));
    // A deadline is the call's own, not the operation's.
    let retry = [("idempotency-key", "k"), ("grpc-timeout", "1S")];
    let mut again = call(sidecar.addr, &retry).await;
    assert!(again.is_replay());
    again.head.remove("idempotent-replayed");
    assert_eq!(again, first);
    upstream.seen(|seen| {
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].body, Bytes::from_static(MESSAGE));
        for (name, value) in [
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "5S"),
            ("idempotency-key", "k"),
            ("idempotency-attempt", "1"),
        ] {
            assert_eq!(seen[0].header(name), Some(value), "{name}");
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_what_was_not_carried_out_runs_again_and_everything_else_is_recorded() {
    let upstream = H2Upstream::start(|head, n| {
        let status = head.uri.path().trim_matches('/').parse().unwrap();
        let answer = match head.headers.get("x-pushback") {
            Some(millis) => {
                let millis = millis.to_str().unwrap();
                said(n, status, &[("grpc-retry-pushback-ms", millis)])
            }
            None if n % 2 == 0 => alone(status),
            None => said(n, status, &[]),
        };
        Deed::Say(answer, None)
    });
    let rest =
        format!("{UNARY}\n[[route]]\nname = \"r\"\npath = \"/13\"\npolicy.on_5xx = \"release\"");
    let sidecar = sidecar_to(&upstream, "", &rest);
    for (status, pushback, runs_again) in [
        ("10", None, true),
        ("7", None, true),
        ("8", None, true),
        ("16", None, true),
        ("14", Some("1500"), true),
        ("14", Some("-1"), false),
        ("14", None, false),
        ("2", None, false),
        ("3", None, false),
        ("4", None, false),
        ("6", None, false),
        // The route releases it.
        ("13", None, true),
        ("99", None, false),
    ] {
        let before = upstream.calls();
        let key = format!("{status}:{}", pushback.unwrap_or_default());
        let mut fields = vec![("idempotency-key", key.as_str())];
        fields.extend(pushback.map(|millis| ("x-pushback", millis)));
        let mut told = Vec::new();
        for _ in 0..2 {
            let answer = begin(sidecar.addr, &format!("/{status}"), &fields, MESSAGE).await;
            told.push(finish(answer).await.unwrap());
        }
        for told in &told {
            assert_eq!(told.last("grpc-status"), Some(status), "{key}");
            assert_eq!(told.field("retrysafe-code"), None, "{key}");
        }
        assert_eq!(told[1].is_replay(), !runs_again, "{key}");
        assert_eq!(told[0].trailers.is_none(), told[0].body.is_empty(), "{key}");
        let ran = upstream.calls() - before;
        assert_eq!(ran, if runs_again { 2 } else { 1 }, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r18_a_call_that_ends_without_its_status_is_no_whole_answer() {
    let with = |data: &'static [u8], head: &[(&'static str, &str)], trailers: &[_]| {
        let own = |more: &[(&'static str, &str)]| -> Vec<_> {
            let more = more.iter();
            more.map(|(name, value)| (*name, (*value).to_owned()))
                .collect()
        };
        let mut fields = fields();
        fields.extend(own(head));
        Answer {
            fields,
            data: Bytes::from_static(data),
            trailers: own(trailers),
            ..Answer::default()
        }
    };
    let ok = ("grpc-status", "0");
    for (name, answer) in [
        ("nothing", with(b"", &[], &[])),
        ("a message", with(MESSAGE, &[], &[])),
        ("other trailers", with(MESSAGE, &[], &[("x-sum", "9")])),
        ("nonsense", with(MESSAGE, &[], &[("grpc-status", "fine")])),
        ("twice", with(MESSAGE, &[], &[ok, ok])),
        ("before the body", with(MESSAGE, &[ok], &[])),
    ] {
        for stream in ["false", "true"] {
            let answer = answer.clone();
            let upstream = H2Upstream::start(move |_, _| Deed::Say(answer.clone(), None));
            let rest = format!("{UNARY}\nstream = {stream}");
            let sidecar = sidecar_to(&upstream, "", &rest);
            for _ in 0..2 {
                let told = with_key(sidecar.addr, "k").await;
                told.is_problem("2", "upstream_bad_response");
                assert_eq!(told.field("retrysafe-outcome"), Some("unknown"), "{name}");
                assert_eq!(told.field("retrysafe-retryable"), Some("false"), "{name}");
            }
            assert_eq!(upstream.calls(), 1, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_another_http_status_is_judged_as_what_it_is() {
    let upstream = H2Upstream::start(|head, _| {
        let status = head.uri.path().trim_matches('/').parse().unwrap();
        let fields = vec![("retry-after", "3".to_owned())];
        let trailers = vec![("grpc-status", "0".to_owned())];
        let answer = Answer {
            status,
            fields,
            trailers,
            ..Answer::default()
        };
        Deed::Say(answer, None)
    });
    let sidecar = sidecar_to(&upstream, "", UNARY);
    for (path, calls) in [("/503", 2), ("/429", 2), ("/500", 1), ("/404", 1)] {
        let before = upstream.calls();
        for _ in 0..2 {
            let fields = [("idempotency-key", path)];
            let answer = begin(sidecar.addr, path, &fields, MESSAGE).await;
            let told = finish(answer).await.unwrap();
            assert_eq!(format!("/{}", told.status), path);
        }
        assert_eq!(upstream.calls() - before, calls, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r19_over_the_limit_the_end_waits_for_the_judgement() {
    let big = |trailers: &[(&'static str, &str)]| Answer {
        fields: fields(),
        data: vec![0; 200_000].into(),
        trailers: trailers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect(),
        ..Answer::default()
    };
    let whole = big(&[("grpc-status", "0")]);
    let broken = big(&[("x-sum", "9")]);
    let released = big(&[("grpc-status", "10")]);
    let upstream = H2Upstream::start(move |head, _| {
        let answer = match head.headers["idempotency-key"].to_str().unwrap() {
            "whole" => &whole,
            "released" => &released,
            _ => &broken,
        };
        Deed::Say(answer.clone(), None)
    });
    let rest = format!("{UNARY}\nmax_response = \"64KiB\"");
    let sidecar = sidecar_to(&upstream, "", &rest);
    let told = with_key(sidecar.addr, "whole").await;
    assert_eq!(
        (told.body.len(), told.last("grpc-status")),
        (200_000, Some("0"))
    );
    let again = with_key(sidecar.addr, "whole").await;
    again.is_problem("15", "idempotency_response_not_kept");
    assert_eq!(again.field("retrysafe-outcome"), Some("executed"));
    for calls in [2, 3] {
        let told = with_key(sidecar.addr, "released").await;
        assert_eq!(told.last("grpc-status"), Some("10"));
        assert_eq!(upstream.calls(), calls);
    }
    let fields = [("idempotency-key", "broken")];
    let answer = begin(sidecar.addr, "/pkg.Service/Method", &fields, MESSAGE).await;
    let error = finish(answer).await.unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
    let again = with_key(sidecar.addr, "broken").await;
    assert_eq!(again.field("retrysafe-outcome"), Some("unknown"));
    assert_eq!(again.field("grpc-status"), Some("2"));
    assert_eq!(upstream.calls(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn r15_a_call_that_its_client_cancels_runs_on_and_is_replayed() {
    let gate = Gate::closed();
    let hold = gate.clone();
    let upstream = H2Upstream::start(move |_, n| Deed::Say(said(n, 0, &[]), Some(hold.clone())));
    let sidecar = sidecar_to(&upstream, "", UNARY);
    let fields = [("idempotency-key", "k")];
    let cancelled = begin(sidecar.addr, "/pkg.Service/Method", &fields, MESSAGE).await;
    upstream.wait_calls(1);
    drop(cancelled);
    let addr = sidecar.addr;
    let duplicate = tokio::spawn(async move { with_key(addr, "k").await });
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting == 1);
    gate.open();
    let told = duplicate.await.unwrap();
    assert_eq!(told.last("grpc-status"), Some("0"));
    assert!(told.is_replay());
    assert_eq!(upstream.calls(), 1);
    assert!(upstream.resets().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn r9_fields_of_ours_never_come_from_the_upstream() {
    let names = ["retrysafe-code", "retrysafe-outcome", "idempotent-replayed"];
    let upstream = H2Upstream::start(move |_, n| {
        let ours = names.map(|name| (name, "forged"));
        let mut answer = said(n, 0, &ours);
        answer
            .fields
            .extend(ours.map(|(name, value)| (name, value.to_owned())));
        Deed::Say(answer, None)
    });
    let unary = sidecar_to(&upstream, "", UNARY);
    let pass = sidecar_to(&upstream, "", "");
    for told in [
        with_key(unary.addr, "k").await,
        with_key(unary.addr, "k").await,
        call(pass.addr, &[]).await,
    ] {
        assert_eq!(told.last("grpc-status"), Some("0"));
        for name in names {
            assert_ne!(told.field(name), Some("forged"), "{name}");
            assert_eq!(told.last(name), None, "{name}");
        }
    }
}
