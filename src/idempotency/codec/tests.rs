//! Records there and back, to the octet; what is damaged is an error.

use super::*;
use crate::idempotency::fingerprint::{Part, PartKind};
use crate::idempotency::record::Answer;

fn fingerprint() -> Fingerprint {
    let part = |kind, name: &str, digest| Part {
        kind,
        name: name.into(),
        digest,
    };
    let parts = vec![
        part(PartKind::Method, "", Some([1; 16])),
        part(PartKind::Header, "content-type", None),
        part(PartKind::Body, "raw", Some([9; 16])),
    ];
    Fingerprint {
        profile: 0x0102_0304_0506_0708,
        digest: [7; 32],
        parts: parts.into(),
    }
}

fn answers() -> [Answer; 2] {
    let fields = vec![
        (
            Bytes::from_static(b"content-type"),
            Bytes::from_static(b"text/plain"),
        ),
        (
            Bytes::from_static(b"x-latin"),
            Bytes::from_static(b"\xe9\xff"),
        ),
        (Bytes::from_static(b"x-empty"), Bytes::new()),
    ];
    let body = Bytes::from_static(b"\x00body\xff");
    let plain = Answer {
        status: 201,
        fields: fields.clone(),
        body,
        trailers: vec![],
    };
    let with_trailers = Answer {
        trailers: fields,
        body: Bytes::new(),
        ..plain.clone()
    };
    [plain, with_trailers]
}

fn states() -> Vec<State> {
    let [answer, with_trailers] = answers();
    let mut states = vec![
        State::InFlight {
            fingerprint: fingerprint(),
            lease: Duration::from_secs(30),
        },
        State::Completed {
            fingerprint: fingerprint(),
            answer,
            completed_at: 1 << 40,
        },
        State::Completed {
            fingerprint: fingerprint(),
            answer: with_trailers,
            completed_at: 0,
        },
        State::Failed {
            why: FailedWhy::NotSent,
        },
        State::Failed {
            why: FailedWhy::Status {
                status: 429,
                retry_after: 7,
            },
        },
        State::Failed {
            why: FailedWhy::Operator,
        },
    ];
    for (location, digest) in [
        (None, None),
        (Some(Bytes::from_static(b"/x")), Some([3; 32])),
    ] {
        let fingerprint = fingerprint();
        states.push(State::NotKept {
            fingerprint,
            status: 200,
            location,
            digest,
            completed_at: 9,
        });
    }
    let problems = [
        None,
        Some(HeldProblem::OutcomeUnknown),
        Some(HeldProblem::ConnectionLost),
        Some(HeldProblem::BadResponse),
        Some(HeldProblem::Timeout),
    ];
    for (why, problem) in UnknownWhy::ALL
        .into_iter()
        .zip(problems.into_iter().cycle())
    {
        states.push(State::Unresolved {
            fingerprint: fingerprint(),
            why,
            problem,
        });
    }
    states
}

fn records() -> Vec<Record> {
    let record = |state| Record {
        owner: Owner(*b"0123456789abcdef"),
        attempt: 0x0a0b_0c0d,
        retention: Duration::from_millis(86_400_001),
        state,
    };
    states().into_iter().map(record).collect()
}

#[test]
fn every_record_is_read_back() {
    for record in records() {
        assert_eq!(decode(&encode(&record)), Ok(record));
    }
}

#[test]
fn the_head_stands_where_the_scripts_read_it() {
    for record in records() {
        let stored = encode(&record);
        assert_eq!(stored[0], VERSION);
        assert_eq!(stored[1], state_number(&record.state));
        assert_eq!(&stored[2..18], b"0123456789abcdef");
        assert_eq!(&stored[18..22], [0x0a, 0x0b, 0x0c, 0x0d]);
        let lease = u64::from_be_bytes(stored[22..30].try_into().unwrap());
        assert_eq!(lease, if stored[1] == 1 { 30_000 } else { 0 });
        assert_eq!(
            u64::from_be_bytes(stored[30..38].try_into().unwrap()),
            86_400_001
        );
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_is_refused() {
    for record in records() {
        let stored = encode(&record);
        for length in 0..stored.len() {
            assert!(
                decode(&stored.slice(..length)).is_err(),
                "{length} of {record:?}"
            );
        }
        for at in 0..stored.len() {
            for bit in 0..8 {
                let mut broken = stored.to_vec();
                broken[at] ^= 1 << bit;
                assert!(
                    decode(&broken.into()).is_err(),
                    "bit {bit} of octet {at} of {record:?}"
                );
            }
        }
    }
}

#[test]
fn another_version_says_which() {
    let mut stored = encode(&records()[0]).to_vec();
    stored[0] = 2;
    assert_eq!(decode(&stored.into()), Err(Unreadable::Version(2)));
}

#[test]
fn a_section_of_a_later_build_is_skipped() {
    for record in records() {
        let mut stored = encode(&record).to_vec();
        stored.extend([200, 0, 0, 0, 3, 1, 2, 3]);
        let sum = checksum(&stored);
        stored[CHECKSUM].copy_from_slice(&sum);
        assert_eq!(decode(&stored.into()), Ok(record));
    }
}

/// What this version wrote must be readable for ever: a rolling update shares one store.
#[test]
fn golden_records_of_version_1() {
    let in_flight = include_str!("golden_v1_in_flight.hex").trim();
    let completed = include_str!("golden_v1_completed.hex").trim();
    for (golden, record) in [in_flight, completed].into_iter().zip(records()) {
        let stored: Vec<u8> = (0..golden.len() / 2)
            .map(|at| u8::from_str_radix(&golden[at * 2..at * 2 + 2], 16).unwrap())
            .collect();
        assert_eq!(encode(&record), stored);
        assert_eq!(decode(&stored.into()), Ok(record));
    }
}

proptest::proptest! {
    #[test]
    fn random_octets_never_panic(octets in proptest::collection::vec(0_u8..=255, 0..400)) {
        drop(decode(&Bytes::from(octets)));
    }

    #[test]
    fn random_sections_under_a_right_checksum_never_panic(
        state in 0_u8..8,
        tail in proptest::collection::vec(0_u8..=255, 0..200),
    ) {
        let mut stored = encode(&records()[0])[..HEAD].to_vec();
        stored[1] = state;
        stored.extend(tail);
        let sum = checksum(&stored);
        stored[CHECKSUM].copy_from_slice(&sum);
        drop(decode(&Bytes::from(stored)));
    }
}
