//! `$SYS`: the broker's own statistics under Mosquitto's topics, sent from memory and never logged.
//!
//! At each interval the values that changed are sent to the subscribers with QoS 0. A new subscription gets all
//! matching values, with the retain flag, once its SUBACK has left. Without a subscriber only the averages are
//! computed.
//!
//! A new value is one line in `values`, and its owner in `SysTopics` here and in `lend.rs`.

use std::sync::Arc;

use headwater_log::Class;
use headwater_mqtt::encode::PublishFields;
use headwater_mqtt::{Property, QoS, filter_matches};
use parking_lot::Mutex;

use crate::VERSION;
use crate::auth::Access;
use crate::engine::ConnKey;
use crate::engine::clients::Clients;
use crate::engine::clients::timers::Timer;
use crate::engine::delivery::matches::matches;
use crate::engine::effects::Effects;
use crate::engine::env::Env;
use crate::engine::observe::sys_tree::Total;
use crate::engine::observe::{Count, Observe};
use crate::engine::retained::Retained;
use crate::engine::routing::Routing;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::shared_groups::Groups;

const ROOT: &str = "$SYS/broker/";
/// New subscriptions that are sent their values in one turn.
const PENDING_PER_TURN: usize = 64;

/// The values of `$SYS`, and who gets them.
pub struct SysTopics<'a> {
    pub env: &'a Env,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub groups: &'a mut Groups,
    pub retained: &'a Arc<Mutex<Retained>>,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl SysTopics<'_> {
    /// Starts the interval timer.
    pub fn start(&mut self) {
        if self.env.settings.sys_interval_ms > 0 {
            let due_ms = self.env.now.mono_ms + self.env.settings.sys_interval_ms;
            self.clients.set_timer(due_ms, Timer::Sys);
        }
    }

    /// Updates the averages and sends the values that changed.
    pub fn publish(&mut self) {
        let interval_ms = self.env.settings.sys_interval_ms;
        self.clients
            .set_timer(self.env.now.mono_ms + interval_ms, Timer::Sys);
        let totals = self.totals();
        self.observe.average_sys(&totals, self.env.now.mono_ms);
        let values = self.values();
        let mut wanted = false;
        for (topic, _) in &values {
            self.routing.for_each_match(topic, &mut |_| wanted = true);
        }
        let sent = if wanted { values } else { Vec::new() };
        for (topic, value) in self.observe.take_changed_sys(sent) {
            self.send_live(&topic, &value);
        }
    }

    fn send_live(&mut self, topic: &str, value: &str) {
        let id = self.routing.intern(topic, &self.env.log);
        let session_of = |key| self.clients.session(key);
        let Some(matches) = matches(self.routing, id, session_of, self.groups) else {
            return;
        };
        for target in &matches.targets {
            let retain = target.effective.retain_as_published;
            self.send(target.conn, topic, value, retain, &target.effective);
        }
    }

    /// Sends their values to new subscriptions whose SUBACK has left.
    pub fn send_pending(&mut self) {
        let mut pending = self.observe.take_pending_sys();
        if pending.is_empty() {
            return;
        }
        let values = self.values();
        let mut left = PENDING_PER_TURN;
        pending.retain(|(key, filter)| {
            if left == 0 {
                return true;
            }
            let Some(conn) = self.clients.conn(*key) else {
                return false;
            };
            if conn.subacks_pending > 0 {
                return true;
            }
            let Some((session, options)) = conn.session.and_then(|session| {
                let held = self.clients.session(session)?.subscription(filter)?;
                Some((session, held.options))
            }) else {
                return false;
            };
            let effective = EffectiveOptions::of(std::iter::once(options));
            left -= 1;
            for (topic, value) in &values {
                if filter_matches(filter, topic)
                    && self.clients.may(session, Access::Receive, topic)
                {
                    self.send(*key, topic, value, true, &effective);
                }
            }
            false
        });
        self.effects.note_more(left == 0);
        self.observe.put_back_sys(pending);
    }

    fn send(
        &mut self,
        key: ConnKey,
        topic: &str,
        value: &str,
        retain: bool,
        effective: &EffectiveOptions,
    ) {
        let bound = self.clients.send_budget.room(self.env);
        let Some(conn) = self.clients.writer(key) else {
            return;
        };
        if conn.out_len() >= bound {
            self.observe.count(Count::DeliveriesDropped, 1);
            return;
        }
        let mut extra = Vec::new();
        for id in effective.ids.iter().flatten() {
            Property::SubscriptionIdentifier(*id).encode(&mut extra);
        }
        let fields = PublishFields {
            version: conn.version,
            dup: false,
            qos: QoS::AtMostOnce,
            retain,
            topic,
            packet_id: None,
            properties: &[],
            extra: &extra,
        };
        let base = conn.out.len();
        let packet_max = conn.packet_max as usize;
        match fields.encode(&mut conn.out, value.as_bytes()) {
            Ok(layout) if layout.total_len <= packet_max => {
                conn.traffic.sent_messages += 1;
                self.observe.count(Count::Deliveries, 1);
            }
            _ => conn.out.truncate(base),
        }
    }

    fn totals(&self) -> [Total; 9] {
        let (mqtt, detail) = (&self.env.metrics.mqtt, &self.env.metrics.detail);
        [
            ("messages/received", mqtt.packets_received.get()),
            ("messages/sent", self.packets_sent()),
            ("publish/received", mqtt.publishes_received.get()),
            ("publish/sent", mqtt.deliveries.get()),
            ("publish/dropped", mqtt.deliveries_dropped.get()),
            ("bytes/received", mqtt.bytes_received.get()),
            ("bytes/sent", mqtt.bytes_sent.get()),
            ("sockets", mqtt.connections_opened.get()),
            ("connections", detail.clients_accepted.get()),
        ]
    }

    fn packets_sent(&self) -> u64 {
        self.env.metrics.mqtt.packets_sent.get() + self.env.metrics.mqtt.deliveries.get()
    }

    /// Every topic with its value, always in the same order.
    fn values(&self) -> Vec<(String, String)> {
        let (mqtt, detail) = (&self.env.metrics.mqtt, &self.env.metrics.detail);
        let connected = self.observe.connected();
        let total = self.clients.sessions_len();
        let (retained, retained_bytes) = self.retained.lock().held();
        let (records, record_bytes) = self.stored();
        let uptime_s = self.observe.sys().uptime_s(self.env.now.mono_ms);
        let mut values: Vec<(String, String)> = Vec::with_capacity(64);
        let mut put = |topic: &str, value: String| values.push((format!("{ROOT}{topic}"), value));
        put("version", format!("headwater version {VERSION}"));
        put("uptime", format!("{uptime_s} seconds"));
        for (topic, count) in [
            ("clients/total", total as u64),
            ("clients/connected", connected as u64),
            (
                "clients/disconnected",
                total.saturating_sub(connected) as u64,
            ),
            ("clients/maximum", self.observe.connected_max() as u64),
            ("clients/expired", detail.sessions_expired.get()),
            ("messages/received", mqtt.packets_received.get()),
            ("messages/sent", self.packets_sent()),
            ("messages/stored", records),
            ("publish/messages/received", mqtt.publishes_received.get()),
            ("publish/messages/sent", mqtt.deliveries.get()),
            ("publish/messages/dropped", mqtt.deliveries_dropped.get()),
            (
                "publish/bytes/received",
                detail.publish_received_bytes.get(),
            ),
            ("publish/bytes/sent", detail.publish_sent_bytes.get()),
            ("bytes/received", mqtt.bytes_received.get()),
            ("bytes/sent", mqtt.bytes_sent.get()),
            ("retained messages/count", retained as u64),
            ("retained messages/bytes", retained_bytes),
            ("subscriptions/count", self.routing.subscriptions() as u64),
            ("shared_subscriptions/count", self.groups.members() as u64),
            ("store/messages/count", records),
            ("store/messages/bytes", record_bytes),
        ] {
            put(topic, count.to_string());
        }
        for (name, span, average) in self.observe.sys().averages() {
            put(&format!("load/{name}/{span}"), format!("{average:.2}"));
        }
        values
    }

    /// Records and bytes of the partitions that clients can reach.
    fn stored(&self) -> (u64, u64) {
        let partitions = self.env.log.partitions().iter();
        partitions
            .filter(|partition| partition.class() != Class::Internal)
            .map(|partition| {
                let records = partition
                    .high_watermark()
                    .0
                    .saturating_sub(partition.log_start().0);
                (records, partition.size_bytes())
            })
            .fold((0, 0), |(records, bytes), of| {
                (records + of.0, bytes + of.1)
            })
    }
}
