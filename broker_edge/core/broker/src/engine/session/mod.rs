//! A session: subscriptions, the window, and a cursor per partition. It outlives its connection if it has an expiry.
//!
//! It has no queue. In a partition where it is *live* its position is the loop's, and nothing is stored. Where it is
//! *behind* it has its own offset and reads from the log when it has room. What of it is stored is in `session_store`.
//!
//! Its size is limited (I7, `tests/hostile.rs`): a field that few sessions use belongs in `Extras`.

pub mod ack;
pub mod aliases;
mod assigned;
pub mod auth;
pub mod command;
pub mod connection;
pub mod cursors;
pub mod limits;
pub mod out;
pub mod pauses;
pub mod received;
pub mod replay;
pub mod window;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use headwater_log::Offset;
use headwater_mqtt::packet::subscribe::RetainHandling;
use headwater_mqtt::{PacketId, Version};

use crate::auth::{Access, Rights};

use super::ConnKey;
use super::containers::inline_vec::InlineVec;
use super::containers::lazy_box::{Blank, LazyBox};
use super::ids::{Commit, GroupId, PartitionIndex};
use super::quotas::AccountId;
use super::retained::retained_cursor::RetainedCursor;
use super::routing::router::Options;

pub use assigned::Assigned;
use command::Command;
use connection::Will;
use cursors::Cursors;
use limits::TopicsMade;
use received::Qos2Inbound;
use replay::Replay;
use window::{Source, Window};

/// The expiry that means never.
pub const NEVER_EXPIRES: u32 = u32::MAX;
/// About what a subscription takes in the stored value, without its filter.
const STORED_SUBSCRIPTION_BYTES: usize = 200;

#[cfg(test)]
thread_local! {
    /// Counts the checks of rights, for tests.
    pub static RIGHTS_ASKED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One subscription of a session.
#[derive(Debug, Clone)]
pub struct Subscription {
    pub filter: Box<str>,
    pub options: Options,
    pub retain_handling: RetainHandling,
    /// Per partition, the first offset that this subscription gets from the session's own cursor; records below were
    /// published before the subscription, or are replayed for it. Partitions without an entry begin at 0.
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

/// A receipt whose record is not durable yet: the cursor does not pass its command.
#[derive(Debug)]
pub struct PendingReceipt {
    pub partition: PartitionIndex,
    pub offset: Offset,
    pub value: Box<[u8]>,
    /// The staged record; `None` if the receipt has to be staged (again).
    pub staged: Option<Commit>,
}

/// State that few sessions have, most of them not for long.
#[derive(Debug, Default)]
pub struct Extras {
    /// The commands for the client in the window.
    pub commands: Vec<Command>,
    pub receipts: Vec<PendingReceipt>,
    /// Retained messages that new subscriptions still have to get, in the order of the SUBSCRIBEs.
    pub retained: VecDeque<RetainedCursor>,
    /// The records that were given packet ids for QoS 2.
    pub assigned: Vec<Assigned>,
    /// Shared groups that the session is a member of, or has deliveries of.
    groups: Vec<GroupId>,
    pub replays: Vec<Replay>,
    /// The number of the next replay. It stays when the replays are gone, whose deliveries may still be in the window.
    pub next_replay: u16,
    /// Counted bytes of filters, will and client id (`session_bytes`); zero for most sessions.
    pub counted_bytes: u64,
}

impl Extras {
    /// Whether retained messages or replays have to be sent.
    #[inline]
    fn have_work(&self) -> bool {
        !self.retained.is_empty() || self.replays.iter().any(|replay| !replay.joined)
    }
}

impl Blank for Extras {
    const BLANK: &'static Self = &Self {
        commands: Vec::new(),
        receipts: Vec::new(),
        retained: VecDeque::new(),
        assigned: Vec::new(),
        groups: Vec::new(),
        replays: Vec::new(),
        next_replay: 0,
        counted_bytes: 0,
    };

    fn is_blank(&self) -> bool {
        self.commands.is_empty()
            && self.receipts.is_empty()
            && self.retained.is_empty()
            && self.assigned.is_empty()
            && self.groups.is_empty()
            && self.replays.is_empty()
            && self.next_replay == 0
            && self.counted_bytes == 0
    }
}

/// A session without a connection.
#[derive(Debug)]
pub struct Offline {
    /// When the connection ended, in Unix microseconds.
    pub since_us: i64,
    /// When the expiry timer fires.
    pub expiry_due_ms: u64,
    /// The delayed will, and when it is due.
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
    /// The rights of the client of the last connection, which also name the session's owner; `None` if users are not
    /// distinguished, or were not when the session was stored.
    pub rights: Option<Arc<Rights>>,
    /// The account that the session counts against; `None` if nothing is counted.
    pub account: Option<AccountId>,
    pub version: Version,
    /// The client's connection, if it has one.
    pub conn: Option<ConnKey>,
    /// The CONNACK was sent: deliveries may begin.
    pub active: bool,
    pub subscriptions: InlineVec<Subscription>,
    pub window: LazyBox<Window>,
    /// Limit on deliveries that the client accepts unacknowledged.
    pub window_max: u16,
    /// Partitions in which the session is not live.
    pub behind: Cursors,
    /// The deliveries of the window from this packet id on were sent on an earlier connection and have to be sent
    /// again.
    pub resend: Option<PacketId>,
    /// Seconds that the session outlives its connection.
    pub expiry_s: u32,
    /// The state store holds this session.
    pub stored: bool,
    /// Acknowledgements came since the last checkpoint.
    pub dirty: bool,
    /// `None` while the client is connected.
    pub offline: Option<Box<Offline>>,
    /// The state store holds a will of this session.
    pub will_stored: bool,
    pub extras: LazyBox<Extras>,
    /// Identifies this session in the whole log, also among earlier and later sessions of the same client.
    pub life: u64,
    /// Kept when the client reconnects.
    pub topics_made: TopicsMade,
    /// QoS 2 publishes of the client.
    pub qos2_inbound: LazyBox<Qos2Inbound>,
    /// The stored value of `extras.assigned` and the window is out of date.
    pub outbound_changed: bool,
    /// `extras.assigned` no longer has the records delivered by a finished replay, so the stored cursors have to say
    /// that it is finished.
    pub replay_forgotten: bool,
    /// The state store has such a value.
    pub outbound_stored: bool,
    /// In the list of sessions to write in this commit.
    pub in_state_commit: bool,
    /// Its subscriptions are only counted in the router and not found there.
    pub is_unlisted: bool,
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
            behind: Cursors::default(),
            resend: None,
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
            is_unlisted: false,
        }
    }

    /// About the size of its stored value; 0 when it is not stored.
    pub fn stored_bytes(&self) -> usize {
        if self.expiry_s == 0 {
            return 0;
        }
        let filters = usize::try_from(self.extras.counted_bytes).unwrap_or(usize::MAX);
        filters.saturating_add(self.subscriptions.len() * STORED_SUBSCRIPTION_BYTES)
    }

    /// Whether the client has this access to a topic (a filter, for [`Access::Subscribe`]).
    #[inline]
    pub fn may(&self, access: Access, topic: &str) -> bool {
        #[cfg(test)]
        RIGHTS_ASKED.with(|asked| asked.set(asked.get() + 1));
        self.rights
            .as_ref()
            .is_none_or(|rights| rights.may(access, topic, Some(&self.client_id)))
    }

    /// Whether the files allow a stored will to a topic where they alone decide.
    pub fn files_allow_stored(&self, topic: &str) -> bool {
        let rights = self.rights.as_ref();
        rights.is_none_or(|rights| rights.files_allow_stored(topic, &self.client_id))
    }

    /// Whether the client may have this access to any topic under a filter.
    pub fn may_filter(&self, access: Access, filter: &str) -> bool {
        let rights = self.rights.as_ref();
        rights.is_none_or(|rights| rights.may_filter(access, filter, Some(&self.client_id)))
    }

    /// The user who opened the session, empty for a client without credentials; `None` if users were not distinguished.
    pub fn owner(&self) -> Option<&str> {
        let rights = self.rights.as_ref()?;
        Some(rights.user().map_or("", |user| &**user))
    }

    /// Whether the session is in a shared group.
    #[inline]
    pub fn is_member(&self) -> bool {
        !self.extras.groups.is_empty()
    }

    /// The shared groups that it is a member of, or has deliveries of.
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

    /// Whether retained messages have to be sent before new records.
    #[inline]
    pub fn has_pending_retained(&self) -> bool {
        !self.extras.retained.is_empty()
    }

    /// Whether the window has room for something new; what is sent again goes before that.
    pub fn has_room(&self) -> bool {
        self.resend.is_none() && self.window.room(self.window_max) > 0
    }

    /// Whether anything besides the live stream has to be sent.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.resend.is_some()
            || self.window.has_unsent()
            || !self.behind.is_empty()
            || self.extras.have_work()
    }

    pub fn subscription(&self, filter: &str) -> Option<&Subscription> {
        self.subscriptions
            .iter()
            .find(|subscription| &*subscription.filter == filter)
    }

    /// The first offset of a partition that the session still needs, which is stored in its checkpoint. `live_at` is
    /// the position of the live stream.
    pub fn cursor(&self, partition: PartitionIndex, live_at: Offset) -> Offset {
        let place = self.behind.next(partition).unwrap_or(live_at);
        let unacked = self.window.oldest(partition, Source::Cursor);
        let receipt = self
            .extras
            .receipts
            .iter()
            .filter(|receipt| receipt.partition == partition)
            .map(|receipt| receipt.offset);
        receipt.chain(unacked).fold(place, Offset::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cursors::Cursor;
    use window::{Inflight, InflightState};

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
        session.behind.fall_behind(Cursor::new(P, Offset(45)));
        assert!(!session.behind.is_live(P) && session.behind.is_live(PartitionIndex(2)));
        session.behind.fall_behind(Cursor::new(P, Offset(48)));
        assert_eq!(
            session.cursor(P, Offset(50)),
            Offset(45),
            "the first place counts"
        );
        assert_eq!(session.cursor(PartitionIndex(2), Offset(9)), Offset(9));
    }
}
