//! Scenario `connect`: clients connect and disconnect. It measures connections per second, and each client's time from
//! its intended start to its CONNACK.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headwater_mqtt::{ReasonCode, encode};
use mio::{Events, Poll};

use crate::client::{Client, Counters, State};
use crate::latency::Latency;
use crate::messages::greet;
use crate::pace::Share;
use crate::plan::{Limit, Pace, Plan};
use crate::stream::Stream;
use crate::{BenchError, Report, process};

/// A connection that is being opened.
struct Arrival {
    client: Client,
    /// The client id is made from it.
    number: usize,
    due_ns: u64,
}

struct Connects<'a> {
    plan: &'a Plan,
    poll: Poll,
    slots: Vec<Option<Arrival>>,
    free: Vec<usize>,
    share: Share,
    counters: Counters,
    waits: Latency,
    lag: Latency,
    started: Instant,
    /// When the latest CONNACK arrived.
    last: Instant,
}

pub fn run(plan: &Plan, stop: &AtomicBool) -> Result<Report, BenchError> {
    let own = Some(std::process::id());
    let cpu_ns = |pid: Option<u32>| pid.and_then(process::cpu_ns);
    let (own_before, broker_before) = (cpu_ns(own), cpu_ns(plan.broker_pid));
    let mut connects = Connects {
        plan,
        poll: Poll::new()?,
        slots: std::iter::repeat_with(|| None)
            .take(plan.connections)
            .collect(),
        free: (0..plan.connections).rev().collect(),
        share: Share::new(0, 1, plan.pace, plan.limit),
        counters: Counters::new(),
        waits: Latency::new(),
        lag: Latency::new(),
        started: Instant::now(),
        last: Instant::now(),
    };
    let interrupted = connects.serve_all(stop)?;
    let mut report = connects.report(interrupted);
    let spent = |before: Option<u64>, after: Option<u64>| {
        after
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before))
    };
    report.own_cpu_ns = spent(own_before, cpu_ns(own)).unwrap_or(0);
    report.broker_cpu_ns = spent(broker_before, cpu_ns(plan.broker_pid));
    Ok(report)
}

impl Connects<'_> {
    /// Returns whether it was stopped before all clients had connected.
    fn serve_all(&mut self, stop: &AtomicBool) -> Result<bool, BenchError> {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; 4096];
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            let due_ns = self.begin_due()?;
            let is_idle = self.free.len() == self.slots.len();
            if due_ns.is_none() && is_idle {
                return Ok(false);
            }
            if !is_idle && self.last.elapsed() > self.plan.patience {
                return Err(BenchError::Stalled {
                    seconds: self.plan.patience.as_secs(),
                    when: "while clients connected",
                    done: self.counters.opened,
                    wanted: self.share.sent,
                });
            }
            let idle = Duration::from_millis(100);
            let wait = due_ns
                .filter(|_| !self.free.is_empty())
                .map_or(idle, |due_ns| {
                    Duration::from_nanos(due_ns.saturating_sub(self.now_ns())).min(idle)
                });
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            for event in &events {
                let is_over = event.is_read_closed() || event.is_error();
                self.serve(event.token().0, &mut buffer, is_over)?;
            }
            if let Some((what, reason)) = self.counters.refusal.take() {
                return Err(BenchError::Refused { what, reason });
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Starts the connections that are due while slots are free; returns when the next one is due.
    fn begin_due(&mut self) -> Result<Option<u64>, BenchError> {
        loop {
            let now_ns = self.now_ns();
            let Some(due_ns) = self.share.next_due_ns(now_ns) else {
                return Ok(None);
            };
            if due_ns > now_ns {
                return Ok(Some(due_ns));
            }
            let Some(slot) = self.free.pop() else {
                return Ok(Some(due_ns));
            };
            let stream = Stream::begin(self.plan, self.poll.registry(), slot)
                .map_err(|source| unreachable(self.plan, source))?;
            let client = Client::new(stream, self.plan.version);
            let number = self.share.sent as usize;
            self.slots[slot] = Some(Arrival {
                client,
                number,
                due_ns,
            });
            self.share.sent += 1;
            self.lag.record(now_ns.saturating_sub(due_ns));
        }
    }

    fn serve(&mut self, slot: usize, buffer: &mut [u8], is_over: bool) -> Result<(), BenchError> {
        let Some(arrival) = &mut self.slots[slot] else {
            return Ok(());
        };
        let started = self.started;
        let now_ns = || started.elapsed().as_nanos() as u64;
        if serve(
            arrival,
            self.plan,
            buffer,
            &mut self.counters,
            &now_ns,
            is_over,
        )? {
            self.waits.record(now_ns().saturating_sub(arrival.due_ns));
            self.last = Instant::now();
            self.slots[slot] = None;
            self.free.push(slot);
        }
        Ok(())
    }

    fn report(self, interrupted: bool) -> Report {
        let mut report = Report::new(self.plan);
        report.seconds = self.last.duration_since(self.started).as_secs_f64();
        report.sent = self.share.sent;
        report.acked = self.counters.opened;
        report.acks_wanted = match self.plan.limit {
            Limit::Messages(count) if !interrupted => count,
            _ => self.counters.opened,
        };
        report.acks = self.waits;
        report.lag = matches!(self.plan.pace, Pace::Open { .. }).then_some(self.lag);
        report.interrupted = interrupted;
        report
    }
}

fn unreachable(plan: &Plan, source: io::Error) -> BenchError {
    BenchError::Unreachable {
        place: plan.place.clone(),
        source,
    }
}

/// Advances one connection. Returns true when it has received its CONNACK and sent its DISCONNECT.
fn serve(
    arrival: &mut Arrival,
    plan: &Plan,
    buffer: &mut [u8],
    counters: &mut Counters,
    now_ns: &impl Fn() -> u64,
    is_over: bool,
) -> Result<bool, BenchError> {
    let client = &mut arrival.client;
    if client.state == State::Connecting {
        if !client
            .stream
            .open()
            .map_err(|source| unreachable(plan, source))?
        {
            return Ok(false);
        }
        client.state = State::Greeting;
        greet(client, plan, arrival.number);
        if let Err(error) = client.flush() {
            client.send_failed(error, buffer, counters);
            return failed(counters, plan);
        }
    }
    let lives = client.read(buffer, counters, now_ns, is_over)?;
    if client.state == State::Open {
        let reason = ReasonCode::NORMAL_DISCONNECTION;
        encode::disconnect(&mut client.output, plan.version, reason, &[]);
        // The connection may be closed already; its DISCONNECT does not count.
        let _ = client.flush();
        return Ok(true);
    }
    if !lives && counters.refusal.is_none() {
        return failed(counters, plan);
    }
    Ok(false)
}

/// Why a connection ended before its CONNACK.
fn failed(counters: &mut Counters, plan: &Plan) -> Result<bool, BenchError> {
    if let Some(source) = counters.failure.take() {
        return Err(unreachable(plan, source));
    }
    Err(BenchError::Closed {
        count: 1,
        connections: plan.connections,
        when: "before its CONNACK",
        reason: counters
            .close_reason
            .take()
            .unwrap_or_else(|| "it gave no reason".to_owned()),
    })
}
