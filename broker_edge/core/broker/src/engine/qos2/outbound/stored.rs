//! The in-flight QoS 2 deliveries in the state store.

use std::collections::BTreeMap;

use headwater_log::Offset;
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::engine::ids::PartitionIndex;
use crate::engine::session::Session;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::session_store::persist::to_json;

use super::{Assigned, qos2_outbound_key};

/// Value of `sent/<client id>`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct StoredOutbound {
    /// Per partition name: QoS 2 records in `[from, next)` have been given packet ids.
    assigned: BTreeMap<String, (u64, u64)>,
    /// The same for replaying subscriptions, by filter.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    replays: BTreeMap<String, BTreeMap<String, (u64, u64)>>,
    /// In order of packet ids.
    flights: Vec<StoredFlight>,
}

/// Packet id, partition number, offset, the packet awaited (0 PUBREC, 1 PUBCOMP), the source.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct StoredFlight(u16, u16, u64, u8, StoredSource);

#[derive(Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum StoredSource {
    /// The session's own cursor.
    C,
    /// A retained message.
    R,
    /// A replay, by its filter.
    Replay(String),
    /// A shared group.
    Share(String),
    /// A shared group that no longer exists.
    U,
}

impl Engine {
    /// The value for the state store; empty if no record was ever given a packet id.
    pub(in crate::engine) fn qos2_outbound_value(&self, session: &Session) -> Vec<u8> {
        if session.extras.assigned.is_empty() && !session.window.has_qos2() {
            return Vec::new();
        }
        let mut stored = StoredOutbound::default();
        let filter_of = |number: u16| {
            let mut replays = session.replays.iter();
            replays
                .find(|replay| replay.number == number)
                .map(|replay| replay.filter.to_string())
        };
        for range in session.extras.assigned.iter() {
            let ranges = match range.source {
                Source::Cursor => &mut stored.assigned,
                Source::Replay(number) => match filter_of(number) {
                    Some(filter) => stored.replays.entry(filter).or_default(),
                    None => continue,
                },
                _ => continue,
            };
            ranges.insert(self.name_of(range.partition), (range.from.0, range.next.0));
        }
        for (packet_id, sent, flight) in session.window.unacked_from(0) {
            if !flight.is_qos2() {
                continue;
            }
            let source = match sent.source {
                Source::Cursor => StoredSource::C,
                Source::Retained => StoredSource::R,
                Source::Replay(number) => match filter_of(number) {
                    Some(filter) => StoredSource::Replay(filter),
                    None => StoredSource::C,
                },
                Source::Shared(id) => match self.groups.get(id) {
                    Some(group) => StoredSource::Share(group.name().to_owned()),
                    None => StoredSource::U,
                },
                Source::Moved | Source::Unattached => StoredSource::U,
            };
            let step = u8::from(flight == InflightState::AwaitsPubcomp);
            let (partition, offset) = (sent.partition.0, sent.offset.0);
            stored
                .flights
                .push(StoredFlight(packet_id, partition, offset, step, source));
        }
        to_json(&stored)
    }

    /// Puts the in-flight deliveries of before the restart back into the window of a restored session.
    pub(in crate::engine) fn restore_qos2_outbound(&self, session: &mut Session) {
        let Some(value) = self.store.state.get(&qos2_outbound_key(&session.client_id)) else {
            return;
        };
        session.outbound_stored = true;
        let stored: StoredOutbound = match serde_json::from_slice(&value) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(%error, client_id = &*session.client_id, "the in-flight deliveries of a session cannot be read");
                return;
            }
        };
        let number_of = |session: &Session, filter: &str| {
            let mut replays = session.replays.iter();
            replays
                .find(|replay| &*replay.filter == filter)
                .map(|replay| replay.number)
        };
        let own = stored
            .assigned
            .iter()
            .map(|(name, range)| (Source::Cursor, name, range));
        let replayed = stored.replays.iter().filter_map(|(filter, ranges)| {
            let source = Source::Replay(number_of(session, filter)?);
            Some(
                ranges
                    .iter()
                    .map(move |(name, range)| (source, name, range)),
            )
        });
        let assigned: Vec<Assigned> = own
            .chain(replayed.flatten())
            .filter_map(|(source, name, (from, next))| {
                let partition = PartitionIndex::of(self.env.log.by_name(name)?.id());
                let (from, next) = (Offset(*from), Offset(*next));
                Some(Assigned {
                    source,
                    partition,
                    from,
                    next,
                })
            })
            .collect();
        if !assigned.is_empty() {
            session.extras.assigned = assigned;
        }
        for StoredFlight(packet_id, partition, offset, step, source) in &stored.flights {
            let source = match source {
                StoredSource::C => Source::Cursor,
                StoredSource::R => Source::Retained,
                StoredSource::U => Source::Unattached,
                StoredSource::Share(name) => {
                    let id = self.groups.by_name(name);
                    id.map_or(Source::Unattached, Source::Shared)
                }
                StoredSource::Replay(filter) => {
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
            if usize::from(*partition) >= self.ingest.stages.len()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_flights_read_back() {
        let stored = StoredOutbound {
            assigned: BTreeMap::from([("telemetry-0".to_owned(), (3, 9))]),
            replays: BTreeMap::new(),
            flights: vec![
                StoredFlight(7, 3, 5, 0, StoredSource::C),
                StoredFlight(8, 3, 6, 1, StoredSource::Replay("a/#".to_owned())),
            ],
        };
        let text = to_json(&stored);
        assert!(
            text.len() < 120,
            "a flight takes few bytes: {}",
            String::from_utf8_lossy(&text)
        );
        let back: StoredOutbound = serde_json::from_slice(&text).expect("own JSON");
        assert_eq!(back, stored);
    }
}
