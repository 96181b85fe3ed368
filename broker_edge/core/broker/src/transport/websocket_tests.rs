//! Frames cut anywhere, forbidden frames, and what leaves after a close.

use super::*;

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let mut bytes = vec![first];
    if payload.len() < 126 {
        bytes.push(0x80 | payload.len() as u8);
    } else {
        bytes.push(0x80 | 126);
        bytes.extend((payload.len() as u16).to_be_bytes());
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
    bytes
}

const BINARY: u8 = 0x82;

fn decode_in_pieces(bytes: &[u8], piece: usize) -> (Result<Vec<u8>, CloseCode>, WebSocket) {
    let mut ws = WebSocket::default();
    let mut found = Vec::new();
    for chunk in bytes.chunks(piece) {
        let mut chunk = chunk.to_vec();
        match ws.decode(&mut chunk) {
            Ok(count) => found.extend_from_slice(&chunk[..count]),
            Err(code) => return (Err(code), ws),
        }
    }
    (Ok(found), ws)
}

#[test]
fn payloads_come_out_the_same_however_the_bytes_are_cut() {
    let long: Vec<u8> = (0..300u32).map(|n| n as u8).collect();
    let mut bytes = frame(BINARY, b"hello");
    bytes.extend(frame(0x02, b"wor"));
    bytes.extend(frame(0x89, b"ping me"));
    bytes.extend(frame(0x80, b"ld"));
    bytes.extend(frame(BINARY, b""));
    bytes.extend(frame(BINARY, &long));
    let expected = [b"helloworld".as_slice(), &long].concat();
    for piece in 1..bytes.len() {
        let (found, ws) = decode_in_pieces(&bytes, piece);
        assert_eq!(found.unwrap(), expected, "in pieces of {piece}");
        assert_eq!(ws.unsent(), b"\x8a\x07ping me");
    }
}

#[test]
fn what_a_client_may_not_send_is_closed_with_its_code() {
    let protocol = CloseCode::Protocol;
    for (bytes, code) in [
        (frame(0x81, b"text"), CloseCode::Unsupported),
        (vec![BINARY, 1, b'x'], protocol),
        (frame(0xc2, b"reserved bit"), protocol),
        (frame(0x80, b"nothing to continue"), protocol),
        ([frame(0x02, b"a"), frame(0x02, b"b")].concat(), protocol),
        (frame(0x09, b"a ping in parts"), protocol),
        (frame(0x8b, b"reserved"), protocol),
        (frame(0x89, &[0; 126]), protocol),
        (
            vec![BINARY, 0xff, 0, 0, 0, 0, 0x10, 0, 0, 5, 0, 0, 0, 0],
            CloseCode::TooLarge,
        ),
    ] {
        assert_eq!(decode_in_pieces(&bytes, 3).0, Err(code), "{bytes:?}");
    }
}

#[test]
fn a_goodbye_is_answered_with_its_code_and_nothing_follows() {
    let mut bytes = frame(0x88, &1001u16.to_be_bytes());
    bytes.extend(frame(BINARY, b"late"));
    let (found, mut ws) = decode_in_pieces(&bytes, 64);
    assert_eq!(found.unwrap(), b"");
    assert!(ws.is_closed());
    assert_eq!(ws.unsent(), b"\x88\x02\x03\xe9");
    ws.advance(4);
    assert_eq!(ws.begin_frame(10), 0);
}

#[test]
fn an_answer_waits_for_the_end_of_the_frame_that_is_being_sent() {
    let mut ws = WebSocket::default();
    assert_eq!(ws.begin_frame(5), 5);
    assert_eq!(ws.unsent(), b"\x82\x05");
    // The socket accepts the header and two bytes.
    assert_eq!(ws.advance(4), 2);
    ws.decode(&mut frame(0x89, b"p")).unwrap();
    assert!(!ws.has_unsent());
    // The frame lacks three bytes, and the sender has two more.
    assert_eq!(ws.begin_frame(5), 3);
    assert_eq!(ws.advance(3), 3);
    assert_eq!(ws.begin_frame(2), 2);
    assert_eq!(ws.unsent(), b"\x8a\x01p\x82\x02");
}
