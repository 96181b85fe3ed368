//! Begins and ends to serve clients on an open log. A broker alone does so once, with its start; a node of a cluster each
//! time it begins or ends to lead.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use headwater_log::{Holders, Log};

use super::StartError;
use crate::event_loop::{Command, CommandSender, LeaveOffice, OpenOffice};
use crate::service::Service;
use crate::state::{Compaction, StateStore};

/// State records are compacted only above this size.
const COMPACT_AFTER_BYTES: u64 = 4 << 20;

/// Where clients go instead: an address for MQTT, as `host:port`, and one for Flight, as `grpc://host:port`.
#[derive(Debug, Clone, Default)]
pub struct Elsewhere {
    pub mqtt: Option<Arc<str>>,
    pub flight: Option<Arc<str>>,
}

/// What is there only while clients are served.
pub(super) struct Office {
    service: Service,
    open: Option<Open>,
}

struct Open {
    holders: Arc<dyn Holders>,
    _compaction: Compaction,
}

impl Office {
    pub fn new(service: Service) -> Self {
        Self {
            service,
            open: None,
        }
    }

    /// Replays the state of sessions and groups, and answers the calls of Flight and admin HTTP with it.
    ///
    /// # Errors
    /// The state cannot be read from the log, or the system refuses a thread.
    pub fn restore(&mut self, log: &Log) -> Result<Arc<StateStore>, StartError> {
        let state = Arc::new(StateStore::open(log, COMPACT_AFTER_BYTES)?);
        let compaction = Compaction::start(&state);
        let compaction = compaction.map_err(super::thread("compaction of the state"))?;
        let holders = self.service.open(Arc::clone(&state));
        self.open = Some(Open {
            holders,
            _compaction: compaction,
        });
        Ok(state)
    }

    /// Lets retention begin: only now can it ask the holders of old records.
    pub fn hold(&self, log: &Log) {
        if let Some(open) = &self.open {
            log.hold_with(&open.holders);
        }
    }

    /// Begins to serve clients, on a loop that sends them elsewhere until then. Does nothing if it serves them.
    ///
    /// # Errors
    /// Those of [`Self::restore`], or the loop cannot read sessions or retained messages. Then clients are refused until
    /// [`Self::leave`] says where they are sent.
    pub fn open(&mut self, log: &Log, commands: &CommandSender) -> Result<(), StartError> {
        if self.open.is_some() {
            return Ok(());
        }
        let state = self.restore(log)?;
        let (opened, answer) = sync_channel(1);
        commands.tell(Command::Open(OpenOffice { state, opened }));
        let answer = answer.recv().map_err(std::io::Error::other);
        if let Err(error) = answer.flatten() {
            self.end(Elsewhere::default());
            return Err(super::thread("MQTT data plane")(error));
        }
        self.hold(log);
        Ok(())
    }

    /// Ends to serve clients. When it returns, nothing that waited for an acknowledgement can get one any more. If it
    /// serves none, only changes where they are sent.
    pub fn leave(&mut self, commands: &CommandSender, elsewhere: Elsewhere) {
        let server = elsewhere.mqtt.clone();
        let (left, answer) = sync_channel(2);
        commands.tell(Command::Leave(LeaveOffice {
            server,
            left,
            stores: false,
        }));
        // An error means that the loop has stopped, and with it everything that could acknowledge.
        let _ = answer.recv();
        self.end(elsewhere);
    }

    /// The same while this node still leads the log: wills and sessions are stored as at a clean stop. Calls `over` when
    /// nothing that waited for an acknowledgement can get one any more.
    pub fn store(
        &mut self,
        commands: &CommandSender,
        elsewhere: Elsewhere,
        over: &mut dyn FnMut(),
    ) {
        self.service.leave(elsewhere.flight);
        let (left, answer) = sync_channel(2);
        commands.tell(Command::Leave(LeaveOffice {
            server: elsewhere.mqtt,
            left,
            stores: true,
        }));
        // Errors are those of `leave`.
        let _ = answer.recv();
        over();
        let _ = answer.recv();
        self.open = None;
    }

    fn end(&mut self, elsewhere: Elsewhere) {
        self.service.leave(elsewhere.flight);
        self.open = None;
    }
}
