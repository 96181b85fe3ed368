//! The FIFO of acknowledgements alone: what leaves when, in ranges, with offsets and as refusals.

use super::*;

struct SettledView([u64; 2], u64);
impl Settled for SettledView {
    fn tickets(&self, partition: PartitionIndex) -> Ticket {
        Ticket(self.0[usize::from(partition.0)])
    }
    fn state(&self) -> Offset {
        Offset(self.1)
    }
    fn commit_seq(&self) -> CommitSeq {
        CommitSeq(self.1)
    }
}
const A: PartitionIndex = PartitionIndex(0);
const B: PartitionIndex = PartitionIndex(1);
const OK: ReasonCode = ReasonCode::Success;

fn ids(fifo: &mut AckFifo, marks: &SettledView) -> Vec<u16> {
    let mut ids = Vec::new();
    while let Some(reply) = fifo.pop_ready(marks) {
        match reply {
            Reply::Acks {
                packet_id, count, ..
            } => {
                assert!(count > 0, "nothing is taken that is not ready");
                ids.extend(ids_from(packet_id, count));
            }
            Reply::Ack { packet_id, .. }
            | Reply::Located { packet_id, .. }
            | Reply::Pubcomp { packet_id, .. } => ids.push(packet_id),
            Reply::Packet { .. } => ids.push(0),
            Reply::Close(_) => ids.push(u16::MAX),
        }
    }
    ids
}

#[test]
fn an_acknowledgement_continues_a_range_only_of_its_own_kind_place_and_reason() {
    let no = ReasonCode::NoMatchingSubscribers;
    for (kind, partition, ticket, packet_id, reason, entries) in [
        (AckKind::Puback, A, 5, 8, OK, 1),
        (AckKind::Pubrec, A, 5, 8, OK, 2),
        (AckKind::Puback, B, 5, 8, OK, 2),
        (AckKind::Puback, A, 6, 8, OK, 2),
        (AckKind::Puback, A, 5, 9, OK, 2),
        (AckKind::Puback, A, 5, 8, no, 2),
    ] {
        let mut fifo = AckFifo::default();
        fifo.push_ack(AckKind::Puback, A, Ticket(4), 7, OK);
        fifo.push_ack(kind, partition, Ticket(ticket), packet_id, reason);
        let what = format!("{kind:?} {partition:?} {ticket} {packet_id} {reason:?}");
        assert_eq!(fifo.len(), entries, "{what}");
        assert_eq!(
            ids(&mut fifo, &SettledView([9, 9], 0)),
            [7, packet_id],
            "{what}"
        );
    }
}

#[test]
fn nothing_leaves_before_it_is_settled_or_before_what_arrived_earlier() {
    let mut fifo = AckFifo::default();
    fifo.push_ack(AckKind::Puback, A, Ticket(0), 1, OK);
    fifo.push_ack(AckKind::Puback, B, Ticket(0), 2, OK);
    fifo.push(Reply::Ack {
        kind: AckKind::Puback,
        packet_id: 3,
        reason: ReasonCode::QuotaExceeded,
    });
    fifo.push(Reply::Packet {
        after: Some(Offset(7)),
        kind: PacketKind::Suback,
        bytes: Box::new([]),
    });
    assert!(ids(&mut fifo, &SettledView([0, 1], 8)).is_empty());
    assert_eq!(ids(&mut fifo, &SettledView([1, 0], 8)), [1]);
    assert_eq!(ids(&mut fifo, &SettledView([1, 1], 6)), [2, 3]);
    assert_eq!(ids(&mut fifo, &SettledView([1, 1], 7)), [0]);
}

#[test]
fn consecutive_acknowledgements_are_one_entry_and_leave_in_parts() {
    let mut fifo = AckFifo::default();
    for n in 0..100 {
        fifo.push_ack(AckKind::Puback, A, Ticket(u64::from(n)), n + 1, OK);
    }
    assert_eq!(fifo.len(), 1);
    assert_eq!(
        ids(&mut fifo, &SettledView([40, 0], 0)),
        (1..=40).collect::<Vec<_>>()
    );
    assert_eq!(
        ids(&mut fifo, &SettledView([100, 0], 0)),
        (41..=100).collect::<Vec<_>>()
    );
    assert!(fifo.is_empty());
}

#[test]
fn the_last_packet_id_is_refused_like_every_other() {
    let no = ReasonCode::ImplementationSpecificError;
    let located = |packet_id, ticket| Reply::Located {
        kind: AckKind::Puback,
        ticket: Ticket(ticket),
        partition: A,
        packet_id,
        reason: OK,
        offset: None,
    };
    let mut fifo = AckFifo::default();
    fifo.push_ack(AckKind::Puback, A, Ticket(0), u16::MAX - 1, OK);
    fifo.push_ack(AckKind::Puback, A, Ticket(1), u16::MAX, OK);
    assert_eq!(fifo.len(), 1, "it continues a range");
    fifo.push_ack(AckKind::Puback, A, Ticket(2), 1, OK);
    fifo.push(located(u16::MAX, 3));
    fifo.push(located(1, 4));
    fifo.refuse(A, Ticket(1), no, true);
    let mut refused = Vec::new();
    let mut stood = Vec::new();
    while let Some(reply) = fifo.pop_ready(&SettledView([9, 0], 0)) {
        match reply {
            Reply::Ack {
                packet_id, reason, ..
            } => refused.push((packet_id, reason)),
            Reply::Acks {
                packet_id, count, ..
            } => stood.extend(ids_from(packet_id, count)),
            other => panic!("{other:?} stands for a record that is not there"),
        }
    }
    assert_eq!(stood, [u16::MAX - 1]);
    assert_eq!(refused, [u16::MAX, 1, u16::MAX, 1].map(|id| (id, no)));
}

#[test]
fn refused_tickets_become_refusals_and_older_ones_do_not() {
    let mut fifo = AckFifo::default();
    fifo.push_ack(AckKind::Puback, A, Ticket(4), 4, OK);
    fifo.push_ack(AckKind::Puback, B, Ticket(5), 5, OK);
    fifo.push_ack(AckKind::Puback, A, Ticket(5), 6, OK);
    fifo.refuse(A, Ticket(5), ReasonCode::QuotaExceeded, true);
    assert_eq!(ids(&mut fifo, &SettledView([5, 6], 0)), [4, 5, 6]);
    fifo.push_ack(AckKind::Puback, A, Ticket(6), 7, OK);
    fifo.push_ack(AckKind::Puback, A, Ticket(7), 8, OK);
    fifo.refuse(A, Ticket(7), ReasonCode::QuotaExceeded, false);
    assert_eq!(
        ids(&mut fifo, &SettledView([7, 0], 0)),
        [7, u16::MAX],
        "a range is cut where the refusal begins"
    );
}

#[test]
fn a_refusal_in_one_partition_leaves_the_ranges_of_the_others_whole() {
    for can_refuse in [true, false] {
        let mut fifo = AckFifo::default();
        fifo.push_ack(AckKind::Puback, B, Ticket(7), 1, OK);
        fifo.push_ack(AckKind::Puback, B, Ticket(8), 2, OK);
        fifo.refuse(A, Ticket(8), ReasonCode::QuotaExceeded, can_refuse);
        let range = fifo.pop_ready(&SettledView([0, 9], 0));
        let is_whole = matches!(
            range,
            Some(Reply::Acks {
                packet_id: 1,
                count: 2,
                ..
            })
        );
        assert!(is_whole, "{range:?}");
        assert!(fifo.is_empty());
    }
}

fn located(partition: PartitionIndex, ticket: u64) -> Reply {
    Reply::Located {
        kind: AckKind::Puback,
        ticket: Ticket(ticket),
        partition,
        packet_id: ticket as u16,
        reason: OK,
        offset: None,
    }
}

/// Packet ids and offsets of the replies that leave; `None` for a refusal.
fn places(fifo: &mut AckFifo, marks: &SettledView) -> Vec<(u16, Option<u64>)> {
    let mut places = Vec::new();
    while let Some(reply) = fifo.pop_ready(marks) {
        places.push(match reply {
            Reply::Located {
                packet_id, offset, ..
            } => (packet_id, Some(offset.expect("it was located").0)),
            Reply::Ack { packet_id, .. } => (packet_id, None),
            other => panic!("{other:?}"),
        });
    }
    places
}

#[test]
fn an_acknowledgement_with_a_place_names_that_of_its_own_ticket_and_leaves_once_it_is_settled() {
    let mut fifo = AckFifo::default();
    for (partition, ticket) in [(A, 4), (B, 15), (A, 5), (A, 6)] {
        fifo.push(located(partition, ticket));
    }
    fifo.locate(A, Ticket(5), Offset(100));
    fifo.locate(A, Ticket(4), Offset(900));
    fifo.locate(B, Ticket(15), Offset(7));
    assert_eq!(places(&mut fifo, &SettledView([4, 15], 0)), []);
    assert_eq!(
        places(&mut fifo, &SettledView([5, 15], 0)),
        [(4, Some(900))]
    );
    let rest = [(15, Some(7)), (5, Some(100)), (6, Some(101))];
    assert_eq!(places(&mut fifo, &SettledView([7, 16], 0)), rest);
}

#[test]
fn of_those_with_a_place_only_refused_tickets_become_refusals() {
    let mut fifo = AckFifo::default();
    for (partition, ticket) in [(A, 4), (B, 15), (A, 5), (A, 6)] {
        fifo.push(located(partition, ticket));
    }
    fifo.locate(A, Ticket(4), Offset(900));
    fifo.locate(B, Ticket(15), Offset(7));
    fifo.refuse(A, Ticket(5), ReasonCode::QuotaExceeded, true);
    let all = [(4, Some(900)), (15, Some(7)), (5, None), (6, None)];
    assert_eq!(places(&mut fifo, &SettledView([5, 16], 0)), all);
}

#[test]
fn a_range_of_earlier_tickets_is_as_long_after_a_refusal_as_before() {
    let mut fifo = AckFifo::default();
    fifo.push_ack(AckKind::Puback, A, Ticket(4), 4, OK);
    fifo.push_ack(AckKind::Puback, A, Ticket(5), 5, OK);
    fifo.refuse(A, Ticket(20), ReasonCode::QuotaExceeded, true);
    assert_eq!(ids(&mut fifo, &SettledView([30, 0], 0)), [4, 5]);
}

#[test]
fn a_pubcomp_leaves_once_the_release_is_durable() {
    let mut fifo = AckFifo::default();
    fifo.push(Reply::Pubcomp {
        packet_id: 9,
        after: CommitSeq(3),
    });
    assert_eq!(ids(&mut fifo, &SettledView([0, 0], 2)), [0_u16; 0]);
    assert_eq!(ids(&mut fifo, &SettledView([0, 0], 3)), [9]);
}
