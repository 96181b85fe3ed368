//! Frames read back, and nothing else is accepted.

use proptest::prelude::*;

use super::*;
use crate::marks::DiskId;

fn stamps() -> impl Strategy<Value = Stamp> {
    any::<[u64; 3]>().prop_map(|[epoch, starts, follow]| Stamp {
        epoch: Epoch(epoch),
        starts: Starts(starts),
        follow: FollowNumber(follow),
    })
}

fn trusts() -> impl Strategy<Value = Trust> {
    (0..3u8).prop_map(|number| Trust::from_number(number).expect("below 3"))
}

fn tolds() -> impl Strategy<Value = Told> {
    any::<[u64; 2]>().prop_map(|[hw, start]| Told {
        high_watermark: Offset(hw),
        log_start: Offset(start),
    })
}

fn histories() -> impl Strategy<Value = History> {
    let sets = proptest::collection::btree_set(any::<u64>(), 0..4);
    (sets.clone(), sets).prop_map(|(epochs, firsts)| {
        let entries = epochs
            .into_iter()
            .map(Epoch)
            .zip(firsts.into_iter().map(Offset));
        History::new(entries.collect()).expect("both grow")
    })
}

fn few<S: Strategy>(of: S) -> impl Strategy<Value = Vec<S::Value>> {
    proptest::collection::vec(of, 0..4)
}

fn frames() -> impl Strategy<Value = Frame> {
    let name = "[a-zA-Z0-9._-]{1,63}".prop_map(|text: String| Node::new(&text).expect("a name"));
    let marks = few(any::<(u64, u64)>().prop_map(|(epoch, end)| (Epoch(epoch), Offset(end))));
    let follow_part =
        (any::<[u64; 2]>(), histories()).prop_map(|([log_start, end], history)| FollowPart {
            log_start: Offset(log_start),
            end: Offset(end),
            history,
        });
    let align_part =
        (any::<bool>(), any::<[u64; 3]>()).prop_map(|(restart, [from, log_start, hw])| AlignPart {
            restart,
            from: Offset(from),
            log_start: Offset(log_start),
            high_watermark: Offset(hw),
        });
    let synced_part = any::<(u32, u64)>()
        .prop_map(|(partition, offset)| (PartitionId(partition), Offset(offset)));
    prop_oneof![
        (
            any::<(u8, u8)>(),
            any::<[u8; 16]>(),
            name.clone(),
            name,
            any::<[u64; 3]>()
        )
            .prop_map(
                |(versions, log_id, cluster, node, [disk, starts, clock_ms])| Frame::Hello(Hello {
                    versions,
                    log_id,
                    cluster,
                    node,
                    disk: DiskId(disk),
                    starts: Starts(starts),
                    clock_ms,
                })
            ),
        (any::<[u64; 2]>(), any::<bool>(), few(tolds())).prop_map(
            |([epoch, sent_ms], is_stuck, told)| Frame::Beacon {
                epoch: Epoch(epoch),
                sent_ms,
                is_stuck,
                told
            }
        ),
        (any::<[u64; 2]>(), any::<bool>()).prop_map(|([epoch, sent_ms], reaches_etcd)| {
            Frame::BeaconAnswer {
                epoch: Epoch(epoch),
                sent_ms,
                reaches_etcd,
            }
        }),
        (stamps(), trusts(), any::<u32>(), few(follow_part)).prop_map(
            |(stamp, trust, credit_bytes, parts)| Frame::Follow {
                stamp,
                trust,
                credit_bytes,
                parts
            }
        ),
        (stamps(), any::<bool>(), few(align_part)).prop_map(|(stamp, doubt, parts)| Frame::Align {
            stamp,
            doubt,
            parts
        }),
        (
            stamps(),
            any::<u32>(),
            tolds(),
            any::<(bool, bool)>(),
            proptest::collection::vec(any::<u8>(), 0..60)
        )
            .prop_map(
                |(stamp, partition, told, (first, last), bytes)| Frame::Batches {
                    stamp,
                    partition: PartitionId(partition),
                    told,
                    edges: Edges { first, last },
                    bytes: bytes.into()
                }
            ),
        (stamps(), any::<bool>(), any::<u32>(), few(synced_part)).prop_map(
            |(stamp, has_room, credit_bytes, parts)| Frame::Synced {
                stamp,
                has_room,
                credit_bytes,
                parts
            }
        ),
        stamps().prop_map(|stamp| Frame::Sound { stamp }),
        (any::<[u64; 2]>(), any::<bool>()).prop_map(|([epoch, number], leader_resigned)| {
            Frame::Ask {
                epoch: Epoch(epoch),
                number: FollowNumber(number),
                leader_resigned,
            }
        }),
        (any::<[u64; 2]>(), trusts(), any::<bool>(), marks).prop_map(
            |([epoch, number], trust, still_led, marks)| {
                Frame::Answer {
                    epoch: Epoch(epoch),
                    number: FollowNumber(number),
                    trust,
                    still_led,
                    marks,
                }
            }
        ),
        any::<u64>().prop_map(|epoch| Frame::Refused {
            epoch: Epoch(epoch)
        }),
        any::<u64>().prop_map(|epoch| Frame::Resign {
            epoch: Epoch(epoch)
        }),
        (stamps(), any::<u32>(), any::<[u64; 2]>()).prop_map(|(stamp, partition, [from, to])| {
            Frame::Gap {
                stamp,
                partition: PartitionId(partition),
                from: Offset(from),
                to: Offset(to),
            }
        }),
    ]
}

fn addressed() -> impl Strategy<Value = Addressed> {
    (any::<u16>(), frames()).prop_map(|(shard, frame)| Addressed {
        shard: ShardId(shard),
        frame,
    })
}

fn bytes_of(addressed: &Addressed) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(addressed, &mut bytes);
    bytes
}

fn checked(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn a_frame_reads_back(one in addressed(), rest in proptest::collection::vec(any::<u8>(), 0..9)) {
        let mut bytes = bytes_of(&one);
        let whole = bytes.len();
        bytes.extend(rest);
        prop_assert_eq!(decode(&bytes, true), Ok(Decoded::Frame(one, whole)));
    }

    #[test]
    fn a_part_of_a_frame_asks_for_the_rest(one in addressed(), at in any::<prop::sample::Index>()) {
        let bytes = bytes_of(&one);
        let at = at.index(bytes.len());
        let needs = if at < 4 { HEAD_BYTES } else { bytes.len() };
        prop_assert_eq!(decode(&bytes[..at], true), Ok(Decoded::Needs(needs)));
    }

    #[test]
    fn a_changed_bit_is_never_another_frame(one in addressed(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = bytes_of(&one);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let found = decode(&bytes, true);
        prop_assert!(!matches!(found, Ok(Decoded::Frame(..))), "{:?}", found);
    }

    #[test]
    fn what_is_accepted_is_what_would_be_sent(one in addressed(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = bytes_of(&one);
        let at = 8 + at.index(bytes.len() - 8);
        bytes[at] = byte;
        let bytes = checked(bytes);
        if let Ok(Decoded::Frame(found, _)) = decode(&bytes, true) {
            prop_assert_eq!(bytes_of(&found), bytes);
        }
    }
}

#[test]
fn a_length_is_refused_before_its_bytes_are_there() {
    let too_long = (HELLO_BYTES_MAX as u32 - 3).to_le_bytes();
    assert!(matches!(
        decode(&too_long, false),
        Err(FrameError::Length {
            bytes_max: HELLO_BYTES_MAX,
            ..
        })
    ));
    assert_eq!(
        decode(&too_long, true),
        Ok(Decoded::Needs(HELLO_BYTES_MAX + 1))
    );
    assert!(matches!(
        decode(&[0xff; 4], true),
        Err(FrameError::Length { .. })
    ));
    assert!(matches!(
        decode(&[7, 0, 0, 0], true),
        Err(FrameError::Length { .. })
    ));
}

#[test]
fn a_count_is_compared_with_the_bytes_before_it_is_allocated() {
    let sound = Addressed {
        shard: ShardId(0),
        frame: Frame::Beacon {
            epoch: Epoch(1),
            sent_ms: 2,
            is_stuck: false,
            told: vec![],
        },
    };
    let mut bytes = bytes_of(&sound);
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    let wrong = FrameError::Count {
        kind: 2,
        count: u32::MAX,
        count_max: 0,
    };
    assert_eq!(decode(&checked(bytes), true), Err(wrong));
}

#[test]
fn each_mistake_has_its_own_error() {
    let frame = bytes_of(&Addressed {
        shard: ShardId(3),
        frame: Frame::Refused { epoch: Epoch(9) },
    });
    let changed = |at: usize, byte: u8| {
        let mut bytes = frame.clone();
        bytes[at] = byte;
        decode(&checked(bytes), true)
    };
    assert_eq!(changed(8, 77), Err(FrameError::Kind(77)));
    assert_eq!(changed(9, 2), Err(FrameError::Version(2)));
    assert_eq!(decode(&frame, false), Err(FrameError::NotHello(11)));
    let mut longer = frame.clone();
    longer.push(0);
    assert_eq!(
        decode(&checked(longer), true),
        Err(FrameError::Rest { kind: 11, bytes: 1 })
    );
    assert_eq!(
        decode(&checked(frame[..19].to_vec()), true),
        Err(FrameError::Short { kind: 11 })
    );
}

#[test]
fn a_hello_fits_its_limit() {
    let name = Node::new(&"n".repeat(Node::BYTES_MAX)).expect("a name");
    let hello = Hello {
        versions: (1, 1),
        log_id: [1; 16],
        cluster: name.clone(),
        node: name,
        disk: DiskId(1),
        starts: Starts(1),
        clock_ms: 1,
    };
    assert!(
        bytes_of(&Addressed {
            shard: ShardId(0),
            frame: Frame::Hello(hello)
        })
        .len()
            <= HELLO_BYTES_MAX
    );
}
