//! A session: subscriptions, the window, and a place per partition. It outlives its connection when it has an expiry.
//!
//! There is no queue in it. Where it is *live* in a partition its place is the loop's, and nothing is stored; where it
//! is *behind* it has an offset of its own and reads from the log when it has room. What of it is durable, and how, is
//! in `persist`.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use headwater_log::Offset;
use headwater_mqtt::Version;
use headwater_mqtt::packet::subscribe::RetainHandling;

use crate::auth::{Access, Rights};

use super::ConnKey;
use super::connection::Will;
use super::inline_vec::InlineVec;
use super::lazy_box::{Blank, LazyBox};
use super::limits::TopicsMade;
use super::qos2_inbound::Qos2Inbound;
use super::qos2_outbound::{Assigned, WaitingIds};
use super::quotas::AccountId;
use super::receipt;
use super::retained_cursor::RetainedCursor;
use super::router::Options;
use super::shared::GroupId;
use super::stage::{PartitionIndex, Ticket};
use super::window::{Source, Window};

/// The expiry that means never.
pub const NEVER_EXPIRES: u32 = u32::MAX;

#[cfg(test)]
thread_local! {
    /// How often it was asked what a client may do.
    pub static RIGHTS_ASKED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One subscription of a session.
#[derive(Debug, Clone)]
pub struct Subscription {
    pub filter: Box<str>,
    pub options: Options,
    pub retain_handling: RetainHandling,
    /// Per partition the first offset that this subscription gets from the session's own place; what lies below was
    /// before it was made, or is replayed for it. Partitions without an entry begin at 0.
    pub since: LazyBox<Vec<(PartitionIndex, Offset)>>,
}

impl Subscription {
    pub fn begins_at(&self, partition: PartitionIndex) -> Offset {
        self.since
            .iter()
            .find(|(of, _)| *of == partition)
            .map_or(Offset(0), |(_, offset)| *offset)
    }
}

/// A partition in which the session is not part of the live stream.
#[derive(Debug, Clone, Copy)]
pub struct CatchUpCursor {
    pub partition: PartitionIndex,
    /// The next offset to look at.
    pub next: Offset,
    /// Records below are left out when they would be delivered with QoS 0: the client was away.
    pub qos0_from: Offset,
    /// Only retained values that go first hold it back: what of QoS 0 is late and finds no room is dropped, as it would
    /// be in the live stream.
    pub sheds_qos0: bool,
}

/// A subscription that reads from a place of its own until it has caught up.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Names it in the window; unique in the session while it lasts.
    pub number: u16,
    pub filter: Box<str>,
    /// Next offset per partition.
    pub cursors: Vec<(PartitionIndex, Offset)>,
    /// Where it ends, for one that had caught up before a restart: what follows came from the session's own place. Empty
    /// for one that goes on until it has caught up.
    pub until: Vec<(PartitionIndex, Offset)>,
    /// It has caught up everywhere and only waits for acknowledgements; the subscription is part of the live stream.
    pub joined: bool,
}

/// A receipt whose record is not durable yet: the cursor does not pass the command it is for.
#[derive(Debug)]
pub struct PendingReceipt {
    pub partition: PartitionIndex,
    pub offset: Offset,
    pub value: Box<[u8]>,
    /// Where the receipt is on its way into the log; nothing when it has to be staged (again).
    pub staged: Option<(PartitionIndex, Ticket)>,
}

/// A command in the window, with what its receipt will say.
#[derive(Debug)]
pub struct Command {
    pub packet_id: u16,
    pub topic: Box<str>,
    pub key: Box<[u8]>,
    pub idempotency_key: Option<Box<str>>,
}

/// What few sessions have, and most of them not for long.
#[derive(Debug, Default)]
pub struct Extras {
    /// Of the window, those that are commands for the client.
    pub commands: Vec<Command>,
    pub receipts: Vec<PendingReceipt>,
    /// What new subscriptions are owed of the retained values, in the order of the SUBSCRIBEs.
    pub retained: VecDeque<RetainedCursor>,
    /// Which records were given packet ids for QoS 2.
    pub assigned: Vec<Assigned>,
    /// Deliveries of QoS 2 whose packet ids have to be durable before they are sent.
    pub unsent: WaitingIds,
    /// PUBRELs that wait until the PUBRECs are durable.
    pub releases: WaitingIds,
    /// Shared groups that the session is in, or has deliveries of.
    groups: Vec<GroupId>,
    /// Bytes of filters, will and client id that count (`session_bytes`); few sessions have enough of them.
    pub counted_bytes: u64,
}

impl Blank for Extras {
    const BLANK: &'static Self = &Self {
        commands: Vec::new(),
        receipts: Vec::new(),
        retained: VecDeque::new(),
        assigned: Vec::new(),
        unsent: VecDeque::new(),
        releases: VecDeque::new(),
        groups: Vec::new(),
        counted_bytes: 0,
    };

    fn is_blank(&self) -> bool {
        self.commands.is_empty()
            && self.receipts.is_empty()
            && self.retained.is_empty()
            && self.assigned.is_empty()
            && self.unsent.is_empty()
            && self.releases.is_empty()
            && self.groups.is_empty()
            && self.counted_bytes == 0
    }
}

/// A session without a connection.
#[derive(Debug)]
pub struct Offline {
    /// When the connection went, in Unix microseconds.
    pub since_us: i64,
    /// When the timer of its expiry fires.
    pub expiry_due_ms: u64,
    /// The will that waits for its delay, and when it is due.
    pub will: Option<(u64, Box<Will>)>,
}

impl Offline {
    pub fn since(since_us: i64) -> Box<Self> {
        Box::new(Self {
            since_us,
            expiry_due_ms: 0,
            will: None,
        })
    }
}

#[derive(Debug)]
pub struct Session {
    pub client_id: Rc<str>,
    /// What the client of its last connection may do, and whose the session is; `None` where nobody is told apart, and for
    /// a session that was stored by a broker that did not.
    pub rights: Option<Arc<Rights>>,
    /// Where what the session has is counted; `None` where nothing is.
    pub account: Option<AccountId>,
    pub version: Version,
    /// The client's connection, if it has one.
    pub conn: Option<ConnKey>,
    /// The CONNACK has left: deliveries may go.
    pub active: bool,
    pub subscriptions: InlineVec<Subscription>,
    pub window: LazyBox<Window>,
    /// How many deliveries the client takes unacknowledged.
    pub window_max: u16,
    /// Partitions in which the session is not live.
    pub behind: LazyBox<Vec<CatchUpCursor>>,
    pub replays: LazyBox<Vec<Replay>>,
    pub next_replay: u16,
    /// Deliveries of the window from this packet id on were sent on an earlier connection and have to be sent again.
    pub resend: Option<u16>,
    /// In the list of sessions that have something to do.
    pub queued: bool,
    /// Seconds that the session outlives its connection.
    pub expiry_s: u32,
    /// The state store holds this session.
    pub stored: bool,
    /// Acknowledgements came since the last checkpoint.
    pub dirty: bool,
    /// Nothing while the client is connected.
    pub offline: Option<Box<Offline>>,
    /// The state store holds a will of this session.
    pub will_stored: bool,
    pub extras: LazyBox<Extras>,
    /// Names this session among all of the log, also among those of the same client before and after it.
    pub life: u64,
    /// A client that is back has those of before.
    pub topics_made: TopicsMade,
    /// QoS 2 publishes of the client.
    pub qos2_inbound: LazyBox<Qos2Inbound>,
    /// The stored value of `extras.assigned` and the window is old.
    pub outbound_changed: bool,
    /// `extras.assigned` no longer says what a replay that is over has delivered, so the stored cursors have to say that it is.
    pub replay_forgotten: bool,
    /// The state store holds such a value.
    pub outbound_stored: bool,
    /// In the list of sessions to write in this round.
    pub in_state_commit: bool,
    /// Its subscriptions are at rest in the router: they are counted there and not found.
    pub is_at_rest: bool,
}

impl Session {
    pub fn new(client_id: Rc<str>, version: Version, life: u64) -> Self {
        Self {
            client_id,
            rights: None,
            account: None,
            version,
            conn: None,
            active: false,
            subscriptions: InlineVec::None,
            window: LazyBox::default(),
            window_max: u16::MAX,
            behind: LazyBox::default(),
            replays: LazyBox::default(),
            next_replay: 0,
            resend: None,
            queued: false,
            expiry_s: 0,
            stored: false,
            dirty: false,
            offline: None,
            will_stored: false,
            extras: LazyBox::default(),
            life,
            topics_made: TopicsMade::default(),
            qos2_inbound: LazyBox::default(),
            outbound_changed: false,
            replay_forgotten: false,
            outbound_stored: false,
            in_state_commit: false,
            is_at_rest: false,
        }
    }

    /// Whether the client may do this with a topic (a filter, for [`Access::Subscribe`]).
    #[inline]
    pub fn may(&self, access: Access, topic: &str) -> bool {
        #[cfg(test)]
        RIGHTS_ASKED.with(|asked| asked.set(asked.get() + 1));
        self.rights
            .as_ref()
            .is_none_or(|rights| rights.may(access, topic, Some(&self.client_id)))
    }

    /// Whether a topic has commands for the client of this session, as far as anybody knows.
    #[inline]
    pub fn is_commanded_by(&self, topic: &str) -> bool {
        let client_id = &*self.client_id;
        receipt::device_of(topic) == Some(client_id)
            && self
                .rights
                .as_ref()
                .is_none_or(|rights| rights.speaks_as(client_id))
    }

    /// The user who opened the session, empty for a client without credentials; `None` when nobody was told apart.
    pub fn owner(&self) -> Option<&str> {
        let rights = self.rights.as_ref()?;
        Some(rights.user().map_or("", |user| &**user))
    }

    /// Whether the session is in a shared group.
    #[inline]
    pub fn is_member(&self) -> bool {
        !self.extras.groups.is_empty()
    }

    /// The shared groups that it is in, or has deliveries of.
    pub fn groups(&self) -> &[GroupId] {
        &self.extras.groups
    }

    pub fn join(&mut self, id: GroupId) {
        let groups = &mut self.extras.groups;
        if !groups.contains(&id) {
            groups.push(id);
        }
    }

    pub fn leave(&mut self, id: GroupId) {
        if let Some(extras) = self.extras.present_mut() {
            extras.groups.retain(|held| *held != id);
            self.extras.trim();
        }
    }

    /// Leaves all groups.
    pub fn take_groups(&mut self) -> Vec<GroupId> {
        let extras = self.extras.present_mut();
        extras.map_or_else(Vec::new, |extras| std::mem::take(&mut extras.groups))
    }

    pub fn active_conn(&self) -> Option<ConnKey> {
        if self.active { self.conn } else { None }
    }

    /// Whether the loop's pull serves this session in a partition.
    #[inline]
    pub fn is_live(&self, partition: PartitionIndex) -> bool {
        self.behind
            .iter()
            .all(|behind| behind.partition != partition)
    }

    /// Leaves the live stream: what lies from `next` on is read later.
    pub fn fall_behind(&mut self, partition: PartitionIndex, next: Offset, qos0_from: Offset) {
        if self.is_live(partition) {
            self.behind.push(CatchUpCursor {
                partition,
                next,
                qos0_from,
                sheds_qos0: false,
            });
        }
    }

    /// Leaves the live stream until the retained values that the session is owed have been sent: they are older.
    pub fn wait_for_retained(&mut self, partition: PartitionIndex, next: Offset) {
        if self.is_live(partition) {
            self.behind.push(CatchUpCursor {
                partition,
                next,
                qos0_from: Offset(0),
                sheds_qos0: true,
            });
        }
    }

    /// Whether retained values are to be sent before what is published now.
    #[inline]
    pub fn owes_retained(&self) -> bool {
        !self.extras.retained.is_empty()
    }

    /// Whether anything but the live stream waits to be sent.
    pub fn has_work(&self) -> bool {
        self.resend.is_some()
            || !self.extras.unsent.is_empty()
            || !self.behind.is_empty()
            || !self.extras.retained.is_empty()
            || self.replays.iter().any(|replay| !replay.joined)
    }

    pub fn subscription(&self, filter: &str) -> Option<&Subscription> {
        self.subscriptions
            .iter()
            .find(|subscription| &*subscription.filter == filter)
    }

    /// Whether a replay that had caught up before a restart has not caught up again.
    pub fn ends_replays(&self) -> bool {
        self.replays
            .iter()
            .any(|replay| !replay.joined && !replay.until.is_empty())
    }

    pub fn is_replaying(&self, filter: &str) -> bool {
        self.replays
            .iter()
            .any(|replay| !replay.joined && replay.until.is_empty() && &*replay.filter == filter)
    }

    /// Where the session reads a partition on; `live_at` is where the loop's pull stands.
    pub fn place(&self, partition: PartitionIndex, live_at: Offset) -> Offset {
        self.behind
            .iter()
            .find(|behind| behind.partition == partition)
            .map_or(live_at, |behind| behind.next)
    }

    /// The first offset of a partition that the session still needs: what its checkpoint says. `live_at` is where the
    /// loop's pull stands.
    pub fn cursor(&self, partition: PartitionIndex, live_at: Offset) -> Offset {
        let place = self.place(partition, live_at);
        let unacked = self.window.oldest(partition, Source::Cursor);
        let receipt = self
            .extras
            .receipts
            .iter()
            .filter(|receipt| receipt.partition == partition)
            .map(|receipt| receipt.offset);
        receipt.chain(unacked).fold(place, Offset::min)
    }

    /// The same for a replaying subscription.
    pub fn replay_cursor(&self, replay: &Replay, partition: PartitionIndex) -> Option<Offset> {
        let place = replay
            .cursors
            .iter()
            .find(|(of, _)| *of == partition)
            .map(|(_, next)| *next)?;
        let unacked = self.window.oldest(partition, Source::Replay(replay.number));
        Some(unacked.map_or(place, |offset| offset.min(place)))
    }

    /// Forgets replays that have caught up and whose deliveries are all acknowledged.
    pub fn drop_finished_replays(&mut self) {
        if self.replays.is_empty() {
            return;
        }
        let window = &self.window;
        self.replays
            .retain(|replay| !replay.joined || window.holds(Source::Replay(replay.number)));
        self.forget_assigned();
    }

    /// Forgets what was assigned for replays that are over.
    pub fn forget_assigned(&mut self) {
        let Some(extras) = self.extras.present_mut() else {
            return;
        };
        let replays = &self.replays;
        let before = extras.assigned.len();
        extras.assigned.retain(|range| match range.source {
            Source::Replay(number) => replays.iter().any(|replay| replay.number == number),
            _ => true,
        });
        self.replay_forgotten |= extras.assigned.len() < before;
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::{Inflight, InflightState};
    use super::*;

    const P: PartitionIndex = PartitionIndex(3);

    #[test]
    fn the_checkpoint_never_passes_what_is_unacknowledged_behind_or_without_its_receipt() {
        let mut session = Session::new("c".into(), Version::V5, 1);
        assert_eq!(session.cursor(P, Offset(50)), Offset(50));
        let sent = |offset, source| Inflight {
            offset: Offset(offset),
            partition: P,
            source,
            receipt: false,
        };
        let id = session
            .window
            .push(sent(40, Source::Cursor), InflightState::AwaitsPuback);
        session
            .window
            .push(sent(2, Source::Replay(0)), InflightState::AwaitsPubrec);
        session
            .window
            .push(sent(1, Source::Retained), InflightState::AwaitsPuback);
        assert_eq!(session.cursor(P, Offset(50)), Offset(40));
        session.window.ack(id);
        assert_eq!(session.cursor(P, Offset(50)), Offset(50));
        session.extras.receipts.push(PendingReceipt {
            partition: P,
            offset: Offset(40),
            value: Box::default(),
            staged: None,
        });
        assert_eq!(session.cursor(P, Offset(50)), Offset(40));
        session.extras.receipts.clear();
        session.fall_behind(P, Offset(45), Offset(0));
        assert!(!session.is_live(P) && session.is_live(PartitionIndex(2)));
        session.fall_behind(P, Offset(48), Offset(0));
        assert_eq!(
            session.cursor(P, Offset(50)),
            Offset(45),
            "the first place counts"
        );
        assert_eq!(session.cursor(PartitionIndex(2), Offset(9)), Offset(9));
    }
}
