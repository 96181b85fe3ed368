//! What a connection sends before MQTT: the PROXY header, the WebSocket handshake and frames.

use headwater_mqtt::ReasonCode;

use super::check_sentence;
use crate::hosts::{Hosts, Origins};
use crate::transport::first_bytes::{connack_refusal, detect_protocol};
use crate::transport::proxy::{self, HEADER_BYTES_MAX, Header};
use crate::transport::upgrade::{self, Upgrade};
use crate::transport::websocket::{CloseCode, WebSocket};

const SENTENCE_BYTES_MAX: usize = 200;
/// A control frame: two bytes, and at most 125 of payload.
const CONTROL_FRAME_BYTES: usize = 127;

pub fn first_bytes(input: &[u8]) {
    let detected = detect_protocol(input);
    for end in 0..input.len().min(20) {
        let early = detect_protocol(&input[..end]);
        assert!(
            early.is_none() || early == detected,
            "{early:?} becomes {detected:?}"
        );
    }
    connack_refusal(input, ReasonCode::ServerBusy, "busy");
    match proxy::parse(input) {
        Ok(Header::Incomplete) => assert!(input.len() < HEADER_BYTES_MAX),
        Ok(Header::Whole { len, client }) => {
            let whole = Ok(Header::Whole { len, client });
            assert_eq!(
                proxy::parse(&input[..len]),
                whole,
                "what follows changes nothing"
            );
            for end in [0, 1, len / 2, len - 1] {
                assert_eq!(proxy::parse(&input[..end]), Ok(Header::Incomplete));
            }
        }
        Err(sentence) => check_sentence(sentence, SENTENCE_BYTES_MAX),
    }
}

/// The payload, and how the connection ended.
fn receive(input: &[u8], step: usize) -> (Vec<u8>, Option<CloseCode>, bool) {
    let (mut socket, mut payload) = (WebSocket::default(), Vec::new());
    for piece in input.chunks(step.max(1)) {
        let mut bytes = piece.to_vec();
        match socket.decode(&mut bytes) {
            Ok(count) => payload.extend_from_slice(&bytes[..count]),
            Err(code) => {
                socket.close(code);
                assert!(socket.has_said_goodbye());
                return (payload, Some(code), socket.is_closed());
            }
        }
        assert!(
            socket.unsent().len() <= CONTROL_FRAME_BYTES,
            "one answer waits"
        );
    }
    let may_send = socket.begin_frame(10);
    assert!(socket.unsent().len() <= 2 * CONTROL_FRAME_BYTES + 14);
    let all = socket.unsent().len() + may_send;
    assert_eq!(socket.advance(all), may_send);
    assert!(!socket.has_unsent());
    (payload, None, socket.is_closed())
}

/// Frames mean the same however the network cuts them; the first byte says how.
pub fn websocket(input: &[u8]) {
    let Some((step, frames)) = input.split_first() else {
        return;
    };
    let whole = receive(frames, frames.len());
    let parts = receive(frames, usize::from(*step));
    assert!(whole.0.len() <= frames.len());
    assert_eq!(
        (whole.1, whole.2),
        (parts.1, parts.2),
        "another end in pieces"
    );
    // In one piece, what came before the fault is not passed on.
    assert!(parts.0.starts_with(&whole.0), "another payload in pieces");
    assert!(
        whole.1.is_some() || whole.0 == parts.0,
        "less payload in one piece"
    );
}

pub fn upgrade(input: &[u8]) {
    let origins = Origins::new(
        &["https://pages.example".to_owned()],
        &Hosts::new(&["broker.example".to_owned()]),
    );
    let parsed = upgrade::parse(input, &origins);
    match &parsed {
        Upgrade::Incomplete => {}
        Upgrade::Accepted { len, answer, .. } => {
            assert!(answer.starts_with(b"HTTP/1.1 101 ") && answer.ends_with(b"\r\n\r\n"));
            assert!(answer.len() <= 1024);
            assert_eq!(upgrade::parse(&input[..*len], &origins), parsed);
            for end in [0, len / 2, len - 1] {
                assert_eq!(upgrade::parse(&input[..end], &origins), Upgrade::Incomplete);
            }
        }
        Upgrade::Refused { reason, answer } => {
            check_sentence(reason, SENTENCE_BYTES_MAX);
            assert!(answer.starts_with(b"HTTP/1.1 4") && answer.len() <= 1024);
        }
    }
}
