//! The acknowledgements that a connection still has to send, in the order in which the packets arrived.
//!
//! One FIFO per connection, refusals included. An entry leaves when it is ready and all entries before it have left. An
//! entry becomes ready when its partition settles its ticket, or when the high watermark of the internal partition
//! passes its offset. The mqtt crate writes the bytes; this file only decides what is sent and when.

use std::collections::VecDeque;

use headwater_log::Offset;
use headwater_mqtt::ReasonCode;

use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::ids::{CommitSeq, PartitionIndex, Ticket};

/// How a publish is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind {
    /// QoS 1.
    Puback,
    /// QoS 2.
    Pubrec,
}

/// A reply that waits to be sent.
#[derive(Debug)]
pub enum Reply {
    /// Acknowledgements of consecutive packet ids for consecutive tickets of one partition.
    Acks {
        kind: AckKind,
        first: Ticket,
        partition: PartitionIndex,
        packet_id: u16,
        count: u16,
        reason: ReasonCode,
    },
    /// An acknowledgement that tells the publisher its offset. The offset is known once the append was accepted.
    Located {
        kind: AckKind,
        ticket: Ticket,
        partition: PartitionIndex,
        packet_id: u16,
        reason: ReasonCode,
        offset: Option<Offset>,
    },
    /// An acknowledgement that waits only for its turn: a refusal, or a publish that a rule drops.
    Ack {
        kind: AckKind,
        packet_id: u16,
        reason: ReasonCode,
    },
    /// A PUBCOMP. It waits until the release of its packet id is durable.
    Pubcomp { packet_id: u16, after: CommitSeq },
    /// An encoded packet that waits until the internal partition is durable up to `after`.
    Packet {
        after: Option<Offset>,
        kind: PacketKind,
        bytes: Box<[u8]>,
    },
    /// Close the connection once all entries before this one have left.
    Close(ReasonCode),
}

/// What starts when an encoded packet leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// Deliveries may begin.
    Connack,
    /// Retained values and replays may begin.
    Suback,
    Other,
}

/// How far the log is settled, as the acknowledgements see it.
pub trait Settled {
    fn tickets(&self, partition: PartitionIndex) -> Ticket;
    fn state(&self) -> Offset;
    /// QoS 2 state changes up to this commit are durable.
    fn commit_seq(&self) -> CommitSeq;
}

#[derive(Debug, Default)]
pub struct AckFifo {
    replies: LazyBox<VecDeque<Reply>>,
}

impl AckFifo {
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// The number of entries, which is what takes memory: a range of acknowledgements is one entry.
    pub fn len(&self) -> usize {
        self.replies.len()
    }

    /// Queues the acknowledgement of a staged publish. It joins the last range if it continues that range.
    #[inline]
    pub fn push_ack(
        &mut self,
        kind: AckKind,
        partition: PartitionIndex,
        ticket: Ticket,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        if let Some(Reply::Acks {
            kind: same_kind,
            first,
            partition: same,
            packet_id: id,
            count,
            reason: code,
        }) = self.replies.back_mut()
            && *same_kind == kind
            && *same == partition
            && first.0 + u64::from(*count) == ticket.0
            && u32::from(*id) + u32::from(*count) == u32::from(packet_id)
            && *code == reason
        {
            *count += 1;
            return;
        }
        self.push(Reply::Acks {
            kind,
            first: ticket,
            partition,
            packet_id,
            count: 1,
            reason,
        });
    }

    pub fn push(&mut self, reply: Reply) {
        self.replies.push_back(reply);
    }

    /// Takes the front if it may leave. From a range it takes the settled part.
    #[inline]
    pub fn pop_ready(&mut self, settled: &impl Settled) -> Option<Reply> {
        if self.replies.is_empty() {
            return None;
        }
        match self.replies.front_mut()? {
            Reply::Acks {
                kind,
                first,
                partition,
                packet_id,
                count,
                reason,
            } => {
                let ready = settled
                    .tickets(*partition)
                    .0
                    .saturating_sub(first.0)
                    .min(u64::from(*count)) as u16;
                if ready == 0 {
                    return None;
                }
                if ready < *count {
                    let part = Reply::Acks {
                        kind: *kind,
                        first: *first,
                        partition: *partition,
                        packet_id: *packet_id,
                        count: ready,
                        reason: *reason,
                    };
                    first.0 += u64::from(ready);
                    *packet_id += ready;
                    *count -= ready;
                    return Some(part);
                }
            }
            Reply::Located {
                ticket, partition, ..
            } => {
                if settled.tickets(*partition) <= *ticket {
                    return None;
                }
            }
            Reply::Packet {
                after: Some(offset),
                ..
            } => {
                if settled.state() < *offset {
                    return None;
                }
            }
            Reply::Pubcomp { after, .. } => {
                if settled.commit_seq() < *after {
                    return None;
                }
            }
            Reply::Ack { .. } | Reply::Packet { after: None, .. } | Reply::Close(_) => {}
        }
        self.replies.pop_front()
    }

    /// Sets the offsets of the entries that report them, for the tickets from `first` on.
    pub fn locate(&mut self, partition: PartitionIndex, first: Ticket, base: Offset) {
        for reply in self.replies.iter_mut() {
            if let Reply::Located {
                ticket,
                partition: of,
                offset,
                ..
            } = reply
                && *of == partition
                && *ticket >= first
                && offset.is_none()
            {
                *offset = Some(Offset(base.0 + (ticket.0 - first.0)));
            }
        }
    }

    /// Turns the entries of refused tickets (from `first` on) into refusals. If the protocol version cannot express a
    /// refusal, the entry closes the connection.
    pub fn refuse(
        &mut self,
        partition: PartitionIndex,
        first: Ticket,
        reason: ReasonCode,
        can_refuse: bool,
    ) {
        let mut left = VecDeque::with_capacity(self.replies.len());
        for mut reply in self.replies.drain(..) {
            let (kind, packet_id, count, kept) = match &mut reply {
                Reply::Acks {
                    kind,
                    first: at,
                    partition: of,
                    packet_id,
                    count,
                    ..
                } if *of == partition => {
                    // A range may begin with tickets of an earlier append; these stay.
                    let kept = first.0.saturating_sub(at.0).min(u64::from(*count)) as u16;
                    let all = std::mem::replace(count, kept);
                    (*kind, *packet_id, all, kept)
                }
                Reply::Located {
                    kind,
                    ticket,
                    partition: of,
                    packet_id,
                    ..
                } if *of == partition && *ticket >= first => (*kind, *packet_id, 1, 0),
                _ => (AckKind::Puback, 0, 0, 0),
            };
            let refused = ids_from(packet_id, count).skip(usize::from(kept));
            let keeps = match &reply {
                Reply::Acks { count, .. } => *count > 0,
                _ => refused.len() == 0,
            };
            if keeps {
                left.push_back(reply);
            }
            if refused.len() == 0 {
                continue;
            }
            if !can_refuse {
                left.push_back(Reply::Close(reason));
                break;
            }
            left.extend(refused.map(|packet_id| Reply::Ack {
                kind,
                packet_id,
                reason,
            }));
        }
        self.replies = left.into();
    }

    /// Frees the memory of an empty FIFO.
    pub fn shrink(&mut self) {
        self.replies.trim();
    }
}

/// Consecutive packet ids. A `u16` range cannot end behind 65,535, the last packet id.
fn ids_from(first: u16, count: u16) -> impl ExactSizeIterator<Item = u16> {
    (0..count).map(move |place| first + place)
}

#[cfg(test)]
#[path = "ack_tests.rs"]
mod tests;
