//! The acknowledgements that a connection still has to send, in the order in which the packets arrived.
//!
//! One FIFO per connection, refusals included. An entry leaves when its commit is durable and all entries before it
//! have left. The mqtt crate writes the bytes; this file only decides what is sent and when.
//!
//! Who pushes an entry chooses its reason code: `protocol/publish`, `qos2/inbound`, `qos2/settle`.

use std::collections::VecDeque;

use headwater_log::Offset;
use headwater_mqtt::ReasonCode;

use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::ids::Commit;

/// What is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind {
    /// A publish of QoS 1.
    Puback,
    /// A publish of QoS 2.
    Pubrec,
    /// The release of a packet id.
    Pubcomp,
}

/// Acknowledgements of consecutive packet ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acks {
    pub kind: AckKind,
    pub packet_id: u16,
    pub count: u16,
    pub reason: ReasonCode,
}

impl Acks {
    pub fn one(kind: AckKind, packet_id: u16, reason: ReasonCode) -> Self {
        Self {
            kind,
            packet_id,
            count: 1,
            reason,
        }
    }

    fn continues(&self, before: &Self) -> bool {
        self.kind == before.kind
            && self.reason == before.reason
            && u32::from(self.packet_id) == u32::from(before.packet_id) + u32::from(before.count)
    }
}

/// What waits for a commit and for its turn.
#[derive(Debug)]
pub struct Reply {
    pub after: Commit,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Acks(Acks),
    /// An acknowledgement that tells the publisher its offset.
    Located {
        ack: Acks,
        /// The place of the record in its append.
        index: u32,
        /// The offset of the append, once it was accepted.
        base: Option<Offset>,
    },
    /// An encoded packet.
    Packet(PacketKind, Box<[u8]>),
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

    /// Queues an acknowledgement. It joins the last range if it continues that range.
    #[inline]
    pub fn push_ack(&mut self, after: Commit, ack: Acks) {
        if let Some(last) = self.replies.back_mut()
            && last.after == after
            && let What::Acks(range) = &mut last.what
            && ack.continues(range)
        {
            range.count += 1;
            return;
        }
        self.push(after, What::Acks(ack));
    }

    pub fn push(&mut self, after: Commit, what: What) {
        self.replies.push_back(Reply { after, what });
    }

    /// Takes the front if it may leave.
    #[inline]
    pub fn pop_ready(&mut self, is_settled: impl FnOnce(Commit) -> bool) -> Option<Reply> {
        if !is_settled(self.replies.front()?.after) {
            return None;
        }
        self.replies.pop_front()
    }

    /// An append was accepted: sets the offset of the entries that report it.
    pub fn locate(&mut self, commit: Commit, at: Offset) {
        for reply in self
            .replies
            .iter_mut()
            .filter(|reply| reply.after == commit)
        {
            if let What::Located { base, .. } = &mut reply.what {
                *base = Some(at);
            }
        }
    }

    /// Turns the entries of a refused append into refusals. If the protocol version cannot express a refusal, the first
    /// of them closes the connection.
    pub fn refuse(&mut self, commit: Commit, reason: ReasonCode, can_refuse: bool) {
        for at in 0..self.replies.len() {
            let Reply {
                after,
                what: What::Acks(ack) | What::Located { ack, .. },
            } = self.replies[at]
            else {
                continue;
            };
            if after != commit {
                continue;
            }
            if !can_refuse {
                self.replies.truncate(at);
                return self.push(Commit::DURABLE, What::Close(reason));
            }
            self.replies[at] = Reply {
                after: Commit::DURABLE,
                what: What::Acks(Acks { reason, ..ack }),
            };
        }
    }

    /// Frees the memory of an empty FIFO.
    pub fn shrink(&mut self) {
        self.replies.trim();
    }
}

#[cfg(test)]
#[path = "ack_tests.rs"]
mod tests;
