//! Framing: where a packet ends, how many bytes are missing, and which packets are too large.

use headwater_mqtt::frame::{self, Frame};
use headwater_mqtt::{ReasonCode, VARINT_MAX};
use proptest::prelude::*;

use crate::codec::bytes::{NO_LIMIT, hex};

/// A PUBLISH with a body of this size, and the size of its header.
fn packet_of(body_len: usize) -> (Vec<u8>, usize) {
    let mut bytes = vec![0x30];
    let mut rest = body_len;
    loop {
        let more = if rest > 127 { 0x80 } else { 0 };
        bytes.push((rest % 128) as u8 | more);
        rest /= 128;
        if rest == 0 {
            break;
        }
    }
    let header_len = bytes.len();
    bytes.resize(header_len + body_len, 0x2e);
    (bytes, header_len)
}

proptest! {
    #[test]
    fn every_strict_prefix_is_incomplete(body_len in prop_oneof![0_usize..300, 16_300_usize..16_500, 2_097_100_usize..2_097_200], cut in any::<prop::sample::Index>()) {
        let (bytes, header_len) = packet_of(body_len);
        let cut = cut.index(bytes.len());
        let needed_total = (cut >= header_len).then_some(bytes.len());
        prop_assert_eq!(frame::next(&bytes[..cut], NO_LIMIT), Ok(Frame::Incomplete { needed_total }));
    }

    #[test]
    fn a_whole_packet_is_found_whatever_follows(body_len in 0_usize..20_000, behind in prop::collection::vec(any::<u8>(), 0..9)) {
        let (mut bytes, header_len) = packet_of(body_len);
        let total_len = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(frame::next(&bytes, NO_LIMIT), Ok(Frame::Whole { first_byte: 0x30, header_len, total_len }));
    }

    #[test]
    fn a_packet_over_the_limit_is_refused_by_its_header_alone(body_len in 0_usize..20_000, limit in 0_usize..20_000) {
        let (bytes, header_len) = packet_of(body_len);
        let seen = frame::next(&bytes[..header_len], limit);
        if bytes.len() > limit {
            prop_assert_eq!(seen.map_err(|error| error.reason), Err(ReasonCode::PacketTooLarge));
        } else {
            prop_assert!(seen.is_ok());
        }
    }
}

#[test]
fn a_length_of_five_bytes_is_malformed() {
    let seen = frame::next(&hex("30 80808080 01"), NO_LIMIT);
    assert_eq!(
        seen.map_err(|error| error.reason),
        Err(ReasonCode::MalformedPacket)
    );
    assert!(
        frame::next(&hex("30 ffffffff"), NO_LIMIT).is_err(),
        "the fourth byte may not announce a fifth"
    );
}

#[test]
fn the_longest_length_is_understood() {
    let needed_total = Some(VARINT_MAX as usize + 5);
    assert_eq!(
        frame::next(&hex("30 ffffff7f"), NO_LIMIT),
        Ok(Frame::Incomplete { needed_total })
    );
}

#[test]
fn a_padded_length_is_accepted() {
    let whole = Frame::Whole {
        first_byte: 0xc0,
        header_len: 3,
        total_len: 3,
    };
    assert_eq!(frame::next(&hex("c0 8000"), NO_LIMIT), Ok(whole));
}

#[test]
fn nothing_received_needs_an_unknown_number_of_bytes() {
    assert_eq!(
        frame::next(&[], NO_LIMIT),
        Ok(Frame::Incomplete { needed_total: None })
    );
    assert_eq!(
        frame::next(&hex("30 80"), NO_LIMIT),
        Ok(Frame::Incomplete { needed_total: None })
    );
}
