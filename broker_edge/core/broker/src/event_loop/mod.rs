//! The event loop's thread: listeners, sockets, poll and waker. It knows no packets; the engine knows no sockets.
//!
//! Sockets are registered once, edge-triggered in both directions. So a turn costs only the poll, one receive per
//! readable connection and one send per connection with output.

mod accept;
mod admission;
mod arrival;
mod arrivals;
mod commands;
mod doors;
mod failure;
mod failure_log;
mod held_bytes;
mod listener;
mod read;
mod read_queue;
mod seat;
mod socket;
mod standby;
mod turn_share;
mod waker;
mod write;

use std::io;
use std::sync::Arc;

use mio::Events;

use crate::engine::{ConnKey, Drain, Engine};

pub use commands::{AskError, Command, CommandSender, Commands, LeaveOffice, OpenOffice, queue};
pub use doors::{Doors, WAKER};
use read_queue::ReadQueue;
pub use seat::{EngineParts, Seat};
pub use waker::LoopWaker;

/// The loop while it serves clients.
pub struct EventLoop {
    doors: Doors,
    engine: Engine,
    readable: ReadQueue,
    drain: Option<Drain>,
}

/// Why the loop ends to serve clients.
pub enum Ended {
    Stopped,
    /// Other nodes serve clients from now on.
    Left(Box<Doors>, Option<Arc<str>>, Option<Drain>),
}

impl EventLoop {
    pub fn new(doors: Doors, mut engine: Engine, drain: Option<Drain>) -> Self {
        engine.set_drain(drain);
        Self {
            doors,
            engine,
            readable: ReadQueue::default(),
            drain,
        }
    }

    /// Runs turns until a command ends it.
    pub fn run(mut self) -> Ended {
        let mut events = Doors::events();
        loop {
            if let Err(error) = self.wait(&mut events)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the poll failed, the loop stops");
                return Ended::Stopped;
            }
            let now = self.doors.now();
            self.doors.begin(now);
            self.engine.begin(now);
            self.readable.begin_turn();
            match self.handle_commands() {
                None => {}
                Some(Last::Stop) => return self.stop(),
                Some(Last::Leave(leave)) => {
                    // What the poll has said of listeners and arrivals it does not say again. All else is closed.
                    for event in &events {
                        self.doors.take_event(event);
                    }
                    return self.leave(leave);
                }
            }
            self.take_events(&events);
            self.accept();
            self.promote();
            let left = self.read();
            self.look_again(&mut events, left);
            self.engine.tick();
            self.engine.commit_live();
            self.write_live();
            self.engine.commit_late();
            self.write();
            self.engine.end();
            if self.engine.has_late() {
                // Without the yield the loop would keep its CPU for milliseconds, while live clients and kernel threads
                // wait.
                std::thread::yield_now();
            }
        }
    }

    /// Handles commands from other threads. Returns the one that ends the loop.
    fn handle_commands(&mut self) -> Option<Last> {
        for _ in 0..commands::TAKEN_MAX {
            match self.doors.commands.take()? {
                Command::Stop => return Some(Last::Stop),
                Command::Leave(leave) => return Some(Last::Leave(leave)),
                // An error means that nobody waits any more.
                Command::Ping(answer) => drop(answer.try_send(())),
                Command::Clients(request) => self.engine.answer_clients(request),
                Command::Retain(request) => self.engine.answer_retain(request),
                Command::Weigh(request) => {
                    if self.engine.answer_weigh(request) {
                        break;
                    }
                }
                Command::Drain(drain) => {
                    self.drain = drain;
                    self.engine.set_drain(drain);
                }
                // It serves clients already.
                Command::Open(_) => {}
            }
        }
        None
    }

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let has_work = !self.readable.is_empty() || self.engine.has_more() || self.doors.has_work();
        if has_work {
            return self.doors.look(events);
        }
        let engine = &self.engine;
        let next_ms = engine.next_deadline_ms();
        self.doors.sleep(events, || engine.is_behind_log(), next_ms)
    }

    fn take_events(&mut self, events: &Events) {
        for event in events {
            let Some(token) = self.doors.take_event(event) else {
                continue;
            };
            let key = ConnKey::from_bits(token.0 as u64);
            if event.is_writable() {
                self.writable(key);
            }
            let is_ending = event.is_read_closed() || event.is_error();
            if is_ending {
                self.doors.sockets.mark_ending(key);
            }
            if event.is_readable() || is_ending {
                self.want_read(key);
            }
        }
    }

    fn writable(&mut self, key: ConnKey) {
        if let Err(error) = self.doors.sockets.flush(key) {
            tracing::debug!(%error, "a send failed");
            self.engine.lost(key);
        }
        self.engine.writable(key);
    }

    fn want_read(&mut self, key: ConnKey) {
        if self.doors.sockets.mark_readable(key) {
            self.readable.push(key, self.engine.is_catching_up(key));
        }
    }

    /// The clean stop: notifies clients, stores wills and sessions.
    fn stop(mut self) -> Ended {
        self.close_all();
        self.engine.store_all();
        Ended::Stopped
    }

    fn close_all(&mut self) {
        self.engine.close_all();
        self.engine.commit();
        self.write();
    }

    /// Sends the clients to another server. What is acknowledged is in the log; what is not was never promised.
    fn leave(mut self, leave: LeaveOffice) -> Ended {
        let LeaveOffice {
            server,
            left,
            stores,
        } = leave;
        if stores {
            self.close_all();
        } else {
            self.engine.abandon(server.as_deref());
            self.write();
        }
        // An error, here and below, means that nobody waits for the answer any more.
        let _ = left.try_send(());
        if stores {
            self.engine.store_all();
        }
        drop(self.engine);
        let _ = left.try_send(());
        Ended::Left(Box::new(self.doors), server, self.drain)
    }
}

/// The command that ends the loop.
enum Last {
    Stop,
    Leave(LeaveOffice),
}
