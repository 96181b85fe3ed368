//! What is published, when, and which answers are expected.

use headwater_mqtt::QoS;
use headwater_mqtt::encode::PublishFields;

use crate::latency::Latency;
use crate::messages::Runner;
use crate::pace::Share;
use crate::plan::{Pace, Plan, TIME_BYTES};

/// A publisher with this many unsent bytes encodes no more messages.
const BACKLOG_BYTES_MAX: usize = 256 << 10;

pub struct Load {
    shares: Vec<Share>,
    topics: Vec<Vec<String>>,
    pub sent: u64,
    pub payload_bytes: u64,
    pub acks_wanted: u64,
    /// A publisher has reached its limit for one turn and can continue in the next.
    pub has_more: bool,
    payload: Vec<u8>,
    /// How much later than intended messages were sent; only in an open loop.
    pub lag: Option<Latency>,
}

impl Load {
    pub fn new(runner: &Runner<'_>) -> Self {
        let plan = runner.plan;
        let publishers = plan.publisher_count();
        let largest = plan.sizes.values().max().unwrap_or(0);
        Self {
            shares: (0..publishers)
                .map(|number| Share::new(number, publishers, plan.pace, plan.limit))
                .collect(),
            topics: (0..publishers)
                .map(|number| runner.topics_of(number))
                .collect(),
            sent: 0,
            payload_bytes: 0,
            acks_wanted: 0,
            has_more: false,
            payload: (b'a'..=b'z').cycle().take(largest).collect(),
            lag: matches!(plan.pace, Pace::Open { .. }).then(Latency::new),
        }
    }

    pub fn deliveries_wanted(&self, plan: &Plan) -> u64 {
        self.sent * plan.fan()
    }

    /// Sends the messages that are due; returns when the next one is due, if there is one.
    pub fn send(&mut self, runner: &mut Runner<'_>) -> Option<u64> {
        let mut next = None;
        self.has_more = false;
        for number in 0..self.shares.len() {
            if let Some(due_ns) = self.send_from(number, runner) {
                next = Some(next.map_or(due_ns, |next: u64| next.min(due_ns)));
            }
        }
        next
    }

    fn send_from(&mut self, number: usize, runner: &mut Runner<'_>) -> Option<u64> {
        let now_ns = runner.now_ns();
        let sent_before = self.sent;
        loop {
            let due_ns = self.shares[number].next_due_ns(now_ns)?;
            let client = &runner.clients[number];
            let has_room = !client.blocked && client.backlog() < BACKLOG_BYTES_MAX;
            let is_due = match runner.plan.pace {
                Pace::Open { .. } => due_ns <= now_ns,
                Pace::Closed { window } => {
                    let deliveries = self.deliveries_wanted(runner.plan);
                    let undelivered = deliveries.saturating_sub(runner.counters.delivered);
                    let all_in_flight = client.in_flight() >= usize::from(window);
                    let window = u64::from(window);
                    let all = window * runner.plan.fan() * self.shares.len() as u64;
                    !all_in_flight
                        && self.sent - sent_before < window
                        && (runner.plan.fan() == 0 || undelivered < all)
                }
            };
            if !has_room || !is_due || !self.send_one(number, due_ns, now_ns, runner) {
                let turn_max = match runner.plan.pace {
                    Pace::Closed { window } => u64::from(window),
                    Pace::Open { .. } => u64::MAX,
                };
                self.has_more |= self.sent - sent_before >= turn_max;
                return Some(due_ns);
            }
        }
    }

    /// Returns false when no packet id is left.
    fn send_one(
        &mut self,
        number: usize,
        due_ns: u64,
        now_ns: u64,
        runner: &mut Runner<'_>,
    ) -> bool {
        let plan = runner.plan;
        let share = &mut self.shares[number];
        let client = &mut runner.clients[number];
        let qos = plan.qos.pick(share.sent);
        let packet_id = match qos {
            QoS::AtMostOnce => None,
            _ => match client.take_id(due_ns) {
                None => return false,
                id => id,
            },
        };
        let size = plan.sizes.pick(share.sent);
        if size >= TIME_BYTES {
            self.payload[..TIME_BYTES].copy_from_slice(&due_ns.to_le_bytes());
        }
        let topics = &self.topics[number];
        let fields = PublishFields {
            version: plan.version,
            dup: false,
            qos,
            retain: false,
            topic: &topics[(share.sent % topics.len() as u64) as usize],
            packet_id,
            properties: &[],
            extra: &[],
        };
        fields
            .encode(&mut client.output, &self.payload[..size])
            .expect("sizes are bounded by the plan, topics are short");
        if let Some(lag) = &mut self.lag {
            lag.record(now_ns.saturating_sub(due_ns));
        }
        share.sent += 1;
        self.sent += 1;
        self.payload_bytes += size as u64;
        self.acks_wanted += u64::from(qos != QoS::AtMostOnce);
        if runner.touched.last() != Some(&number) {
            runner.touched.push(number);
        }
        true
    }
}
