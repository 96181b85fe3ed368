//! The scenarios that publish messages: connect, subscribe, send at the plan's pace, wait for the expected answers.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headwater_mqtt::encode::{self, ConnectFields};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{PacketId, QoS, ReasonCode};
use mio::{Events, Poll};

use crate::client::{Client, Counters, State};
use crate::latency::Latency;
use crate::load::Load;
use crate::plan::{Pace, Plan, Scenario};
use crate::stream::Stream;
use crate::{BenchError, Report, process};

/// The most connections that are opened at once, because a listener's queue is bounded.
const OPENING_MAX: usize = 256;
const READ_BYTES: usize = 256 << 10;
/// A poll sleeps whole milliseconds; a message due sooner is awaited in steps of this length.
const NAP: Duration = Duration::from_micros(100);
/// Deliveries of QoS 0 may be lost: give up on them after this long without any delivery.
const QUIET: Duration = Duration::from_secs(2);

pub fn run(plan: &Plan, stop: &AtomicBool) -> Result<Report, BenchError> {
    let mut runner = Runner::new(plan, stop)?;
    runner.connect()?;
    runner.subscribe()?;
    runner.publish()
}

pub struct Runner<'a> {
    pub plan: &'a Plan,
    stop: &'a AtomicBool,
    poll: Poll,
    events: Events,
    /// Publishers first, then subscribers.
    pub clients: Vec<Client>,
    pub counters: Counters,
    buffer: Vec<u8>,
    /// When sending began; before that, when the run began.
    started: Instant,
    /// Clients with something new to send.
    pub touched: Vec<usize>,
    /// The latest progress count, and when it changed.
    progress: (u64, Instant),
    /// Messages sent that nothing answers (QoS 0): sending them is progress.
    unanswered: u64,
}

impl<'a> Runner<'a> {
    fn new(plan: &'a Plan, stop: &'a AtomicBool) -> Result<Self, BenchError> {
        Ok(Self {
            plan,
            stop,
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            clients: Vec::new(),
            counters: Counters::new(),
            buffer: vec![0; READ_BYTES],
            started: Instant::now(),
            touched: Vec::new(),
            progress: (0, Instant::now()),
            unanswered: 0,
        })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn connect(&mut self) -> Result<(), BenchError> {
        let wanted = self.plan.publisher_count() + self.plan.subscriber_count();
        self.progress = (self.counters.progress(), Instant::now());
        while (self.counters.opened as usize) < wanted && !self.is_stopped() {
            while self.clients.len() < wanted
                && self.clients.len() - (self.counters.opened as usize) < OPENING_MAX
            {
                let token = self.clients.len();
                let stream = Stream::begin(self.plan, self.poll.registry(), token)
                    .map_err(|source| self.unreachable(source))?;
                self.clients.push(Client::new(stream, self.plan.version));
            }
            self.turn(Some(Duration::from_millis(100)))?;
            self.check("while connecting", self.counters.opened, wanted as u64)?;
        }
        Ok(())
    }

    fn unreachable(&self, source: io::Error) -> BenchError {
        BenchError::Unreachable {
            place: self.plan.place.clone(),
            source,
        }
    }

    fn subscribe(&mut self) -> Result<(), BenchError> {
        let wanted = self.plan.subscriber_count() as u64;
        let publishers = self.plan.publisher_count();
        for number in 0..wanted as usize {
            let filter = self.filter_of(number);
            let options = SubscriptionOptions::new(self.plan.qos_max());
            let one = [Subscription {
                filter: &filter,
                options,
            }];
            let client = &mut self.clients[publishers + number];
            let out = &mut client.output;
            encode::subscribe(out, self.plan.version, PacketId::FIRST, &[], &one);
            self.flush(publishers + number);
        }
        self.progress = (self.counters.progress(), Instant::now());
        while self.counters.subscribed < wanted && !self.is_stopped() {
            self.turn(Some(Duration::from_millis(100)))?;
            self.check("while subscribing", self.counters.subscribed, wanted)?;
        }
        Ok(())
    }

    /// The filter of subscriber `number`.
    fn filter_of(&self, number: usize) -> String {
        let plan = self.plan;
        let last = if plan.topics == 1 { "0" } else { "+" };
        match plan.scenario {
            Scenario::Pair => format!("{}/{number}/{last}", plan.prefix),
            _ => format!("{}/{last}", plan.prefix),
        }
    }

    pub fn topics_of(&self, publisher: usize) -> Vec<String> {
        let prefix = match self.plan.scenario {
            Scenario::Sub => self.plan.prefix.clone(),
            _ => format!("{}/{publisher}", self.plan.prefix),
        };
        (0..self.plan.topics)
            .map(|topic| format!("{prefix}/{topic}"))
            .collect()
    }

    /// Fails when the broker has refused something, closed a connection, or sent nothing for the plan's `patience`.
    fn check(&mut self, when: &'static str, done: u64, wanted: u64) -> Result<(), BenchError> {
        if let Some((what, reason)) = self.counters.refusal.take() {
            return Err(BenchError::Refused { what, reason });
        }
        if let Some(source) = self.counters.failure.take() {
            return Err(self.unreachable(source));
        }
        if self.counters.closed > 0 {
            return Err(self.closed(when));
        }
        if self.silence() > self.plan.patience {
            let seconds = self.plan.patience.as_secs();
            return Err(BenchError::Stalled {
                seconds,
                when,
                done,
                wanted,
            });
        }
        Ok(())
    }

    fn closed(&self, when: &'static str) -> BenchError {
        let reason = self.counters.close_reason.clone();
        BenchError::Closed {
            count: self.counters.closed,
            connections: self.clients.len(),
            when,
            reason: reason.unwrap_or_else(|| "it gave no reason".to_owned()),
        }
    }

    /// How long ago the last progress was.
    fn silence(&mut self) -> Duration {
        let progress = self.counters.progress() + self.unanswered;
        if progress != self.progress.0 {
            self.progress = (progress, Instant::now());
        }
        self.progress.1.elapsed()
    }

    fn publish(&mut self) -> Result<Report, BenchError> {
        let mut load = Load::new(self);
        let broker_cpu = || self.plan.broker_pid.and_then(process::cpu_ns);
        let (own_before, broker_before) = (own_cpu_ns(), broker_cpu());
        self.started = Instant::now();
        self.progress = (self.counters.progress(), Instant::now());
        let mut pinged = false;
        let mut interrupted = false;
        loop {
            interrupted |= self.is_stopped();
            let due_ns = if interrupted { None } else { load.send(self) };
            self.unanswered = load.sent - load.acks_wanted;
            if due_ns.is_none() && !pinged && !interrupted {
                pinged = true;
                self.ping_all();
            }
            self.flush_touched();
            let owed = load.acks_wanted > self.counters.acked
                || load.deliveries_wanted(self.plan) > self.counters.delivered
                || (pinged && self.counters.pongs < self.plan.publisher_count() as u64);
            if interrupted || (due_ns.is_none() && !owed) || self.has_given_up(due_ns, &load) {
                break;
            }
            let timeout = if load.has_more {
                Some(Duration::ZERO)
            } else {
                self.timeout(due_ns)
            };
            self.turn(timeout)?;
            if self.counters.closed > 0 {
                return Err(self.closed("while messages were sent"));
            }
        }
        // The final wait without progress does not count as working time.
        let _ = self.silence();
        let seconds = self.progress.1.duration_since(self.started).as_secs_f64();
        let mut report = Report::new(self.plan);
        report.seconds = if seconds > 0.0 {
            seconds
        } else {
            self.started.elapsed().as_secs_f64()
        };
        report.own_cpu_ns = own_cpu_ns().saturating_sub(own_before);
        report.broker_cpu_ns = broker_cpu()
            .zip(broker_before)
            .map(|(a, b)| a.saturating_sub(b));
        report.interrupted = interrupted;
        report.sent = load.sent;
        report.payload_bytes = load.payload_bytes;
        report.acks_wanted = load.acks_wanted;
        report.deliveries_wanted = load.deliveries_wanted(self.plan);
        report.lag = load.lag.take();
        report.acked = self.counters.acked;
        report.refused = self.counters.refused;
        report.delivered = self.counters.delivered;
        report.acks = std::mem::replace(&mut self.counters.acks, Latency::new());
        report.deliveries = std::mem::replace(&mut self.counters.deliveries, Latency::new());
        self.say_goodbye();
        Ok(report)
    }

    /// Whether it has waited long enough without progress to give up.
    fn has_given_up(&mut self, due_ns: Option<u64>, load: &Load) -> bool {
        let silence = self.silence();
        let is_over = due_ns.is_none() && load.acks_wanted <= self.counters.acked;
        let only_qos0 = is_over && self.plan.qos_max() == QoS::AtMostOnce;
        silence
            > self
                .plan
                .patience
                .min(if only_qos0 { QUIET } else { Duration::MAX })
            && due_ns.is_none_or(|due_ns| due_ns <= self.now_ns())
    }

    /// How long to poll the sockets when the next message is due at `due_ns`. Waits under 2 ms sleep here instead.
    fn timeout(&self, due_ns: Option<u64>) -> Option<Duration> {
        let idle = Duration::from_millis(100);
        let (Some(due_ns), Pace::Open { .. }) = (due_ns, self.plan.pace) else {
            return Some(idle);
        };
        let wait = Duration::from_nanos(due_ns.saturating_sub(self.now_ns()));
        if wait >= Duration::from_millis(2) {
            return Some((wait - Duration::from_millis(1)).min(idle));
        }
        if !wait.is_zero() {
            std::thread::sleep(wait.min(NAP));
        }
        Some(Duration::ZERO)
    }

    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Pings every publisher: its PINGRESP shows that the broker has read its QoS 0 messages.
    fn ping_all(&mut self) {
        for number in 0..self.plan.publisher_count() {
            encode::pingreq(&mut self.clients[number].output);
            self.touched.push(number);
        }
    }

    fn flush_touched(&mut self) {
        let touched: VecDeque<usize> = std::mem::take(&mut self.touched).into();
        for number in touched {
            self.flush(number);
        }
    }

    fn flush(&mut self, number: usize) {
        let client = &mut self.clients[number];
        if !matches!(client.state, State::Greeting | State::Open) {
            return;
        }
        if let Err(error) = client.flush() {
            client.send_failed(error, &mut self.buffer, &mut self.counters);
            self.end(number);
        }
    }

    fn end(&mut self, number: usize) {
        self.clients[number].state = State::Closed;
        self.counters.closed += 1;
    }

    /// Polls the sockets and handles their input.
    fn turn(&mut self, timeout: Option<Duration>) -> Result<(), BenchError> {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        match self.poll.poll(&mut events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            let is_over = event.is_read_closed() || event.is_error();
            self.serve(event.token().0, event.is_readable() || is_over, is_over)?;
        }
        self.events = events;
        Ok(())
    }

    fn serve(&mut self, number: usize, is_readable: bool, is_over: bool) -> Result<(), BenchError> {
        let client = &mut self.clients[number];
        match client.state {
            State::Closed => return Ok(()),
            State::Connecting => {
                if !client
                    .stream
                    .open()
                    .map_err(|source| BenchError::Unreachable {
                        place: self.plan.place.clone(),
                        source,
                    })?
                {
                    return Ok(());
                }
                client.state = State::Greeting;
                greet(client, self.plan, number);
            }
            State::Greeting | State::Open => {}
        }
        if is_readable {
            let started = self.started;
            let now_ns = || started.elapsed().as_nanos() as u64;
            if !client.read(&mut self.buffer, &mut self.counters, &now_ns, is_over)? {
                self.end(number);
                return Ok(());
            }
        }
        if client.backlog() > 0 || client.blocked {
            self.flush(number);
        }
        Ok(())
    }

    fn say_goodbye(&mut self) {
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            if client.state == State::Open {
                let reason = ReasonCode::NORMAL_DISCONNECTION;
                encode::disconnect(&mut client.output, self.plan.version, reason, &[]);
                self.flush(number);
            }
        }
    }
}

/// Puts the CONNECT of client `number` into its buffer.
pub fn greet(client: &mut Client, plan: &Plan, number: usize) {
    let client_id = format!("{}{number}", plan.client_prefix);
    let mut fields = ConnectFields::new(plan.version, &client_id);
    fields.keep_alive_s = 0;
    fields.username = plan.credentials.username.as_deref();
    fields.password = plan.credentials.password.as_deref();
    encode::connect(&mut client.output, &fields);
}

fn own_cpu_ns() -> u64 {
    process::cpu_ns(std::process::id()).unwrap_or(0)
}
