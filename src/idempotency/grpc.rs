//! R17, R18, R28: what a gRPC answer says of the work, and what body a unary call has.
//!
//! A gRPC answer is HTTP 200 whatever happened; the outcome is `grpc-status`, in the trailers, or in
//! the head of an answer that has nothing else (Trailers-Only). It is judged as if the HTTP status
//! of the same meaning had come (the table at `google.rpc.Code`), so that `release_statuses` and
//! `on_5xx` steer both.

use http::HeaderMap;

const STATUS: &str = "grpc-status";
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// What an answer is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// An HTTP status.
    pub status: u16,
    /// In how many seconds to come again, if the answer says so.
    pub retry_after: Option<u32>,
}

/// What the answer of HTTP status 200 to a gRPC call says. `None`: nothing, so it is no whole
/// answer (R18). `has_body`: there was an octet of it.
pub fn said(head: &HeaderMap, trailers: Option<&HeaderMap>, has_body: bool) -> Option<Said> {
    let fields = match trailers {
        Some(trailers) => trailers,
        None if has_body => return None,
        None => head,
    };
    let digits = only(fields, STATUS)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let code = digits.parse().ok().filter(|_| is_number)?;
    Some(Said {
        status: like(code),
        retry_after: pushback(fields),
    })
}

/// The HTTP status that a gRPC status is judged as. What no table knows is UNKNOWN, as it is for
/// clients.
fn like(code: u32) -> u16 {
    match code {
        // ALREADY_EXISTS is 409 elsewhere, which means "not carried out" here. But it may well be
        // what an earlier try of the same operation left: it is always recorded.
        0 | 6 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        7 => 403,
        8 => 429,
        10 => 409,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// The server's word that a call may come again (gRPC's proposal A6); a negative number is its word
/// that it may not.
fn pushback(fields: &HeaderMap) -> Option<u32> {
    let text = only(fields, PUSHBACK)?;
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let millis: u32 = text.parse().ok().filter(|_| is_number)?;
    Some(millis.div_ceil(1000))
}

/// The value of a field that stands there once.
fn only<'f>(fields: &'f HeaderMap, name: &str) -> Option<&'f str> {
    let mut lines = fields.get_all(name).iter();
    let line = lines.next()?.to_str().ok()?;
    lines.next().is_none().then_some(line)
}

/// R28: whether a body is exactly one length-prefixed message, as the body of a unary call is.
pub fn is_one_message(body: &[u8]) -> bool {
    let Some(([compressed, length @ ..], message)) = body.split_first_chunk::<5>() else {
        return false;
    };
    let length = usize::try_from(u32::from_be_bytes(*length));
    *compressed <= 1 && length.is_ok_and(|length| length == message.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::policy::{On5xx, Policy};
    use crate::idempotency::record::FailedWhy;
    use crate::idempotency::{Exchange, Settlement, settle};

    fn map(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    /// What becomes of the record under `policy`, where the trailers are these.
    fn settled(fields: &[(&'static str, &str)], policy: &Policy) -> Settlement {
        let Said {
            status,
            retry_after,
        } = said(&HeaderMap::new(), Some(&map(fields)), true).unwrap();
        let exchange = Exchange::Answered {
            status,
            retry_after,
            kept: true,
        };
        settle(exchange, policy)
    }

    fn released(status: u16, retry_after: u32) -> Settlement {
        Settlement::Fail(FailedWhy::Status {
            status,
            retry_after,
        })
    }

    /// `google.rpc.Code`; `None`: always recorded.
    const TABLE: [(u32, Option<u16>); 17] = [
        (0, None),
        (1, Some(499)),
        (2, Some(500)),
        (3, Some(400)),
        (4, Some(504)),
        (5, Some(404)),
        (6, None),
        (7, Some(403)),
        (8, Some(429)),
        (9, Some(400)),
        (10, Some(409)),
        (11, Some(400)),
        (12, Some(501)),
        (13, Some(500)),
        (14, Some(503)),
        (15, Some(500)),
        (16, Some(401)),
    ];

    #[test]
    fn r17_each_status_is_judged_as_its_http_status_would_be() {
        let default = Policy::default();
        let all = Policy {
            release_statuses: (300..=599).collect(),
            ..Policy::default()
        };
        let release = Policy {
            release_statuses: Vec::new(),
            on_5xx: On5xx::Release,
            ..Policy::default()
        };
        for (code, like) in TABLE {
            let text = code.to_string();
            let fields = [(STATUS, text.as_str())];
            for policy in [&default, &all, &release] {
                let is_released = like.filter(|status| {
                    policy.release_statuses.contains(status)
                        || (policy.on_5xx == On5xx::Release && *status >= 500)
                });
                let expected =
                    is_released.map_or(Settlement::Complete, |status| released(status, 0));
                assert_eq!(settled(&fields, policy), expected, "{code}");
            }
        }
        let by_default = TABLE.iter().filter(|(code, _)| {
            let text = code.to_string();
            settled(&[(STATUS, &text)], &default) != Settlement::Complete
        });
        let by_default: Vec<_> = by_default.map(|(code, _)| *code).collect();
        assert_eq!(by_default, [7, 8, 10, 16]);
    }

    #[test]
    fn r17_unavailable_is_not_carried_out_only_if_the_server_says_when_to_come_again() {
        let policy = Policy::default();
        let with = |pushback: &str| settled(&[(STATUS, "14"), (PUSHBACK, pushback)], &policy);
        for (pushback, seconds) in [("0", 0), ("1", 1), ("1000", 1), ("1001", 2)] {
            assert_eq!(with(pushback), released(503, seconds), "{pushback}");
        }
        for pushback in ["-1", "", "+1", "1.5", "1s", "99999999999"] {
            assert_eq!(with(pushback), Settlement::Complete, "{pushback}");
        }
        let twice = [(STATUS, "14"), (PUSHBACK, "1"), (PUSHBACK, "1")];
        assert_eq!(settled(&twice, &policy), Settlement::Complete);
        let aborted = [(STATUS, "10"), (PUSHBACK, "2500")];
        assert_eq!(settled(&aborted, &policy), released(409, 3));
        let internal = [(STATUS, "13"), (PUSHBACK, "2500")];
        assert_eq!(settled(&internal, &policy), Settlement::Complete);
    }

    #[test]
    fn r18_an_answer_without_one_valid_status_is_no_whole_answer() {
        let none = HeaderMap::new();
        for value in ["", "-1", "+1", "0x1", "1 2", "ok", "1.0", "99999999999"] {
            let fields = map(&[(STATUS, value)]);
            assert_eq!(said(&none, Some(&fields), true), None, "{value}");
            assert_eq!(said(&fields, None, false), None, "{value}");
        }
        let twice = map(&[(STATUS, "0"), (STATUS, "0")]);
        assert_eq!(said(&none, Some(&twice), true), None);
        assert_eq!(said(&none, None, true), None);
        assert_eq!(said(&none, None, false), None);
        assert_eq!(said(&none, Some(&map(&[("x-sum", "9")])), true), None);
    }

    #[test]
    fn r17_the_status_is_the_trailers_or_that_of_a_head_without_anything_after_it() {
        let (ok, aborted) = (map(&[(STATUS, "0")]), map(&[(STATUS, "10")]));
        let status = |head, trailers, has_body| said(head, trailers, has_body).map(|s| s.status);
        assert_eq!(status(&aborted, None, false), Some(409));
        assert_eq!(status(&aborted, None, true), None);
        assert_eq!(status(&ok, Some(&aborted), true), Some(409));
        assert_eq!(status(&ok, Some(&aborted), false), Some(409));
        assert_eq!(status(&ok, Some(&map(&[("x-sum", "9")])), false), None);
    }

    #[test]
    fn r17_a_status_that_no_table_knows_is_unknown() {
        let said = said(&map(&[(STATUS, "17")]), None, false).unwrap();
        assert_eq!((said.status, said.retry_after), (500, None));
    }

    #[test]
    fn r28_one_message_is_a_prefix_and_just_so_many_octets() {
        for good in [
            &b"\0\0\0\0\0"[..],
            b"\x01\0\0\0\0",
            b"\0\0\0\0\x03abc",
            b"\x01\0\0\0\x01\0",
        ] {
            assert!(is_one_message(good), "{good:?}");
        }
        let long = [vec![0, 0, 1, 0, 2], vec![7; 0x0001_0002]].concat();
        assert!(is_one_message(&long));
        for bad in [
            &b""[..],
            b"\0",
            b"\0\0\0\0",
            b"\0\0\0\0\x03ab",
            b"\0\0\0\0\x03abcd",
            b"\x02\0\0\0\x03abc",
            b"\0\xff\xff\xff\xffabc",
            b"\0\0\0\0\0\0\0\0\0\0",
            b"\0\x03\0\0\0abc",
            b"abc",
        ] {
            assert!(!is_one_message(bad), "{bad:?}");
        }
    }
}
