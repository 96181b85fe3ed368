//! What ends a broker that runs, or has it read its files again: signals, and a node of a cluster that ends by itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use headwater_cluster::marks::Offset;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::notify::Notify;
use crate::Broker;
use crate::audit::{self, Operated};
use crate::cluster::{Ended, OnEnd};

/// Why a broker is to be shut down.
pub enum Event {
    Stop,
    /// It is to be started again, with this.
    BeginAnew(Vec<Option<Offset>>),
}

enum Came {
    Signal(i32),
    Ended(Ended),
}

pub struct Events {
    /// Set by a signal that stops, also while a start waits.
    pub stop: Arc<AtomicBool>,
    sender: Sender<Came>,
    came: Receiver<Came>,
}

impl Events {
    /// # Errors
    /// The system refuses a handler of signals or a thread.
    pub fn new() -> io::Result<Self> {
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let stop = Arc::<AtomicBool>::default();
        let (sender, came) = channel();
        let (own, tell) = (Arc::clone(&stop), sender.clone());
        let forward = move || {
            for signal in signals.forever() {
                if signal != SIGHUP {
                    own.store(true, Ordering::Release);
                }
                if tell.send(Came::Signal(signal)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(forward)?;
        Ok(Self { stop, sender, came })
    }

    /// For a node that ends by itself.
    pub fn on_end(&self) -> OnEnd {
        let sender = self.sender.clone();
        // An error means that the process ends anyway.
        Arc::new(move |ended| drop(sender.send(Came::Ended(ended))))
    }

    /// Waits until the broker is to be shut down, and has it read its files again until then.
    pub fn wait(&self, broker: &Broker, notify: &Notify) -> Event {
        loop {
            let came = match notify.every {
                None => self.came.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(every) => self.came.recv_timeout(every),
            };
            match came {
                Ok(Came::Ended(Ended::BeginAnew(at))) => return Event::BeginAnew(at),
                Ok(Came::Signal(SIGHUP)) => reload(broker),
                Ok(Came::Signal(signal)) => {
                    tracing::info!(signal, "stopping");
                    return Event::Stop;
                }
                Err(RecvTimeoutError::Timeout) => notify.sign(|within| broker.responds(within)),
                // The own sender keeps the channel open.
                Err(RecvTimeoutError::Disconnected) => return Event::Stop,
            }
        }
    }
}

/// Errors have been logged, and the old contents stay in use.
fn reload(broker: &Broker) {
    let reloaded = broker.reload();
    audit::operated(&Operated {
        door: "signal",
        act: "reload",
        result: reloaded.as_ref().map_or_else(String::as_str, |()| "ok"),
        user: None,
        address: None,
    });
}
