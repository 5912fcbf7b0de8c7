//! Seals that open, and those that must not.

use std::time::Duration;

use super::*;
use crate::idempotency::fingerprint::Fingerprint;
use crate::idempotency::record::{Answer, Owner, State};

const KEY: RecordKey = RecordKey([7; 32]);

fn record(body: &'static [u8]) -> Record {
    Record {
        owner: Owner([5; 16]),
        attempt: 2,
        retention: Duration::from_mins(1),
        state: State::Completed {
            fingerprint: Fingerprint {
                profile: 1,
                digest: [2; 32],
                parts: Vec::new().into(),
            },
            answer: Answer {
                status: 201,
                fields: vec![("x-card".into(), "4242".into())],
                body: Bytes::from_static(body),
                trailers: Vec::new(),
            },
            completed_at: 9,
        },
    }
}

const LONG: &[u8] = &[b'x'; 5_000];

fn sealing(numbers: &[u8], compress_above: Option<usize>) -> Arc<Vault> {
    Vault::new(VaultSettings {
        keys: numbers.iter().map(|n| SealingKey::new([*n; 32])).collect(),
        accept_plaintext: false,
        compress_above,
    })
}

fn holds(stored: &[u8], text: &[u8]) -> bool {
    stored.windows(text.len()).any(|piece| piece == text)
}

#[test]
fn every_vault_opens_what_it_stored_and_the_head_stands_where_it_stood() {
    let vaults = [
        Vault::open(),
        sealing(&[1], None),
        sealing(&[1], Some(1_000)),
        sealing(&[], Some(1_000)),
        sealing(&[], Some(0)),
    ];
    for vault in &vaults {
        for record in [record(b"4242"), record(LONG), record(b"")] {
            let stored = vault.encode(KEY, &record).unwrap();
            assert_eq!(
                vault.decode(KEY, &stored).as_ref(),
                Ok(&record),
                "{vault:?}"
            );
            assert_eq!(stored[1..38], codec::encode(&record)[1..38], "{vault:?}");
        }
    }
}

#[test]
fn nothing_sealed_stands_in_the_clear_and_no_two_seals_are_alike() {
    let vault = sealing(&[1], None);
    let stored = vault.encode(KEY, &record(b"a very secret answer")).unwrap();
    for text in [&b"secret"[..], b"4242", b"x-card", &[2; 16], &[1; 16]] {
        assert!(!holds(&stored, text), "{text:?}");
    }
    let again = vault.encode(KEY, &record(b"a very secret answer")).unwrap();
    assert_ne!(stored, again);
    assert!(holds(
        &Vault::open().encode(KEY, &record(b"secret")).unwrap(),
        b"secret"
    ));
}

#[test]
fn what_is_long_and_repeats_itself_is_stored_short() {
    let packed = sealing(&[], Some(1_000))
        .encode(KEY, &record(LONG))
        .unwrap();
    assert!(packed.len() < 500, "{}", packed.len());
    let sealed = sealing(&[1], Some(1_000))
        .encode(KEY, &record(LONG))
        .unwrap();
    assert!(sealed.len() < 500, "{}", sealed.len());
    let short = sealing(&[], Some(1_000))
        .encode(KEY, &record(b"4242"))
        .unwrap();
    assert_eq!(short, codec::encode(&record(b"4242")));
}

#[test]
fn a_seal_opens_for_its_key_its_record_and_its_head_only() {
    let vault = sealing(&[1], None);
    let stored = vault.encode(KEY, &record(b"x")).unwrap();
    let other = RecordKey([8; 32]);
    assert_eq!(vault.decode(other, &stored), Err(Unreadable::Seal));
    assert_eq!(
        sealing(&[2], None).decode(KEY, &stored),
        Err(Unreadable::UnknownKey)
    );
    assert_eq!(
        Vault::open().decode(KEY, &stored),
        Err(Unreadable::UnknownKey)
    );
    // Another owner, with a right checksum.
    let mut head = bound_head(&stored).unwrap();
    head[2] ^= 1;
    let Ok(Stored::Wrapped(Wrap::Sealed, content)) = look(&stored) else {
        panic!("sealed");
    };
    let moved = wrap(&head, Wrap::Sealed, &content);
    assert_eq!(vault.decode(KEY, &moved), Err(Unreadable::Seal));
    // Any octet changed, any cut.
    for at in 0..stored.len() {
        let mut broken = stored.to_vec();
        broken[at] ^= 0x40;
        assert!(vault.decode(KEY, &broken.into()).is_err(), "octet {at}");
        assert!(
            vault.decode(KEY, &stored.slice(..at)).is_err(),
            "cut at {at}"
        );
    }
}

#[test]
fn keys_are_rotated_with_two_of_them_active() {
    let old = sealing(&[1], None).encode(KEY, &record(b"x")).unwrap();
    let both = sealing(&[2, 1], None);
    assert_eq!(both.decode(KEY, &old), Ok(record(b"x")));
    let new = both.encode(KEY, &record(b"y")).unwrap();
    assert_eq!(sealing(&[2], None).decode(KEY, &new), Ok(record(b"y")));
    assert_eq!(
        sealing(&[1], None).decode(KEY, &new),
        Err(Unreadable::UnknownKey)
    );
}

#[test]
fn with_a_key_nothing_in_the_clear_is_a_record_unless_it_is_accepted() {
    let settings = |accept_plaintext| VaultSettings {
        keys: vec![SealingKey::new([1; 32])],
        accept_plaintext,
        compress_above: None,
    };
    let plain = codec::encode(&record(b"x"));
    let packed = sealing(&[], Some(0)).encode(KEY, &record(LONG)).unwrap();
    for stored in [plain, packed] {
        let strict = Vault::new(settings(false));
        assert_eq!(strict.decode(KEY, &stored), Err(Unreadable::NotSealed));
        assert!(Vault::new(settings(true)).decode(KEY, &stored).is_ok());
    }
}

#[test]
fn a_packed_record_that_claims_to_be_huge_is_none() {
    let head = bound_head(&codec::encode(&record(b"x"))).unwrap();
    let mut content = u32::MAX.to_le_bytes().to_vec();
    content.extend_from_slice(&[0; 64]);
    let stored = wrap(&head, Wrap::Packed, &content);
    let error = Err(Unreadable::Malformed("compression"));
    assert_eq!(Vault::open().decode(KEY, &stored), error);
}

/// R25: what was stored by this version is read by every later one.
#[test]
fn the_golden_records_of_version_2_are_read() {
    let unhex = |text: &str| -> Bytes {
        let digits: Vec<u8> = text.trim().bytes().collect();
        let pairs = digits
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).unwrap());
        pairs
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect::<Vec<_>>()
            .into()
    };
    let sealed = unhex(include_str!("golden_v2_sealed.hex"));
    assert_eq!(
        sealing(&[1], None).decode(KEY, &sealed),
        Ok(record(b"golden"))
    );
    let packed = unhex(include_str!("golden_v2_packed.hex"));
    assert_eq!(Vault::open().decode(KEY, &packed), Ok(record(LONG)));
    let both = unhex(include_str!("golden_v2_packed_and_sealed.hex"));
    assert_eq!(sealing(&[1], None).decode(KEY, &both), Ok(record(LONG)));
}
