//! The header column of a record: its headers, its MQTT 5 properties as `mqtt.*`, and its idempotency key.
//!
//! The data plane parsed the property bytes before it wrote them to the log. Bytes that do not parse here are left out.

use headwater_log::RecordView;

pub const IDEMPOTENCY_KEY: &str = "headwater.idempotency-key";

/// Calls `add` with the name and value of each header of `record`, in a fixed order.
pub fn for_each_header(record: &RecordView<'_>, add: &mut impl FnMut(&str, &[u8])) {
    for (name, value) in record.headers {
        add(name, value);
    }
    let mut properties = record.properties;
    while let Some(rest) = next_property(properties, add) {
        properties = rest;
    }
    if let Some(key) = record.idempotency_key {
        add(IDEMPOTENCY_KEY, key.as_bytes());
    }
}

/// Whether [`for_each_header`] may find a header.
pub fn has_headers(record: &RecordView<'_>) -> bool {
    !record.properties.is_empty() || record.idempotency_key.is_some() || !record.headers.is_empty()
}

/// Parses one property (MQTT 5, 2.2.2) and returns the bytes after it; `None` at the end or on malformed bytes.
fn next_property<'a>(bytes: &'a [u8], add: &mut impl FnMut(&str, &[u8])) -> Option<&'a [u8]> {
    let (id, rest) = bytes.split_first()?;
    match id {
        0x01 => {
            let (format, rest) = rest.split_first()?;
            add("mqtt.payload-format", format.to_string().as_bytes());
            Some(rest)
        }
        0x02 => {
            let (seconds, rest) = rest.split_first_chunk::<4>()?;
            add(
                "mqtt.message-expiry",
                u32::from_be_bytes(*seconds).to_string().as_bytes(),
            );
            Some(rest)
        }
        0x03 => named("mqtt.content-type", rest, add),
        0x08 => named("mqtt.response-topic", rest, add),
        0x09 => named("mqtt.correlation-data", rest, add),
        0x26 => {
            let (name, rest) = prefixed(rest)?;
            let (value, rest) = prefixed(rest)?;
            add(std::str::from_utf8(name).ok()?, value);
            Some(rest)
        }
        _ => None,
    }
}

fn named<'a>(name: &str, bytes: &'a [u8], add: &mut impl FnMut(&str, &[u8])) -> Option<&'a [u8]> {
    let (value, rest) = prefixed(bytes)?;
    add(name, value);
    Some(rest)
}

/// Bytes with a two-byte length prefix.
fn prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::next_property;

    fn headers(mut bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some(rest) = next_property(bytes, &mut |name, value| {
            found.push((name.to_owned(), value.to_vec()))
        }) {
            bytes = rest;
        }
        found
    }

    #[test]
    fn every_forwarded_property_becomes_a_header() {
        let bytes = b"\x01\x01\x02\x00\x00\x00\x3c\x03\x00\x01j\x08\x00\x01r\x09\x00\x02\x00\xff\x26\x00\x01a\x00\x01b";
        let expected: [(&str, &[u8]); 6] = [
            ("mqtt.payload-format", b"1"),
            ("mqtt.message-expiry", b"60"),
            ("mqtt.content-type", b"j"),
            ("mqtt.response-topic", b"r"),
            ("mqtt.correlation-data", b"\x00\xff"),
            ("a", b"b"),
        ];
        assert_eq!(
            headers(bytes),
            expected.map(|(name, value)| (name.to_owned(), value.to_vec()))
        );
    }

    #[test]
    fn cut_bytes_give_the_headers_before_the_cut() {
        let bytes = b"\x03\x00\x01j\x26\x00\x05ab";
        assert_eq!(
            headers(bytes),
            [("mqtt.content-type".to_owned(), b"j".to_vec())]
        );
    }
}
