//! What clients cost the loop beyond the bytes that they send: they choose the filters that are tried, and packets of a
//! few bytes may cost as much as large ones.

use std::cell::Cell;

use super::Routing;
use super::topics::{Topic, TopicId};

/// Deliveries of a record that count as much as one visited node.
const RECEIVERS_PER_WORK: u64 = 4;
/// Subscription identifiers in deliveries that count as much as one visited node.
const IDS_PER_WORK: u64 = 8;
/// As a part of what a turn may do, a visited node counts so many times as much as a unit of deliveries or packets.
const VISIT_TURN_WORK: u64 = 8;
/// With more work in one read, the other packets of a connection wait for the next turn. The unit is a visited node of
/// the subscription index: usual publishes take a few, and one for which clients have chosen filters may take thousands.
const READ_WORK_MAX: u64 = 1 << 14;
/// The same for the packets of one read, in the unit of [`PacketCost`], if few connections have something to read: about
/// a millisecond.
pub const READ_PACKETS_MAX: u64 = 1 << 14;
/// With many of them each gets its part of so much, so that all have their turn within some ten milliseconds.
const TURN_PACKETS: u64 = 1 << 17;
/// But no less than this, or reading would cost more than handling.
const READ_PACKETS_MIN: u64 = 1 << 9;

/// The work since it was last taken.
#[derive(Debug)]
pub struct Work {
    /// The cost of finding receivers, in visited nodes.
    visits: Cell<u64>,
    /// The cost of having many, in the same unit.
    deliveries: Cell<u64>,
    /// The cost of handling packets, as a part of what a turn may do.
    packets: Cell<u64>,
    /// With more of it in one read, the other packets of a connection wait.
    read_packets_max: Cell<u64>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            visits: Cell::default(),
            deliveries: Cell::default(),
            packets: Cell::default(),
            read_packets_max: Cell::new(READ_PACKETS_MAX),
        }
    }
}

/// Packets, by what handling them costs as a part of what a turn may do; a unit takes less than a tenth of a microsecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketCost {
    /// A publish, or an acknowledgement.
    Usual,
    /// A publish that is refused costs so much more.
    Refused,
    /// Any other packet.
    Other,
    /// A packet with filters, for a session with so many.
    Filters { packet: usize, session: usize },
}

impl PacketCost {
    fn work(self) -> u64 {
        match self {
            Self::Usual => 2,
            Self::Refused => 24,
            Self::Other => 8,
            Self::Filters { packet, session } => {
                // Counting the bytes of a session visits all its filters.
                packet as u64 * 64 + session as u64 / 4
            }
        }
    }
}

/// What it takes to deliver a record to so many receivers, with so many subscription identifiers together.
pub fn work_of_deliveries(receivers: usize, ids: usize) -> u64 {
    receivers as u64 / RECEIVERS_PER_WORK + ids as u64 / IDS_PER_WORK
}

/// About how many identifiers are in this work of delivering to so many receivers.
pub fn ids_of(work: u64, receivers: usize) -> usize {
    let of_ids = work.saturating_sub(receivers as u64 / RECEIVERS_PER_WORK);
    usize::try_from(of_ids * IDS_PER_WORK).unwrap_or(usize::MAX)
}

impl Routing {
    pub fn add_work(&self, work: u64) {
        let visits = &self.work.visits;
        visits.set(visits.get().saturating_add(work));
    }

    /// The work since it was last taken, in visited nodes of the index. Clients choose the filters, so finding the
    /// receivers of one topic may take a thousand times as long as usual.
    #[inline]
    pub fn work(&self) -> u64 {
        self.work.visits.get() + self.work.deliveries.get()
    }

    /// The same as a part of what a turn may do, with the packets. A turn makes very many deliveries, since each
    /// connection is written to once, but tries fewer filters.
    #[inline]
    pub fn turn_work(&self) -> u64 {
        let Work {
            visits,
            deliveries,
            packets,
            ..
        } = &self.work;
        visits.get() * VISIT_TURN_WORK + deliveries.get() + packets.get()
    }

    /// Divides what a turn may do among so many connections.
    pub fn share_turn(&self, connections: usize) {
        let share = TURN_PACKETS / (connections as u64).max(1);
        let share = share.clamp(READ_PACKETS_MIN, READ_PACKETS_MAX);
        self.work.read_packets_max.set(share);
    }

    /// Whether the other packets of a read have to wait.
    #[inline]
    pub fn has_read_enough(&self) -> bool {
        self.work() > READ_WORK_MAX || self.work.packets.get() > self.work.read_packets_max.get()
    }

    pub fn take_work(&self) -> u64 {
        self.work.packets.take();
        self.work.visits.take() + self.work.deliveries.take()
    }

    #[inline]
    pub fn charge_packet(&self, cost: PacketCost) {
        let packets = &self.work.packets;
        packets.set(packets.get() + cost.work());
    }

    /// Counts that a record of this topic will be delivered.
    #[inline]
    pub fn charge_record(&self, id: TopicId) {
        let work = self.topic(id).map_or(0, Topic::delivery_work);
        let deliveries = &self.work.deliveries;
        deliveries.set(deliveries.get() + work);
    }
}
