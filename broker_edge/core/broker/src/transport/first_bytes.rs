//! Detects a client's protocol from its first bytes, and builds the answer if it is the wrong protocol.

use headwater_mqtt::{ConnectReturnCode, Property, ReasonCode, encode};

/// The protocol of the first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetectedProtocol {
    /// A CONNECT.
    Mqtt,
    Tls,
    Http,
    /// A PROXY protocol header, version 1 or 2.
    Proxy,
    Other,
}

const HTTP: [&[u8]; 8] = [
    b"GET ",
    b"POST ",
    b"PUT ",
    b"HEAD ",
    b"OPTIONS ",
    b"DELETE ",
    b"PATCH ",
    b"PRI ",
];
const PROXY: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];

/// `None` when more bytes are needed.
pub fn detect_protocol(bytes: &[u8]) -> Option<DetectedProtocol> {
    match bytes {
        [] => return None,
        // A handshake record, in any version since SSL 3.
        [0x16] => return None,
        [0x16, 3, ..] => return Some(DetectedProtocol::Tls),
        // CONNECT with any flags: MQTT 3.1 does not define them, and decoding checks them for other versions.
        [first, ..] if first >> 4 == 1 && *first != 0x16 => return Some(DetectedProtocol::Mqtt),
        _ => {}
    }
    let mut is_open = false;
    for (kind, words) in [
        (DetectedProtocol::Http, &HTTP[..]),
        (DetectedProtocol::Proxy, &PROXY[..]),
    ] {
        for word in words {
            if bytes.starts_with(word) {
                return Some(kind);
            }
            is_open |= word.starts_with(bytes);
        }
    }
    (!is_open).then_some(DetectedProtocol::Other)
}

/// A short HTTP answer to a client that used HTTP on the wrong port.
pub fn http_refusal(sentence: &str) -> Vec<u8> {
    http_answer("400 Bad Request", "", sentence)
}

/// A whole HTTP answer that ends the connection.
pub fn http_answer(status: &str, headers: &str, sentence: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n{sentence}\n",
        sentence.len() + 1
    )
    .into_bytes()
}

/// The CONNACK for a refused CONNECT, in the version of its first bytes; empty if these do not include the version.
pub fn connack_refusal(connect: &[u8], reason: ReasonCode, sentence: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match version_of(connect) {
        Some(5) => encode::connack(&mut out, false, reason, &[Property::ReasonString(sentence)]),
        Some(3 | 4) => {
            encode::connack_v3(&mut out, false, ConnectReturnCode::ServerUnavailable);
        }
        _ => {}
    }
    out
}

/// The CONNACK for a CONNECT to a node that serves no clients, with the address of the one that does; empty if the bytes
/// do not include the version. MQTT 3 has no way to say where.
pub fn connack_elsewhere(connect: &[u8], server: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match version_of(connect) {
        Some(5) => {
            let properties = [Property::ServerReference(server)];
            encode::connack(&mut out, false, ReasonCode::UseAnotherServer, &properties);
        }
        Some(3 | 4) => {
            encode::connack_v3(&mut out, false, ConnectReturnCode::ServerUnavailable);
        }
        _ => {}
    }
    out
}

/// The protocol level, which follows the protocol name.
fn version_of(connect: &[u8]) -> Option<u8> {
    let length_len = connect.get(1..)?.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let name = connect.get(1 + length_len..)?;
    let (len, rest) = name.split_first_chunk::<2>()?;
    let level = rest.get(usize::from(u16::from_be_bytes(*len)))?;
    (rest.starts_with(b"MQTT") || rest.starts_with(b"MQIsdp")).then_some(*level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_told_apart_by_their_first_bytes() {
        for (bytes, kind) in [
            (&b"\x10\x0c\0\x04MQTT"[..], DetectedProtocol::Mqtt),
            (b"\x14\x0f\0\x06MQIsdp", DetectedProtocol::Mqtt),
            (b"\x16\x03\x01\x02\0\x01", DetectedProtocol::Tls),
            (b"GET /mqtt HTTP/1.1\r\n", DetectedProtocol::Http),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", DetectedProtocol::Http),
            (b"PROXY TCP4 ", DetectedProtocol::Proxy),
            (b"\r\n\r\n\0\r\nQUIT\n\x21", DetectedProtocol::Proxy),
            (b"\x30\x05\0\x01t", DetectedProtocol::Other),
            (b"\x16\x05", DetectedProtocol::Other),
            (b"GIT ", DetectedProtocol::Other),
            (b"\r\n\r\nhello", DetectedProtocol::Other),
        ] {
            assert_eq!(detect_protocol(bytes), Some(kind), "{bytes:?}");
        }
        for undecided in [&b""[..], b"\x16", b"G", b"PR", b"\r\n"] {
            assert_eq!(detect_protocol(undecided), None, "{undecided:?}");
        }
    }

    #[test]
    fn a_connect_is_refused_in_its_own_version() {
        let reason = ReasonCode::PacketTooLarge;
        let v311 = connack_refusal(b"\x10\xff\xff\x7f\0\x04MQTT\x04\x02", reason, "why");
        assert_eq!(v311, [0x20, 2, 0, 3]);
        let v31 = connack_refusal(b"\x10\x7f\0\x06MQIsdp\x03\x02", reason, "why");
        assert_eq!(v31, [0x20, 2, 0, 3]);
        let v5 = connack_refusal(b"\x10\x7f\0\x04MQTT\x05\x02", reason, "why");
        assert_eq!(v5, b"\x20\x09\0\x95\x06\x1f\0\x03why");
        assert_eq!(
            connack_elsewhere(b"\x10\x7f\0\x04MQTT\x04\x02", "b:1"),
            v311
        );
        let v5 = connack_elsewhere(b"\x10\x7f\0\x04MQTT\x05\x02", "b:1");
        assert_eq!(v5, b"\x20\x09\0\x9c\x06\x1c\0\x03b:1");
        assert_eq!(connack_refusal(b"\x10\x7f\0\x04MQT", reason, "why"), b"");
        assert_eq!(connack_refusal(b"\x10\xff\xff", reason, "why"), b"");
    }
}
