//! Deliveries of groups at their members: acknowledged, given back by disconnected members, or taken from silent ones.

use crate::engine::SessionKey;
use crate::engine::ids::GroupId;
use crate::engine::observe::Count;
use crate::engine::session::Session;
use crate::engine::session::window::{Inflight, InflightState, Source};

use super::Groups;
use super::group::ASIDE_TRIED_MORE;
use super::membership::Membership;

impl Groups {
    /// A delivery is done: acknowledged, completed, or abandoned.
    #[inline]
    pub fn settle(&mut self, sent: Inflight, is_qos2: bool) {
        if let Source::Shared(id) = sent.source
            && let Some(group) = self.get_mut(id)
        {
            group.take_back(sent, None);
            group.has_completed |= is_qos2;
            self.wake(id);
        }
    }
}

impl Membership<'_> {
    /// A member lost its connection: its QoS 1 records go to others. QoS 2 records stay with it, or are abandoned when
    /// the session ends (MQTT-4.8.2-5), unless they were never sent.
    pub fn give_back(&mut self, key: SessionKey, ends: bool) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        for id in session.groups() {
            self.groups.depart(*id, key);
        }
        let of_groups: Vec<(u16, Inflight, InflightState)> = session
            .window
            .unacked_from(0)
            .filter(|(_, sent, _)| matches!(sent.source, Source::Shared(_) | Source::Moved))
            .collect();
        for (packet_id, sent, flight) in of_groups {
            let goes_on = match flight {
                InflightState::AwaitsPuback => true,
                InflightState::Assigned => ends,
                _ => false,
            };
            if goes_on || ends {
                forget(session, packet_id);
            }
            let Source::Shared(id) = sent.source else {
                continue;
            };
            if let Some(group) = self.groups.get_mut(id)
                && (goes_on || ends)
            {
                group.take_back(sent, goes_on.then_some(key));
                self.observe
                    .count(Count::SharedReturned, u64::from(goes_on));
            }
        }
        self.groups.wake_for(key, session);
    }

    /// Takes records back from members that have left them unacknowledged for too long. Called with each checkpoint.
    pub fn take_from_silent(&mut self) {
        let after_ms = self.env.settings.mqtt.shared_redelivery_after.as_ms();
        for id in self.groups.ids() {
            let Some(group) = self.groups.get(id) else {
                continue;
            };
            // Disconnected members have already given back their records.
            let asks = after_ms > 0 && group.out > 0;
            let members = if asks || group.members.has_full() {
                group.members.present().to_vec()
            } else {
                Vec::new()
            };
            let leavers = group.members.leavers();
            if let Some(group) = self.groups.get_mut(id) {
                group.try_aside(ASIDE_TRIED_MORE);
                self.groups.wake(id);
            }
            for key in members {
                if asks {
                    self.ask_member(id, key, after_ms);
                }
                self.line_up_again(id, key);
            }
            for key in leavers {
                if asks {
                    self.ask_member(id, key, after_ms);
                }
                self.drop_leaver(id, key);
            }
        }
    }

    /// Puts a member with room back into the line, in case a wake-up was missed.
    fn line_up_again(&mut self, id: GroupId, key: SessionKey) {
        if let Some(session) = self.clients.session(key)
            && session.has_room()
            && let Some(group) = self.groups.get_mut(id)
        {
            group.members.unpark(key);
        }
    }

    fn ask_member(&mut self, id: GroupId, key: SessionKey, after_ms: u64) {
        let now_ms = self.env.now.mono_ms;
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        let has_other = group.members.has_other(key);
        let Some(member) = group.members.get_mut(key) else {
            return;
        };
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        if now_ms.saturating_sub(member.asked_at_ms) < after_ms {
            return;
        }
        let asked_id = member.asked_id;
        member.asked_at_ms = now_ms;
        member.asked_id = session.window.next_id();
        if session.active_conn().is_none() || !has_other {
            return;
        }
        let owed: Vec<(u16, Inflight)> = session
            .window
            .unacked_until(asked_id)
            .filter(|(_, sent, flight)| {
                sent.source == Source::Shared(id) && *flight == InflightState::AwaitsPuback
            })
            .map(|(packet_id, sent, _)| (packet_id, sent))
            .collect();
        if owed.is_empty() {
            return;
        }
        tracing::debug!(
            client_id = &*session.client_id,
            count = owed.len(),
            "records that a member of a shared group does not acknowledge go to other members"
        );
        for (packet_id, sent) in owed {
            session.window.set_source(packet_id, Source::Moved);
            group.take_back(sent, Some(key));
            self.observe.count(Count::SharedReturned, 1);
        }
        self.groups.wake(id);
    }
}

fn forget(session: &mut Session, packet_id: u16) {
    session.window.finish(packet_id);
    if let Some(extras) = session.extras.present_mut() {
        extras
            .commands
            .retain(|command| command.packet_id != packet_id);
    }
    session.window.next_unsent();
}
