//! The loop without an engine: every client is told where the records are.
//!
//! Connections arrive as always, with TLS, WebSocket and the limits before a CONNECT, because a client reads the answer
//! only in its own protocol.

use std::io;
use std::sync::Arc;

use headwater_mqtt::ReasonCode;
use mio::Events;

use super::Command;
use super::arrivals::Opened;
use super::commands::{self, OpenOffice};
use super::doors::Doors;
use crate::engine::Drain;
use crate::metrics::ConnectFailure;
use crate::transport::first_bytes::{connack_elsewhere, connack_refusal};

const NO_LEADER: &str = "this node serves no clients and knows none that does: try again";

pub struct Standby {
    doors: Doors,
    /// The address of the node that serves clients.
    server: Option<Arc<str>>,
    /// Maintenance that an operator began; an engine that opens begins with it.
    drain: Option<Drain>,
}

/// Why the loop ends to be a standby.
pub enum Ended {
    Stopped,
    /// It is to serve clients.
    Opens(Box<Doors>, OpenOffice, Option<Drain>),
}

impl Standby {
    pub fn new(doors: Doors, server: Option<Arc<str>>, drain: Option<Drain>) -> Self {
        Self {
            doors,
            server,
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
            // Before the commands: one of them ends this loop, and what the poll has said once it does not say again.
            for event in &events {
                self.doors.take_event(event);
            }
            for _ in 0..commands::TAKEN_MAX {
                match self.doors.commands.take() {
                    Some(Command::Stop) => return Ended::Stopped,
                    Some(Command::Open(office)) => {
                        return Ended::Opens(Box::new(self.doors), office, self.drain);
                    }
                    Some(Command::Leave(leave)) => {
                        self.server = leave.server;
                        // An error means that nobody waits for the answer any more.
                        let _ = leave.left.try_send(());
                        let _ = leave.left.try_send(());
                    }
                    Some(Command::Drain(drain)) => self.drain = drain,
                    // The service asks only while there is an office. Without an answer it reports that there is none.
                    Some(Command::Ping(answer)) => drop(answer.try_send(())),
                    Some(Command::Clients(_) | Command::Retain(_) | Command::Weigh(_)) => {}
                    None => break,
                }
            }
            self.doors.accept(0);
            self.answer();
            self.doors.drain_let_go();
        }
    }

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        if self.doors.has_work() {
            return self.doors.look(events);
        }
        self.doors.sleep(events, || false, None)
    }

    fn answer(&mut self) {
        let Some(mut turn) = self.doors.begin_arrivals() else {
            return;
        };
        while let Some(opened) = self.doors.next_opened(&mut turn) {
            self.send_elsewhere(opened);
        }
        self.doors.end_arrivals();
    }

    fn send_elsewhere(&mut self, opened: Opened) {
        let Opened { arrival, len, .. } = opened;
        let connect = &self.doors.buffer[..len];
        let answer = match &self.server {
            Some(server) => connack_elsewhere(connect, server),
            None => connack_refusal(connect, ReasonCode::ServerUnavailable, NO_LEADER),
        };
        let address = arrival.address;
        let (mut stream, _) = arrival.into_stream();
        self.doors.per_address.leave(address.ip());
        self.doors.count_failure(ConnectFailure::Standby, address);
        // The first bytes sent on a socket always fit its buffer. A client that is gone needs no answer.
        if stream.send(&answer).is_ok() {
            self.doors.sockets.let_go(stream);
        }
    }
}
