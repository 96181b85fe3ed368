//! A publish to a topic that very many filters match, on a broker with real sockets.

use crate::common::{Client as Mqtt, Got};
use crate::support::TestBroker;
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{PacketId, QoS, Version, encode};

const LEVELS: u32 = 14;
const SESSIONS: usize = 16;
const EACH: usize = (1 << LEVELS) / SESSIONS;

/// All filters of so many levels, each by its name or as `+`.
fn filter(number: usize) -> String {
    let level = |bit: u32| if number >> bit & 1 == 1 { "+" } else { "l" };
    (0..LEVELS).map(level).collect::<Vec<_>>().join("/")
}

fn pauses(broker: &TestBroker) -> u64 {
    let (_, text) = broker.http("/metrics");
    let name = "headwater_mqtt_pauses_total{cause=\"work\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_very_many_filters_match_is_searched_in_parts_and_reaches_each_session_once() {
    let broker = TestBroker::start(&[]);
    let address = broker.broker().mqtt_address();
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let mut sessions: Vec<Mqtt> = (0..SESSIONS)
        .map(|number| {
            let mut client = Mqtt::connect(address, Version::V5, &format!("s{number}"));
            let filters = (number * EACH..(number + 1) * EACH).map(filter);
            let filters: Vec<String> = filters.collect();
            let all: Vec<Subscription<'_>> = filters
                .iter()
                .map(|filter| Subscription { filter, options })
                .collect();
            client.send(|out| encode::subscribe(out, Version::V5, PacketId::FIRST, &[], &all));
            client.wait_for(|got| matches!(got, Got::Suback { .. }));
            client
        })
        .collect();
    let mut publisher = Mqtt::connect(address, Version::V5, "publisher");
    let before = pauses(&broker);
    publisher.publish(&filter(0), "first");
    let paused = pauses(&broker) - before;
    assert!(paused >= 4, "{paused} parts");
    publisher.publish(&filter(0), "second");
    assert_eq!(pauses(&broker), before + paused, "it is known now");
    for session in &mut sessions {
        assert_eq!(session.texts(2), ["first", "second"]);
    }
}
