//! The PROXY protocol v2 header, in which a load balancer names the client. Bytes in, address out.
//!
//! Version 1, the text format, is not supported. TLVs after the addresses are skipped; they must fill the header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_BYTES: usize = 16;
/// The addresses take at most 216 bytes; certificate names and other TLVs follow.
pub const HEADER_BYTES_MAX: usize = 4096;

/// The result of parsing the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Header {
    Incomplete,
    Whole {
        len: usize,
        /// `None` when the proxy speaks for itself, or for a peer without an IP address.
        client: Option<SocketAddr>,
    },
}

/// Reads the header at the front of `bytes`.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Header, &'static str> {
    let here = bytes.len().min(SIGNATURE.len());
    if bytes[..here] != SIGNATURE[..here] {
        return Err("the PROXY protocol v2 header is missing");
    }
    let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else {
        return Ok(Header::Incomplete);
    };
    let is_local = match fixed[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err("the PROXY protocol header has an unsupported version or command"),
    };
    let body_len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let len = FIXED_BYTES + body_len;
    if len > HEADER_BYTES_MAX {
        return Err("the PROXY protocol header is too long");
    }
    let Some(body) = bytes.get(FIXED_BYTES..len) else {
        return Ok(Header::Incomplete);
    };
    let client = if is_local {
        None
    } else {
        client(fixed[13], body)?
    };
    Ok(Header::Whole { len, client })
}

/// Family in the upper half of the byte; the lower half is 1 for a stream.
fn client(family: u8, body: &[u8]) -> Result<Option<SocketAddr>, &'static str> {
    // Source and destination, then the ports of both.
    let len = match family >> 4 {
        // Unspecified: nothing after it has a meaning.
        0 => return Ok(None),
        1 => 12,
        2 => 36,
        // A UNIX socket.
        3 => 216,
        _ => return Err("the PROXY protocol header has an unknown address family"),
    };
    let Some((addresses, tlvs)) = body.split_at_checked(len) else {
        return Err("the PROXY protocol header is shorter than its addresses");
    };
    check_tlvs(tlvs)?;
    let port = |at: usize| u16::from_be_bytes([addresses[at], addresses[at + 1]]);
    let v4 = |ip: &[u8; 4]| SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*ip)), port(8));
    let v6 = |ip: &[u8; 16]| SocketAddr::new(IpAddr::V6(Ipv6Addr::from(*ip)), port(32));
    Ok(match len {
        12 => addresses.first_chunk().map(v4),
        36 => addresses.first_chunk().map(v6),
        _ => None,
    })
}

/// Each is a type, a length of two bytes, and as many bytes. One that is cut short shows that proxy and broker disagree
/// about where MQTT begins.
fn check_tlvs(mut tlvs: &[u8]) -> Result<(), &'static str> {
    const CUT: &str = "the PROXY protocol header ends within a TLV";
    while !tlvs.is_empty() {
        let (&[_, high, low], rest) = tlvs.split_first_chunk().ok_or(CUT)?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        tlvs = rest.get(len..).ok_or(CUT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    const V4: &[u8] = &[192, 0, 2, 7, 10, 0, 0, 1, 0x30, 0x39, 7, 91];

    #[test]
    fn the_clients_address_is_found_and_what_follows_is_left() {
        let mut bytes = header(0x21, 0x11, &[V4, b"\x04\0\x02tl"].concat());
        let len = bytes.len();
        bytes.extend(b"MQTT");
        let client = Some("192.0.2.7:12345".parse().unwrap());
        assert_eq!(parse(&bytes), Ok(Header::Whole { len, client }));
        let mut v6 = vec![0; 36];
        v6[15] = 1;
        v6[33] = 9;
        let bytes = header(0x21, 0x21, &v6);
        let client = Some("[::1]:9".parse().unwrap());
        assert_eq!(parse(&bytes), Ok(Header::Whole { len: 52, client }));
    }

    #[test]
    fn a_proxy_that_speaks_for_itself_names_nobody() {
        let client = None;
        let local = header(0x20, 0x11, V4);
        assert_eq!(parse(&local), Ok(Header::Whole { len: 28, client }));
        let unix = header(0x21, 0x31, &[0; 216]);
        assert_eq!(parse(&unix), Ok(Header::Whole { len: 232, client }));
    }

    #[test]
    fn every_beginning_of_a_header_is_incomplete() {
        let bytes = header(0x21, 0x11, V4);
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(Header::Incomplete), "{end}");
        }
    }

    #[test]
    fn what_is_no_header_is_refused_at_once() {
        for bytes in [
            b"\x10".to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 12345 1883\r\n".to_vec(),
            header(0x31, 0x11, V4),
            header(0x22, 0x11, V4),
            header(0x21, 0x51, V4),
            header(0x21, 0x11, &V4[..11]),
            header(0x21, 0x21, V4),
            header(0x21, 0x31, &[0; 215]),
            header(0x21, 0x11, &[0; HEADER_BYTES_MAX]),
        ] {
            assert!(parse(&bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_tlv_that_is_cut_short_is_refused_by_name() {
        let cut = Err("the PROXY protocol header ends within a TLV");
        for tlvs in [
            &b"\x04"[..],
            b"\x04\0",
            b"\x04\0\x03tl",
            b"\x04\0\x02tl\x04",
            b"\x04\xff\xff",
        ] {
            for (family, addresses) in [(0x11, 12), (0x21, 36), (0x31, 216)] {
                let body = [&vec![0; addresses][..], tlvs].concat();
                assert_eq!(parse(&header(0x21, family, &body)), cut, "{tlvs:?}");
                assert!(
                    parse(&header(0x20, family, &body)).is_ok(),
                    "speaks for itself"
                );
            }
        }
        let none = [V4, b"\x04\0\0\x04\0\x01t"].concat();
        assert!(parse(&header(0x21, 0x11, &none)).is_ok());
    }
}
