//! The values of the state store: sessions, cursors, groups, retained messages, wills.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::stored::{
    cursors, decode, encode, from_hex, received, received_mark, retained, sent, session, share,
    to_hex, will,
};
use crate::service::groups::group;

/// What was read is written, and read again to the same bytes.
fn read<T: Serialize + DeserializeOwned>(value: &[u8]) -> Option<T> {
    let read: T = decode(value).ok()?;
    let written = encode(&read);
    let again: T = decode(&written).expect("what was written is read");
    assert_eq!(encode(&again), written);
    Some(read)
}

fn hex(text: &str) {
    if let Some(bytes) = from_hex(text) {
        assert_eq!(to_hex(&bytes), text.to_lowercase());
    }
}

/// The first byte chooses the kind of value.
pub fn stored(input: &[u8]) {
    let Some((kind, value)) = input.split_first() else {
        return;
    };
    match kind % 9 {
        0 => drop(read::<cursors::Cursors>(value)),
        1 => drop(read::<received::Received>(value)),
        2 => drop(read::<received_mark::Mark>(value)),
        3 => {
            if let Some(message) = read::<retained::Value>(value) {
                hex(&message.properties);
                hex(&message.payload);
            }
        }
        4 => drop(read::<sent::Sent>(value)),
        5 => drop(read::<session::Session>(value)),
        6 => {
            for cursor in read::<share::Group>(value)
                .iter()
                .flat_map(|group| group.places.values())
            {
                let ranges = cursor.ranges();
                assert!(
                    ranges
                        .iter()
                        .all(|(from, to)| from <= to && *from >= cursor.low)
                );
                assert!(ranges.is_sorted());
            }
        }
        7 => {
            if let Some(will) = read::<will::Will>(value) {
                hex(&will.properties);
                hex(&will.payload);
            }
        }
        _ => drop(read::<group::Group>(value)),
    }
}
