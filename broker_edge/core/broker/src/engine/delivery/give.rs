//! Chooses the member of a group that gets a record: members take turns, and one that cannot accept a record now is
//! skipped.

use std::rc::Rc;

use headwater_log::{Batch, RecordView};
use headwater_mqtt::QoS;

use crate::auth::Access;
use crate::engine::SessionKey;
use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::observe::Count;
use crate::engine::session::window::Source;
use crate::engine::shared_groups::audience::Audience;
use crate::engine::shared_groups::members::Member;

use super::sender::{Delivered, Packet, Sender};

/// Members in line that are offered a record before the rights of all are examined.
const QUICK_OFFERS: usize = 2;
/// Full members that are offered a record that needs no room in their windows.
const QOS0_OFFERS: usize = 8;
/// This many members skipped by cached knowledge cost as much as one check of rights.
const KNOWN_PER_LOOK: usize = 16;

/// What happened to a record of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveOutcome {
    /// A member has it, or no member is to have it.
    Taken,
    /// Every connected member is full.
    NoRoom,
    /// No member is connected.
    Nobody,
    /// No member that may receive it can take it now; other members could take records.
    Aside,
    /// The turn has used up its checks.
    Later,
}

/// A member's response to an offered record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OfferResult {
    Taken,
    Full,
    TooLarge,
    MayNot,
    /// The record is to go to another member.
    IsNot,
}

/// A record offered to members.
#[derive(Clone, Copy)]
struct Offer<'a> {
    id: GroupId,
    batch: &'a Batch,
    record: &'a RecordView<'a>,
    partition: PartitionIndex,
    not: Option<SessionKey>,
}

impl Sender<'_> {
    /// Gives one record to the next member that can take it; to `not` only if there is no other.
    pub fn give(
        &mut self,
        id: GroupId,
        batch: &Batch,
        record: &RecordView<'_>,
        partition: PartitionIndex,
        not: Option<SessionKey>,
    ) -> GiveOutcome {
        let Some(group) = self.groups.get(id) else {
            return GiveOutcome::Taken;
        };
        if group.is_deserted() {
            return GiveOutcome::Nobody;
        }
        let offer = Offer {
            id,
            batch,
            record,
            partition,
            not: not.filter(|not| group.members.has_other(*not)),
        };
        for _ in 0..QUICK_OFFERS {
            let group = self.groups.get(id);
            let Some(key) = group.and_then(|group| group.members.front()) else {
                return self.give_to_full(&offer);
            };
            if self.offer(key, &offer) == OfferResult::Taken {
                return GiveOutcome::Taken;
            }
        }
        let access = self.access_to(&offer);
        match self.groups.audience(id, record.topic, access, self.clients) {
            Some(audience) => self.give_among(&audience, offer),
            None => GiveOutcome::Later,
        }
    }

    /// No member has room in its window. A QoS 0 delivery needs none.
    fn give_to_full(&mut self, offer: &Offer<'_>) -> GiveOutcome {
        for _ in 0..QOS0_OFFERS {
            let group = self.groups.get_mut(offer.id);
            let next = group.and_then(|group| group.members.next_present());
            let Some(key) = next.filter(|_| offer.record.qos == 0) else {
                break;
            };
            if self.offer(key, offer) == OfferResult::Taken {
                return GiveOutcome::Taken;
            }
        }
        GiveOutcome::NoRoom
    }

    /// Gives a record to a member that may receive it.
    fn give_among(&mut self, audience: &Rc<Audience>, mut offer: Offer<'_>) -> GiveOutcome {
        if audience.present.is_empty() && audience.has_away {
            return GiveOutcome::Aside;
        }
        if offer.not.is_some_and(|not| audience.present == [not]) {
            offer.not = None;
        }
        let Some(group) = self.groups.get(offer.id) else {
            return GiveOutcome::Taken;
        };
        let members = &group.members;
        let is_short = members.ready() <= audience.present.len();
        let ready: Vec<SessionKey> = if is_short {
            let may = |key: &SessionKey| audience.contains(*key);
            members.line().filter(may).collect()
        } else {
            let is_ready = |key: &&SessionKey| members.get(**key).is_some_and(Member::is_ready);
            audience.present.iter().filter(is_ready).copied().collect()
        };
        let known = members.ready().min(audience.present.len());
        self.groups.charge(known / KNOWN_PER_LOOK);
        let mut is_full = ready.len() < audience.present.len();
        let mut is_too_large = false;
        for key in ready {
            match self.offer(key, &offer) {
                OfferResult::Taken => return GiveOutcome::Taken,
                OfferResult::TooLarge => {
                    is_too_large = true;
                    self.groups.charge(1);
                }
                OfferResult::Full | OfferResult::IsNot => is_full = true,
                OfferResult::MayNot => {}
            }
        }
        if is_full && !audience.present.is_empty() {
            let given = self.give_to_full(&offer);
            let group = self.groups.get(offer.id);
            let has_others = group.is_some_and(|group| group.members.ready() > 0);
            return match given {
                GiveOutcome::NoRoom if has_others => GiveOutcome::Aside,
                given => given,
            };
        }
        debug_assert!(is_too_large || audience.present.is_empty());
        self.observe.count(Count::DeliveriesDropped, 1);
        GiveOutcome::Taken
    }

    /// The access that a member needs.
    fn access_to(&self, offer: &Offer<'_>) -> Access {
        self.groups.get(offer.id).map_or(Access::Receive, |group| {
            group.access_to(offer.partition, offer.record.offset)
        })
    }

    /// Offers a record to one connected member.
    fn offer(&mut self, key: SessionKey, offer: &Offer<'_>) -> OfferResult {
        let Offer { id, record, .. } = *offer;
        let Some(group) = self.groups.get_mut(id) else {
            return OfferResult::MayNot;
        };
        let Some(member) = group.members.get(key) else {
            return OfferResult::MayNot;
        };
        let effective = Rc::clone(&member.effective);
        let Some(session) = self.clients.session(key) else {
            return OfferResult::MayNot;
        };
        if offer.not == Some(key) {
            group.members.pass_turn(key);
            return OfferResult::IsNot;
        }
        let access = group.access_to(offer.partition, record.offset);
        let may = session.may(access, record.topic);
        if !may {
            group.members.pass_turn(key);
            self.groups.charge(1);
            return OfferResult::MayNot;
        }
        let qos = QoS::from_u8(record.qos).map_or(effective.qos, |qos| qos.min(effective.qos));
        let has_id = qos != QoS::AtMostOnce;
        let conn = session.active_conn();
        let Some(conn) = conn.filter(|_| !has_id || session.has_room()) else {
            group.members.park(key);
            return OfferResult::Full;
        };
        let packet = Packet {
            record,
            batch: Some(offer.batch),
            partition: offer.partition,
            effective: &effective,
            source: Source::Shared(id),
            retain: false,
        };
        let delivered = self.deliver(key, conn, &packet);
        let Some(group) = self.groups.get_mut(id) else {
            return OfferResult::Taken;
        };
        match delivered {
            Delivered::NoRoom => group.members.park(key),
            _ => group.members.pass_turn(key),
        }
        match delivered {
            Delivered::NoRoom => OfferResult::Full,
            Delivered::TooLarge => OfferResult::TooLarge,
            Delivered::Skipped => OfferResult::Taken,
            Delivered::Sent => {
                group.note_given(has_id);
                OfferResult::Taken
            }
        }
    }
}
