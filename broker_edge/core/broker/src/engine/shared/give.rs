//! Which member of a group gets a record: they take turns, and one that can take nothing now is passed over.

use std::rc::Rc;

use headwater_log::{Batch, RecordView};
use headwater_mqtt::QoS;

use crate::auth::Access;

use super::super::deliver::{Delivered, Delivery};
use super::super::session::Session;
use super::super::stage::PartitionIndex;
use super::super::template::Run;
use super::super::window::Source;
use super::super::{Engine, SessionKey};
use super::GroupId;

/// What became of a record of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// A member has it, or nobody is to have it.
    Taken,
    /// Every member that is there is full.
    NoRoom,
    /// No member is there.
    Nobody,
}

impl Engine {
    /// Gives records of the live stream to a group.
    pub(in super::super) fn give_run(&mut self, id: GroupId, run: Run<'_>) {
        for index in run.start..run.end {
            let Some(group) = self.groups.get(id) else {
                return;
            };
            if !group.is_live(run.partition) {
                return;
            }
            let waits = !group.returned.is_empty() || group.is_full();
            let record = run.batch.record(index);
            let given = if waits && record.qos > 0 {
                Given::NoRoom
            } else {
                self.give(id, run.batch, &record, run.partition, None)
            };
            match given {
                Given::Taken => {}
                Given::Nobody if record.qos == 0 => {}
                Given::NoRoom if record.qos == 0 => self.tally.deliveries_dropped += 1,
                Given::NoRoom | Given::Nobody => {
                    if let Some(group) = self.groups.get_mut(id) {
                        group.fall_behind(run.partition, record.offset);
                    }
                    return;
                }
            }
        }
    }

    /// Gives one record to the next member that can take it; to `not` only when there is nobody else.
    pub(super) fn give(
        &mut self,
        id: GroupId,
        batch: &Batch,
        record: &RecordView<'_>,
        partition: PartitionIndex,
        not: Option<SessionKey>,
    ) -> Given {
        let Some(group) = self.groups.get(id) else {
            return Given::Taken;
        };
        let (count, turn) = (group.members.len(), group.turn);
        let not = not.filter(|not| self.has_other_member(id, *not));
        let (mut is_full, mut is_too_large, mut is_allowed) = (false, false, false);
        for step in 0..count {
            let at = (turn + step) % count;
            let Some(member) = self.groups.get(id).and_then(|group| group.members.get(at)) else {
                break;
            };
            if member.is_leaving || not == Some(member.session) {
                is_full |= !member.is_leaving;
                continue;
            }
            let (key, merged) = (member.session, Rc::clone(&member.merged));
            let Some(session) = self.sessions.get(key) else {
                continue;
            };
            if !session.may(Access::Receive, record.topic) {
                continue;
            }
            is_allowed = true;
            let Some(conn) = session.active_conn() else {
                continue;
            };
            let qos = QoS::from_u8(record.qos).map_or(merged.qos, |qos| qos.min(merged.qos));
            let has_id = qos != QoS::AtMostOnce;
            if has_id && !has_room(session) {
                is_full = true;
                continue;
            }
            let delivery = Delivery {
                record,
                batch: Some(batch),
                partition,
                merged: &merged,
                source: Source::Shared(id),
                retain: false,
            };
            match self.deliver(key, conn, &delivery) {
                Delivered::NoRoom => is_full = true,
                Delivered::TooLarge => is_too_large = true,
                Delivered::Skipped => return Given::Taken,
                Delivered::Sent => {
                    if let Some(group) = self.groups.get_mut(id) {
                        group.turn = (at + 1) % count;
                        group.out += usize::from(has_id);
                    }
                    return Given::Taken;
                }
            }
        }
        if is_full {
            return Given::NoRoom;
        }
        if is_too_large || !is_allowed {
            self.tally.deliveries_dropped += 1;
            return Given::Taken;
        }
        Given::Nobody
    }

    /// Whether another member than this could be given records.
    pub(super) fn has_other_member(&self, id: GroupId, not: SessionKey) -> bool {
        let Some(group) = self.groups.get(id) else {
            return false;
        };
        group.members.iter().any(|member| {
            member.session != not
                && !member.is_leaving
                && self
                    .sessions
                    .get(member.session)
                    .is_some_and(|session| session.active_conn().is_some())
        })
    }
}

/// What has to be sent again goes before anything new.
fn has_room(session: &Session) -> bool {
    session.resend.is_none() && session.window.room(session.window_max) > 0
}
