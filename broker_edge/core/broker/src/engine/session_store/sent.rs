//! The in-flight QoS 2 deliveries in the state store.

use headwater_log::Offset;

use crate::engine::ids::PartitionIndex;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::session::{Assigned, Session};
use crate::engine::stored::sent::{self, Flight, Sent};
use crate::engine::stored::{Names, decode, encode};

use super::checkpoint::Checkpointing;

impl Checkpointing<'_> {
    /// The value for the state store; empty if no record was ever given a packet id.
    pub(super) fn sent_value(&self, session: &Session) -> Vec<u8> {
        if session.extras.assigned.is_empty() && !session.window.has_qos2() {
            return Vec::new();
        }
        let names = Names(&self.env.partitions);
        let mut stored = Sent::default();
        let filter_of = |number| Some(session.replay(number)?.filter.to_string());
        for range in session.extras.assigned.iter() {
            let ranges = match range.source {
                Source::Cursor => Some(&mut stored.assigned),
                Source::Replay(number) => {
                    filter_of(number).map(|filter| stored.replays.entry(filter).or_default())
                }
                _ => None,
            };
            if let Some(ranges) = ranges {
                ranges.insert(names.of(range.partition), (range.from.0, range.next.0));
            }
        }
        let flights = session.window.unacked_from(0);
        for (packet_id, sent, flight) in flights.filter(|(_, _, flight)| flight.is_qos2()) {
            let source = match sent.source {
                Source::Cursor => sent::Source::C,
                Source::Retained => sent::Source::R,
                Source::Replay(number) => {
                    filter_of(number).map_or(sent::Source::C, sent::Source::Replay)
                }
                Source::Shared(id) => {
                    let name = self.groups.get(id).map(|group| group.name().to_owned());
                    name.map_or(sent::Source::U, sent::Source::Share)
                }
                Source::Moved | Source::Unattached => sent::Source::U,
            };
            let step = u8::from(flight == InflightState::AwaitsPubcomp);
            let (partition, offset) = (sent.partition.0, sent.offset.0);
            stored
                .flights
                .push(Flight(packet_id, partition, offset, step, source));
        }
        encode(&stored)
    }

    /// Puts the in-flight deliveries of before the restart back into the window of a restored session.
    pub(super) fn restore_sent(&self, session: &mut Session) {
        let Some(value) = self.store.get(&sent::key(&session.client_id)) else {
            return;
        };
        session.outbound_stored = true;
        let stored: Sent = match decode(&value) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(%error, client_id = &*session.client_id, "the in-flight deliveries of a session cannot be read");
                return;
            }
        };
        let names = Names(&self.env.partitions);
        let number_of = |session: &Session, filter: &str| {
            let mut replays = session.extras.replays.iter();
            replays
                .find(|replay| &*replay.filter == filter)
                .map(|replay| replay.number)
        };
        let mut assigned = Vec::new();
        let mut add = |source, ranges: &sent::Ranges| {
            let known = |(name, (from, next)): (&String, &(u64, u64))| {
                Some(Assigned {
                    source,
                    partition: names.partition(name)?,
                    from: Offset(*from),
                    next: Offset(*next),
                })
            };
            assigned.extend(ranges.iter().filter_map(known));
        };
        add(Source::Cursor, &stored.assigned);
        for (filter, ranges) in &stored.replays {
            if let Some(number) = number_of(session, filter) {
                add(Source::Replay(number), ranges);
            }
        }
        if !assigned.is_empty() {
            session.extras.assigned = assigned;
        }
        for Flight(packet_id, partition, offset, step, source) in &stored.flights {
            let source = match source {
                sent::Source::C => Source::Cursor,
                sent::Source::R => Source::Retained,
                sent::Source::U => Source::Unattached,
                sent::Source::Share(name) => {
                    let id = self.groups.by_name(name);
                    id.map_or(Source::Unattached, Source::Shared)
                }
                sent::Source::Replay(filter) => {
                    number_of(session, filter).map_or(Source::Cursor, Source::Replay)
                }
            };
            let sent = Inflight {
                offset: Offset(*offset),
                partition: PartitionIndex(*partition),
                source,
                receipt: false,
            };
            let flight = if *step == 0 {
                InflightState::AwaitsPubrec
            } else {
                InflightState::AwaitsPubcomp
            };
            if usize::from(*partition) >= self.env.partitions.len()
                || !session.window.restore(*packet_id, sent, flight)
            {
                tracing::error!(
                    packet_id,
                    client_id = &*session.client_id,
                    "an in-flight delivery cannot be restored"
                );
            }
        }
    }
}
