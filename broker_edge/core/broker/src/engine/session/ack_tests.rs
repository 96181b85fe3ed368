//! The FIFO of acknowledgements alone: what leaves when, in ranges, with offsets and as refusals.

use super::*;
use crate::engine::ids::{CommitSeq, PartitionIndex};

/// The newest settled commits of the partitions.
type Settled = [u64; 3];
const A: usize = 0;
const B: usize = 1;
const STATE: usize = 2;
const OK: ReasonCode = ReasonCode::Success;

fn commit(partition: usize, seq: u64) -> Commit {
    Commit {
        partition: PartitionIndex(partition as u16),
        seq: CommitSeq(seq),
    }
}

fn pop(fifo: &mut AckFifo, settled: Settled) -> Option<Reply> {
    fifo.pop_ready(|after| settled[after.partition.index()] >= after.seq.0)
}

fn push(fifo: &mut AckFifo, partition: usize, seq: u64, packet_id: u16) {
    let ack = Acks::one(AckKind::Puback, packet_id, OK);
    fifo.push_ack(commit(partition, seq), ack);
}

fn ids_of(acks: Acks) -> impl Iterator<Item = u16> {
    (0..acks.count).map(move |place| acks.packet_id + place)
}

fn ids(fifo: &mut AckFifo, settled: Settled) -> Vec<u16> {
    let mut ids = Vec::new();
    while let Some(reply) = pop(fifo, settled) {
        match reply.what {
            What::Acks(acks) | What::Located { ack: acks, .. } => {
                assert!(acks.count > 0, "nothing is taken that is not ready");
                ids.extend(ids_of(acks));
            }
            What::Packet(..) => ids.push(0),
            What::Close(_) => ids.push(u16::MAX),
        }
    }
    ids
}

#[test]
fn an_acknowledgement_continues_a_range_only_of_its_own_kind_commit_and_reason() {
    let no = ReasonCode::NoMatchingSubscribers;
    for (kind, partition, seq, packet_id, reason, entries) in [
        (AckKind::Puback, A, 4, 8, OK, 1),
        (AckKind::Pubrec, A, 4, 8, OK, 2),
        (AckKind::Puback, B, 4, 8, OK, 2),
        (AckKind::Puback, A, 5, 8, OK, 2),
        (AckKind::Puback, A, 4, 9, OK, 2),
        (AckKind::Puback, A, 4, 8, no, 2),
    ] {
        let mut fifo = AckFifo::default();
        push(&mut fifo, A, 4, 7);
        let ack = Acks::one(kind, packet_id, reason);
        fifo.push_ack(commit(partition, seq), ack);
        let what = format!("{kind:?} {partition:?} {seq} {packet_id} {reason:?}");
        assert_eq!(fifo.len(), entries, "{what}");
        assert_eq!(ids(&mut fifo, [9, 9, 0]), [7, packet_id], "{what}");
    }
}

#[test]
fn nothing_leaves_before_it_is_settled_or_before_what_arrived_earlier() {
    let mut fifo = AckFifo::default();
    push(&mut fifo, A, 1, 1);
    push(&mut fifo, B, 1, 2);
    let refused = Acks::one(AckKind::Puback, 3, ReasonCode::QuotaExceeded);
    fifo.push_ack(Commit::DURABLE, refused);
    let suback = What::Packet(PacketKind::Suback, Box::new([]));
    fifo.push(commit(STATE, 7), suback);
    assert!(ids(&mut fifo, [0, 1, 8]).is_empty());
    assert_eq!(ids(&mut fifo, [1, 0, 8]), [1]);
    assert_eq!(ids(&mut fifo, [1, 1, 6]), [2, 3]);
    assert_eq!(ids(&mut fifo, [1, 1, 7]), [0]);
}

#[test]
fn consecutive_acknowledgements_of_an_append_are_one_entry() {
    let mut fifo = AckFifo::default();
    for n in 0..100 {
        push(&mut fifo, A, if n < 40 { 1 } else { 2 }, n + 1);
    }
    assert_eq!(fifo.len(), 2);
    assert_eq!(ids(&mut fifo, [1, 0, 0]), (1..=40).collect::<Vec<_>>());
    assert_eq!(ids(&mut fifo, [2, 0, 0]), (41..=100).collect::<Vec<_>>());
    assert!(fifo.is_empty());
}

fn push_located(fifo: &mut AckFifo, partition: usize, seq: u64, index: u32, packet_id: u16) {
    let ack = Acks::one(AckKind::Puback, packet_id, OK);
    let base = None;
    fifo.push(commit(partition, seq), What::Located { ack, index, base });
}

#[test]
fn the_last_packet_id_is_refused_like_every_other() {
    let no = ReasonCode::ImplementationSpecificError;
    let mut fifo = AckFifo::default();
    push(&mut fifo, A, 1, u16::MAX - 2);
    push(&mut fifo, A, 2, u16::MAX - 1);
    push(&mut fifo, A, 2, u16::MAX);
    assert_eq!(fifo.len(), 2, "it continues a range");
    push(&mut fifo, A, 2, 1);
    push_located(&mut fifo, A, 2, 3, u16::MAX);
    push_located(&mut fifo, A, 2, 4, 1);
    fifo.refuse(commit(A, 2), no, true);
    let mut refused = Vec::new();
    let mut stood = Vec::new();
    while let Some(reply) = pop(&mut fifo, [1, 0, 0]) {
        match reply.what {
            What::Acks(acks) if acks.reason == OK => stood.extend(ids_of(acks)),
            What::Acks(acks) => refused.extend(ids_of(acks).map(|id| (id, acks.reason))),
            other => panic!("{other:?} stands for a record that is not there"),
        }
    }
    assert_eq!(stood, [u16::MAX - 2]);
    let ids = [u16::MAX - 1, u16::MAX, 1, u16::MAX, 1];
    assert_eq!(refused, ids.map(|id| (id, no)));
}

#[test]
fn a_refused_append_becomes_refusals_and_others_do_not() {
    let mut fifo = AckFifo::default();
    push(&mut fifo, A, 4, 4);
    push(&mut fifo, B, 5, 5);
    push(&mut fifo, A, 5, 6);
    fifo.refuse(commit(A, 5), ReasonCode::QuotaExceeded, true);
    assert_eq!(ids(&mut fifo, [4, 5, 0]), [4, 5, 6]);
    push(&mut fifo, A, 6, 7);
    push(&mut fifo, A, 7, 8);
    push(&mut fifo, B, 5, 9);
    fifo.refuse(commit(A, 7), ReasonCode::QuotaExceeded, false);
    assert_eq!(
        ids(&mut fifo, [6, 5, 0]),
        [7, u16::MAX],
        "the connection closes where the refusal begins"
    );
}

#[test]
fn a_refusal_in_one_partition_leaves_the_ranges_of_the_others_whole() {
    for can_refuse in [true, false] {
        let mut fifo = AckFifo::default();
        push(&mut fifo, B, 8, 1);
        push(&mut fifo, B, 8, 2);
        for (partition, seq) in [(A, 8), (B, 7), (B, 20)] {
            let refused = commit(partition, seq);
            fifo.refuse(refused, ReasonCode::QuotaExceeded, can_refuse);
        }
        let range = pop(&mut fifo, [0, 8, 0]).map(|reply| reply.what);
        let whole = Acks {
            count: 2,
            ..Acks::one(AckKind::Puback, 1, OK)
        };
        let is_whole = matches!(range, Some(What::Acks(acks)) if acks == whole);
        assert!(is_whole, "{range:?}");
        assert!(fifo.is_empty());
    }
}

/// Packet ids and offsets of the replies that leave; `None` for a refusal.
fn places(fifo: &mut AckFifo, settled: Settled) -> Vec<(u16, Option<u64>)> {
    let mut places = Vec::new();
    while let Some(reply) = pop(fifo, settled) {
        places.push(match reply.what {
            What::Located { ack, index, base } => {
                let base = base.expect("it was located");
                (ack.packet_id, Some(base.0 + u64::from(index)))
            }
            What::Acks(acks) => {
                assert_eq!(acks.count, 1);
                (acks.packet_id, None)
            }
            other => panic!("{other:?}"),
        });
    }
    places
}

fn with_places() -> AckFifo {
    let mut fifo = AckFifo::default();
    for (partition, seq, index, packet_id) in
        [(A, 4, 7, 4), (B, 15, 0, 15), (A, 5, 0, 5), (A, 5, 1, 6)]
    {
        push_located(&mut fifo, partition, seq, index, packet_id);
    }
    fifo.locate(commit(A, 4), Offset(893));
    fifo.locate(commit(B, 15), Offset(7));
    fifo
}

#[test]
fn an_acknowledgement_with_a_place_names_that_of_its_own_record_and_leaves_once_it_is_settled() {
    let mut fifo = with_places();
    fifo.locate(commit(A, 5), Offset(100));
    assert_eq!(places(&mut fifo, [3, 15, 0]), []);
    assert_eq!(places(&mut fifo, [4, 14, 0]), [(4, Some(900))]);
    let rest = [(15, Some(7)), (5, Some(100)), (6, Some(101))];
    assert_eq!(places(&mut fifo, [5, 15, 0]), rest);
}

#[test]
fn of_those_with_a_place_only_refused_ones_become_refusals() {
    let mut fifo = with_places();
    fifo.refuse(commit(A, 5), ReasonCode::QuotaExceeded, true);
    let all = [(4, Some(900)), (15, Some(7)), (5, None), (6, None)];
    assert_eq!(places(&mut fifo, [4, 15, 0]), all);
}

#[test]
fn a_pubcomp_leaves_once_the_release_is_durable() {
    let mut fifo = AckFifo::default();
    let pubcomp = Acks::one(AckKind::Pubcomp, 9, OK);
    fifo.push_ack(commit(STATE, 3), pubcomp);
    assert_eq!(ids(&mut fifo, [0, 0, 2]), [0_u16; 0]);
    assert_eq!(ids(&mut fifo, [0, 0, 3]), [9]);
}
