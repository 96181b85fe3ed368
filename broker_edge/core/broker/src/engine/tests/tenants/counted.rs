//! Whatever clients do, the quotas count what there is.

use std::collections::BTreeMap;

use headwater_mqtt::encode::WillFields;
use proptest::prelude::*;

use crate::engine::clients::charges::UNCOUNTED_BYTES;

use super::super::super::quotas::{Counts, Kind};
use super::super::*;
use super::{Guarded, V5, broker, fields, ledger, recount, settle};

#[derive(Debug, Clone)]
enum Event {
    Connect {
        user: bool,
        client: u8,
        lasts: bool,
        clean: bool,
        will: u8,
    },
    Lose(u8),
    /// With the will or without.
    Leave(u8, bool),
    Subscribe(u8, u8),
    Unsubscribe(u8, u8),
    Retain(u8, u8, u8),
    PassTime,
    Reload,
}

const FILTERS: [&str; 6] = [
    "a",
    "b/#",
    "$share/g/a",
    "$share/h/b/#",
    "$share/g/b/+",
    LONG,
];
/// Long enough that sessions with it count.
const LONG: &str = match std::str::from_utf8(&[b'f'; UNCOUNTED_BYTES as usize]) {
    Ok(long) => long,
    Err(_) => "",
};
/// Wills without and with a delay, short and long.
const WILLS: [(usize, u32); 5] = [(0, 0), (10, 0), (300, 0), (300, 20), (2000, 300)];

fn event() -> impl Strategy<Value = Event> {
    let client = 0u8..4;
    prop_oneof![
        4 => (any::<bool>(), client.clone(), any::<bool>(), any::<bool>(), 0u8..5).prop_map(
            |(user, client, lasts, clean, will)| Event::Connect { user, client, lasts, clean, will }
        ),
        2 => client.clone().prop_map(Event::Lose),
        2 => (client.clone(), any::<bool>()).prop_map(|(client, will)| Event::Leave(client, will)),
        4 => (client.clone(), 0u8..6).prop_map(|(client, filter)| Event::Subscribe(client, filter)),
        2 => (client.clone(), 0u8..6).prop_map(|(client, filter)| Event::Unsubscribe(client, filter)),
        4 => (client, 0u8..3, 0u8..4).prop_map(|(client, topic, len)| Event::Retain(client, topic, len)),
        1 => Just(Event::PassTime),
        1 => Just(Event::Reload),
    ]
}

fn apply(broker: &mut Guarded, live: &mut BTreeMap<u8, ConnKey>, event: &Event, id: u16) {
    let packet_id = PacketId::new(id).expect("not zero");
    match event {
        Event::Connect {
            user,
            client,
            lasts,
            clean,
            will,
        } => {
            let name = format!("c{client}");
            let user = if *user { "ann" } else { "bob" };
            let mut fields = fields(user, &name, *lasts);
            fields.clean_start = *clean;
            let (len, delay_s) = WILLS[usize::from(*will)];
            let (text, delay) = (vec![b'w'; len], [Property::WillDelayInterval(delay_s)]);
            fields.will = (len > 0).then_some(WillFields {
                topic: "will",
                payload: &text,
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: &delay,
            });
            let (key, code) = broker.try_connect(&fields);
            if code == 0 {
                live.insert(*client, key);
            }
        }
        Event::Lose(client) => {
            if let Some(key) = live.remove(client) {
                broker.rig.engine.remove(key);
            }
        }
        Event::Leave(client, will) => {
            if let Some(key) = live.remove(client) {
                let reason = if *will {
                    ReasonCode::DisconnectWithWill
                } else {
                    ReasonCode::NORMAL_DISCONNECTION
                };
                broker
                    .rig
                    .feed(key, |out| encode::disconnect(out, V5, reason, &[]));
                broker.rig.turn();
                broker.rig.engine.remove(key);
            }
        }
        Event::Subscribe(client, filter) => {
            if let Some(key) = live.get(client) {
                let options = SubscriptionOptions::new(QoS::AtLeastOnce);
                let filter = FILTERS[usize::from(*filter)];
                let one = [Subscription { filter, options }];
                broker.rig.feed(*key, |out| {
                    encode::subscribe(out, V5, packet_id, &[], &one);
                });
            }
        }
        Event::Unsubscribe(client, filter) => {
            if let Some(key) = live.get(client) {
                let filter = FILTERS[usize::from(*filter)];
                broker.rig.feed(*key, |out| {
                    encode::unsubscribe(out, V5, packet_id, &[], &[filter]);
                });
            }
        }
        Event::Retain(client, topic, len) => {
            if let Some(key) = live.get(client) {
                let text = "x".repeat(usize::from(*len));
                let topic = ["a", "b/1", "b/2"][usize::from(*topic)];
                broker.rig.publish_to(topic, true, *key, V5, id, &text);
            }
        }
        Event::PassTime => broker.rig.pass_time(61_000),
        Event::Reload => {
            broker.auth_service.reload().expect("the files are right");
            broker.rig.turn();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_what_is_counted_is_what_there_is(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut broker = broker();
        let mut live = BTreeMap::new();
        for (id, event) in (1..).zip(&events) {
            apply(&mut broker, &mut live, event, id);
            if id % 4 == 0 {
                settle(&mut broker);
                prop_assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine), "after {:?}", event);
            }
        }
        settle(&mut broker);
        prop_assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine));
        for key in live.into_values() {
            broker.rig.engine.remove(key);
        }
        broker.rig.pass_time(61_000);
        for topic in ["a", "b/1", "b/2"] {
            let key = broker.connect("ann", "pw-a", "last");
            broker.rig.publish_to(topic, true, key, V5, 1, "");
            broker.rig.packets(key, V5, 1);
            broker.rig.engine.remove(key);
        }
        settle(&mut broker);
        let (users, tenants) = broker.rig.engine.quotas.held();
        let zero = |of: &[(String, Counts)]| {
            of.iter().all(|(_, counts)| counts[..Kind::Topics as usize].iter().all(|count| *count == 0))
        };
        prop_assert!(zero(&users) && zero(&tenants), "{:?} {:?}", users, tenants);
        broker.rig.crash();
    }
}
