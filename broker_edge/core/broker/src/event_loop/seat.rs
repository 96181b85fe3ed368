//! Whether the loop serves clients: it changes between the loop with an engine and the standby.

use std::io;
use std::sync::Arc;

use headwater_log::{Log, Watcher};

use super::doors::Doors;
use super::standby::{self, Standby};
use super::{Drain, Ended, EventLoop, LoopWaker, OpenOffice};
use crate::auth::AuthService;
use crate::engine::{Engine, Now, Settings};
use crate::metrics::Metrics;
use crate::state::StateStore;

/// What an engine is built from, each time the loop begins to serve clients.
pub struct EngineParts {
    pub settings: Settings,
    pub log: Log,
    pub metrics: Arc<Metrics>,
    pub auth: Arc<AuthService>,
    pub waker: Arc<LoopWaker>,
}

impl EngineParts {
    /// # Errors
    /// The log cannot be read.
    pub fn build(&self, state: Arc<StateStore>, now: Now) -> io::Result<Engine> {
        let (settings, log) = (self.settings.clone(), self.log.clone());
        let metrics = Arc::clone(&self.metrics);
        let own = Arc::clone(&self.waker);
        let wake: Watcher = Arc::new(move || own.wake());
        // The engine keeps it: a loop without one has nothing to do when the log moves.
        for partition in log.partitions() {
            partition.watch(&wake);
        }
        let mut engine =
            Engine::new(settings, log, state, metrics, now).map_err(io::Error::other)?;
        engine.set_auth(Arc::clone(&self.auth), wake);
        Ok(engine)
    }
}

/// What the loop does for clients.
pub enum Seat {
    Serving(Box<EventLoop>),
    Standby(Box<Standby>),
}

impl Seat {
    pub fn serving(doors: Doors, engine: Engine) -> Self {
        Self::Serving(Box::new(EventLoop::new(doors, engine, None)))
    }

    /// A loop that serves no clients until it is told to.
    pub fn standby(doors: Doors) -> Self {
        Self::Standby(Box::new(Standby::new(doors, None, None)))
    }

    /// Runs until a stop command.
    pub fn run(self, parts: &EngineParts) {
        let mut seat = self;
        loop {
            seat = match seat {
                Self::Serving(serving) => match serving.run() {
                    Ended::Stopped => return,
                    Ended::Left(doors, server, drain) => {
                        Self::Standby(Box::new(Standby::new(*doors, server, drain)))
                    }
                },
                Self::Standby(standby) => match standby.run() {
                    standby::Ended::Stopped => return,
                    standby::Ended::Opens(doors, office, drain) => {
                        open(*doors, office, drain, parts)
                    }
                },
            };
        }
    }
}

/// Serves clients, or stays a standby if the engine cannot be built.
fn open(doors: Doors, office: OpenOffice, drain: Option<Drain>, parts: &EngineParts) -> Seat {
    let OpenOffice { state, opened } = office;
    let (seat, result) = match parts.build(state, doors.now()) {
        Ok(engine) => {
            let serving = EventLoop::new(doors, engine, drain);
            (Seat::Serving(Box::new(serving)), Ok(()))
        }
        Err(error) => {
            let standby = Standby::new(doors, None, drain);
            (Seat::Standby(Box::new(standby)), Err(error))
        }
    };
    // An error means that nobody waits for the answer any more.
    let _ = opened.send(result);
    seat
}
