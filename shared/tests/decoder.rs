//! The decoder under arbitrary cuts and hostile bytes.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_shared::ids::LeaseId;
use acp_shared::protocol::{FRAME_BYTES_MAX, Request, ToClient, ToSupervisor};
use acp_shared::wire::{Decoder, HEADER_BYTES, WireError, decode, encode, encode_frame};
use proptest::collection::vec;
use proptest::prelude::*;

const LIMIT: usize = 64 * 1024;

fn lease() -> LeaseId {
    LeaseId::parse("019a0000-0000-7000-8000-000000000001").unwrap()
}

fn message() -> impl Strategy<Value = ToSupervisor> {
    let body = prop_oneof![
        Just(Request::Status),
        Just(Request::ListLeases { detail: false }),
        any::<u64>().prop_map(|offset| Request::Ack { lease_id: lease(), offset }),
        (any::<u64>(), vec(any::<u8>(), 0..2000)).prop_map(|(seq, bytes)| Request::Input {
            lease_id: lease(),
            seq,
            bytes
        }),
        ".{0,60}".prop_map(|reason| Request::CloseLease { lease_id: lease(), reason }),
    ];
    (any::<u64>(), any::<Option<u64>>(), body).prop_map(|(id, epoch, body)| match epoch {
        Some(epoch) => ToSupervisor::Act { id, epoch, body },
        None => ToSupervisor::Request { id, body },
    })
}

/// Pops messages until none is complete.
fn drain(decoder: &mut Decoder, into: &mut Vec<ToSupervisor>) -> Result<(), WireError> {
    while let Some(message) = decoder.pop()? {
        into.push(message);
    }
    Ok(())
}

/// Cuts bytes at these points.
fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut points: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    points.extend([0, bytes.len()]);
    points.sort_unstable();
    points.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn messages_survive_any_cut(messages in vec(message(), 0..8), cuts in vec(any::<prop::sample::Index>(), 0..20)) {
        let bytes: Vec<u8> = messages.iter().flat_map(|m| encode_frame(m, LIMIT).unwrap()).collect();
        let mut decoder = Decoder::new(LIMIT);
        let mut got = Vec::new();
        for piece in pieces(&bytes, &cuts) {
            decoder.push(piece);
            prop_assert_eq!(drain(&mut decoder, &mut got), Ok(()));
        }
        prop_assert_eq!(got, messages);
    }

    #[test]
    fn hostile_bytes_cause_error_or_wait(bytes in vec(any::<u8>(), 0..4000), cuts in vec(any::<prop::sample::Index>(), 0..10)) {
        let mut decoder = Decoder::new(LIMIT);
        let mut got = Vec::new();
        for piece in pieces(&bytes, &cuts) {
            decoder.push(piece);
            if drain(&mut decoder, &mut got).is_err() {
                return Ok(());
            }
        }
    }

    #[test]
    fn hostile_frames_never_panic(body in vec(any::<u8>(), 0..600)) {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let mut decoder = Decoder::new(LIMIT);
        decoder.push(&length);
        decoder.push(&body);
        // An accepted message can be encoded again.
        if let Ok(Some(message)) = decoder.pop::<ToSupervisor>() {
            prop_assert_eq!(decode::<ToSupervisor>(&encode(&message, LIMIT).unwrap()).unwrap(), message);
        }
        let _ = decode::<ToClient>(&body);
    }

    #[test]
    fn flipped_bit_neither_panics_nor_reads_beyond_frame(message in message(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut bytes = encode_frame(&message, LIMIT).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let mut decoder = Decoder::new(LIMIT);
        decoder.push(&bytes);
        let mut got = Vec::new();
        let _ = drain(&mut decoder, &mut got);
        prop_assert!(got.len() <= 1 || at < HEADER_BYTES);
    }
}

#[test]
fn two_messages_survive_any_split() {
    let messages = [
        ToSupervisor::Request { id: 1, body: Request::Status },
        ToSupervisor::Request {
            id: 2,
            body: Request::Input { lease_id: lease(), seq: 1, bytes: b"x\n".to_vec() },
        },
    ];
    let bytes: Vec<u8> = messages.iter().flat_map(|m| encode_frame(m, LIMIT).unwrap()).collect();
    for at in 0..=bytes.len() {
        let mut decoder = Decoder::new(LIMIT);
        let mut got = Vec::new();
        for piece in [&bytes[..at], &bytes[at..]] {
            decoder.push(piece);
            drain(&mut decoder, &mut got).unwrap();
        }
        assert_eq!(got, messages, "cut at {at}");
    }
}

#[test]
fn oversized_header_is_refused_before_body() {
    let mut decoder = Decoder::new(LIMIT);
    decoder.push(&u32::try_from(LIMIT + 1).unwrap().to_be_bytes());
    let error = decoder.pop::<ToSupervisor>().unwrap_err();
    assert_eq!(error, WireError::TooLarge { claimed: LIMIT + 1, limit: LIMIT });

    let mut decoder = Decoder::new(LIMIT);
    decoder.push(&u32::try_from(LIMIT).unwrap().to_be_bytes());
    assert_eq!(decoder.pop::<ToSupervisor>(), Ok(None), "a frame of the limit is allowed");
}

#[test]
fn trailing_bytes_are_refused() {
    let message = ToSupervisor::Request { id: 1, body: Request::Status };
    let mut body = encode(&message, LIMIT).unwrap();
    body.extend([0, 0, 0]);
    assert_eq!(decode::<ToSupervisor>(&body), Err(WireError::Trailing { left: 3 }));
    let mut decoder = Decoder::new(LIMIT);
    decoder.push(&u32::try_from(body.len()).unwrap().to_be_bytes());
    decoder.push(&body);
    assert_eq!(decoder.pop::<ToSupervisor>(), Err(WireError::Trailing { left: 3 }));
}

#[test]
fn claimed_length_allocates_nothing() {
    // Request::Input whose byte string claims a length of 2^60.
    let message =
        ToSupervisor::Request { id: 1, body: Request::Input { lease_id: lease(), seq: 1, bytes: vec![] } };
    let mut bytes = encode(&message, LIMIT).unwrap();
    assert_eq!(bytes.pop(), Some(0), "the empty byte string is a single zero");
    bytes.push(253);
    bytes.extend((1_u64 << 60).to_le_bytes());
    assert!(matches!(decode::<ToSupervisor>(&bytes), Err(WireError::Malformed { .. })));
}

#[test]
fn oversized_message_is_not_encoded() {
    let message = ToSupervisor::Request {
        id: 1,
        body: Request::Input { lease_id: lease(), seq: 1, bytes: vec![0; LIMIT] },
    };
    assert!(matches!(encode_frame(&message, LIMIT), Err(WireError::TooLarge { .. })));
    assert!(encode_frame(&message, FRAME_BYTES_MAX).is_ok());
}
