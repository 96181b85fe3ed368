//! Random values from which the tests build packets.

use headwater_mqtt::packet::subscribe::{RetainHandling, SubscriptionOptions};
use headwater_mqtt::{PacketId, Property, QoS, Version};
use proptest::collection::vec;
use proptest::prelude::*;

pub(crate) fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V31), Just(Version::V311), Just(Version::V5)]
}

pub(crate) fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![
        Just(QoS::AtMostOnce),
        Just(QoS::AtLeastOnce),
        Just(QoS::ExactlyOnce)
    ]
}

pub(crate) fn packet_id() -> impl Strategy<Value = PacketId> {
    any::<std::num::NonZeroU16>().prop_map(PacketId)
}

pub(crate) fn text() -> impl Strategy<Value = String> {
    "[ -~äß水🦀]{0,40}"
}

pub(crate) fn binary() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..60)
}

/// Topic names without wildcards, at least one character, some with `$` in front.
pub(crate) fn topic() -> impl Strategy<Value = String> {
    "[$a-c]?[a-c/ä🦀 ]{1,40}"
}

/// Well-formed filters.
pub(crate) fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![3 => Just("+".to_owned()), 5 => "[a-c]{0,3}"];
    (vec(level, 1..6), any::<bool>(), any::<bool>()).prop_map(|(levels, rest, shared)| {
        let mut filter = levels.join("/");
        if rest {
            filter.push_str("/#");
        }
        match (filter.is_empty(), shared) {
            (true, _) => "#".to_owned(),
            (false, true) => format!("$share/group/{filter}"),
            (false, false) => filter,
        }
    })
}

pub(crate) fn options() -> impl Strategy<Value = SubscriptionOptions> {
    let handling = prop_oneof![
        Just(RetainHandling::Send),
        Just(RetainHandling::SendIfNew),
        Just(RetainHandling::DoNotSend)
    ];
    (qos(), any::<bool>(), any::<bool>(), handling).prop_map(
        |(qos, no_local, retain_as_published, retain_handling)| SubscriptionOptions {
            qos,
            no_local,
            retain_as_published,
            retain_handling,
        },
    )
}

/// A property that owns its text, because a strategy cannot return borrowed text.
#[derive(Debug, Clone)]
pub(crate) enum Owned {
    PayloadFormat(bool),
    Expiry(u32),
    ContentType(String),
    ResponseTopic(String),
    Correlation(Vec<u8>),
    User(String, String),
    Alias(u16),
    SubscriptionId(u32),
    Reason(String),
    Session(u32),
    ReceiveMaximum(u16),
    PacketSize(u32),
    AliasMaximum(u16),
    ProblemInformation(bool),
    WillDelay(u32),
    Method(String),
    Data(Vec<u8>),
    KeepAlive(u16),
    Assigned(String),
    MaximumQoS(u8),
    Retain(bool),
}

impl Owned {
    pub(crate) fn lend(&self) -> Property<'_> {
        match self {
            Self::PayloadFormat(value) => Property::PayloadFormatIndicator(*value),
            Self::Expiry(value) => Property::MessageExpiryInterval(*value),
            Self::ContentType(value) => Property::ContentType(value),
            Self::ResponseTopic(value) => Property::ResponseTopic(value),
            Self::Correlation(value) => Property::CorrelationData(value),
            Self::User(key, value) => Property::UserProperty { key, value },
            Self::Alias(value) => Property::TopicAlias(*value),
            Self::SubscriptionId(value) => Property::SubscriptionIdentifier(*value),
            Self::Reason(value) => Property::ReasonString(value),
            Self::Session(value) => Property::SessionExpiryInterval(*value),
            Self::ReceiveMaximum(value) => Property::ReceiveMaximum(*value),
            Self::PacketSize(value) => Property::MaximumPacketSize(*value),
            Self::AliasMaximum(value) => Property::TopicAliasMaximum(*value),
            Self::ProblemInformation(value) => Property::RequestProblemInformation(*value),
            Self::WillDelay(value) => Property::WillDelayInterval(*value),
            Self::Method(value) => Property::AuthenticationMethod(value),
            Self::Data(value) => Property::AuthenticationData(value),
            Self::KeepAlive(value) => Property::ServerKeepAlive(*value),
            Self::Assigned(value) => Property::AssignedClientIdentifier(value),
            Self::MaximumQoS(value) => Property::MaximumQoS(*value),
            Self::Retain(value) => Property::RetainAvailable(*value),
        }
    }
}

pub(crate) fn lend(owned: &[Owned]) -> Vec<Property<'_>> {
    owned.iter().map(Owned::lend).collect()
}

/// A subset of `single`, each at most once, mixed with up to four user properties in any order.
fn mix(single: Vec<BoxedStrategy<Owned>>) -> BoxedStrategy<Vec<Owned>> {
    let count = single.len();
    let user = vec(
        (text(), text()).prop_map(|(key, value)| Owned::User(key, value)),
        0..4,
    );
    (single, vec(any::<bool>(), count), user)
        .prop_map(|(single, keep, user)| {
            let kept = single
                .into_iter()
                .zip(keep)
                .filter_map(|(one, keep)| keep.then_some(one));
            kept.chain(user).collect::<Vec<_>>()
        })
        .prop_shuffle()
        .boxed()
}

fn of_message() -> Vec<BoxedStrategy<Owned>> {
    vec![
        any::<bool>().prop_map(Owned::PayloadFormat).boxed(),
        any::<u32>().prop_map(Owned::Expiry).boxed(),
        text().prop_map(Owned::ContentType).boxed(),
        topic().prop_map(Owned::ResponseTopic).boxed(),
        binary().prop_map(Owned::Correlation).boxed(),
    ]
}

/// The properties that are stored with a message.
pub(crate) fn message_properties() -> BoxedStrategy<Vec<Owned>> {
    mix(of_message())
}

/// The properties that a client sends with a message.
pub(crate) fn publish_properties() -> BoxedStrategy<Vec<Owned>> {
    let mut single = of_message();
    single.push((1..=u16::MAX).prop_map(Owned::Alias).boxed());
    mix(single)
}

pub(crate) fn will_properties() -> BoxedStrategy<Vec<Owned>> {
    let mut single = of_message();
    single.push(any::<u32>().prop_map(Owned::WillDelay).boxed());
    mix(single)
}

pub(crate) fn connect_properties() -> BoxedStrategy<Vec<Owned>> {
    let single = vec![
        any::<u32>().prop_map(Owned::Session).boxed(),
        (1..=u16::MAX).prop_map(Owned::ReceiveMaximum).boxed(),
        (1..=u32::MAX).prop_map(Owned::PacketSize).boxed(),
        any::<u16>().prop_map(Owned::AliasMaximum).boxed(),
        any::<bool>().prop_map(Owned::ProblemInformation).boxed(),
        text().prop_map(Owned::Method).boxed(),
    ];
    mix(single)
}

pub(crate) fn connack_properties() -> BoxedStrategy<Vec<Owned>> {
    let single = vec![
        any::<u32>().prop_map(Owned::Session).boxed(),
        (1..=u16::MAX).prop_map(Owned::ReceiveMaximum).boxed(),
        any::<u16>().prop_map(Owned::KeepAlive).boxed(),
        text().prop_map(Owned::Assigned).boxed(),
        text().prop_map(Owned::Reason).boxed(),
        (0..2_u8).prop_map(Owned::MaximumQoS).boxed(),
        any::<bool>().prop_map(Owned::Retain).boxed(),
    ];
    mix(single)
}

pub(crate) fn ack_properties() -> BoxedStrategy<Vec<Owned>> {
    mix(vec![text().prop_map(Owned::Reason).boxed()])
}

pub(crate) fn subscribe_properties() -> BoxedStrategy<Vec<Owned>> {
    mix(vec![
        (1..=headwater_mqtt::VARINT_MAX)
            .prop_map(Owned::SubscriptionId)
            .boxed(),
    ])
}

pub(crate) fn disconnect_properties() -> BoxedStrategy<Vec<Owned>> {
    mix(vec![
        any::<u32>().prop_map(Owned::Session).boxed(),
        text().prop_map(Owned::Reason).boxed(),
    ])
}

/// Always with a method, sometimes with data.
pub(crate) fn auth_properties() -> impl Strategy<Value = Vec<Owned>> {
    (text(), mix(vec![binary().prop_map(Owned::Data).boxed()])).prop_map(|(method, mut rest)| {
        rest.push(Owned::Method(method));
        rest
    })
}
