//! The thread that opens and leaves the office, so that beacons go on while sessions are restored.
//!
//! To leave is synchronous: [`Desk::leave`] returns when nothing of this office can be acknowledged any more, and only
//! then the log commits records of a later leader.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::inbox::Inbox;
use crate::broker::Elsewhere;

/// What the thread works with. All calls come from it.
pub trait Clients: Send + 'static {
    /// # Errors
    /// Why clients cannot be served; then [`leave`](Self::leave) says where they are sent.
    fn open(&mut self) -> Result<(), String>;
    /// Sends clients elsewhere; what waits for an acknowledgement never gets one.
    fn leave(&mut self, elsewhere: Elsewhere);
    /// The same, and stores sessions and wills. Calls `over` once nothing is acknowledged any more.
    fn store(&mut self, elsewhere: Elsewhere, over: &mut dyn FnMut());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Opening,
    Open,
    /// Nothing is acknowledged any more, and sessions are being stored.
    Storing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Nothing,
    Open,
    Leave,
    Store,
    /// Clients are not served, and go to another address than before.
    Tell,
    End,
}

struct Now {
    state: State,
    wanted: Wanted,
    elsewhere: Elsewhere,
}

struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
}

pub struct Desk {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Desk {
    /// # Errors
    /// The system refuses a thread.
    pub fn start(clients: impl Clients, inbox: Arc<Inbox>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            now: Mutex::new(Now {
                state: State::Closed,
                wanted: Wanted::Nothing,
                elsewhere: Elsewhere::default(),
            }),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("headwater-office".to_owned())
            .spawn(move || own.run(clients, &inbox))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Begins to serve clients, in a while.
    pub fn open(&self) {
        self.shared.want(Wanted::Open);
    }

    /// Returns when nothing is acknowledged any more.
    pub fn leave(&self, elsewhere: Elsewhere) {
        let mut now = self.shared.now.lock();
        now.elsewhere = elsewhere;
        now.wanted = match now.state {
            State::Closed | State::Storing => Wanted::Tell,
            State::Opening | State::Open => Wanted::Leave,
        };
        self.shared.changed.notify_all();
        while matches!(now.state, State::Opening | State::Open) {
            self.shared.changed.wait(&mut now);
        }
    }

    /// Ends to serve clients and stores what they left, in a while.
    pub fn store(&self) {
        self.shared.want(Wanted::Store);
    }

    /// Says where clients go while they are not served here.
    pub fn tell(&self, elsewhere: Elsewhere) {
        let mut now = self.shared.now.lock();
        now.elsewhere = elsewhere;
        if now.state != State::Open && now.wanted == Wanted::Nothing {
            now.wanted = Wanted::Tell;
            self.shared.changed.notify_all();
        }
    }

    /// Whether clients are served, or something of that is still to be stored.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let now = self.shared.now.lock();
        now.state != State::Closed || matches!(now.wanted, Wanted::Open | Wanted::Store)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.shared.want(Wanted::End);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the office has panicked");
        }
    }
}

impl Shared {
    fn want(&self, wanted: Wanted) {
        self.now.lock().wanted = wanted;
        self.changed.notify_all();
    }

    fn set(&self, state: State) {
        self.now.lock().state = state;
        self.changed.notify_all();
    }

    fn run(&self, mut clients: impl Clients, inbox: &Inbox) {
        loop {
            let (wanted, state, elsewhere) = self.next();
            match (wanted, state) {
                (Wanted::End, _) => return,
                (Wanted::Open, State::Closed) => {
                    let opened = clients.open();
                    let state = match &opened {
                        Ok(()) => State::Open,
                        Err(_) => State::Closed,
                    };
                    if let Err(reason) = opened {
                        tracing::error!(reason, "this node leads and cannot serve clients");
                        let newest = self.now.lock().elsewhere.clone();
                        clients.leave(newest);
                        inbox.put(|news| news.has_failed = true);
                    }
                    // Last, so that whoever waits for this office finds in the inbox that it failed.
                    self.set(state);
                }
                (Wanted::Leave, State::Open) => {
                    clients.leave(elsewhere);
                    self.set(State::Closed);
                }
                (Wanted::Store, State::Open) => {
                    clients.store(elsewhere, &mut || self.set(State::Storing));
                    self.set(State::Closed);
                    inbox.wake();
                }
                (Wanted::Tell | Wanted::Leave, State::Closed) => clients.leave(elsewhere),
                _ => {}
            }
        }
    }

    /// Waits for something to do, and takes it.
    fn next(&self) -> (Wanted, State, Elsewhere) {
        let mut now = self.now.lock();
        while now.wanted == Wanted::Nothing {
            self.changed.wait(&mut now);
        }
        let wanted = std::mem::replace(&mut now.wanted, Wanted::Nothing);
        let state = now.state;
        if (wanted, state) == (Wanted::Open, State::Closed) {
            // Under the lock: whoever leaves from here on waits.
            now.state = State::Opening;
        }
        (wanted, state, now.elsewhere.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Says what is called, and waits in `open` and `store` until it may go on.
    struct Scripted {
        called: Sender<&'static str>,
        goes_on: Receiver<Result<(), String>>,
    }

    impl Clients for Scripted {
        fn open(&mut self) -> Result<(), String> {
            self.called.send("open").expect("a test");
            self.goes_on.recv().expect("a test")
        }

        fn leave(&mut self, _: Elsewhere) {
            self.called.send("leave").expect("a test");
        }

        fn store(&mut self, _: Elsewhere, over: &mut dyn FnMut()) {
            over();
            self.called.send("over").expect("a test");
            self.goes_on.recv().expect("a test").expect("a test");
        }
    }

    struct Rig {
        desk: Desk,
        calls: Receiver<&'static str>,
        go: Sender<Result<(), String>>,
        inbox: Arc<Inbox>,
    }

    fn rig() -> Rig {
        let ((called, calls), (go, goes_on)) = (channel(), channel());
        let inbox = Arc::<Inbox>::default();
        let clients = Scripted { called, goes_on };
        let desk = Desk::start(clients, Arc::clone(&inbox)).expect("a thread");
        Rig {
            desk,
            calls,
            go,
            inbox,
        }
    }

    #[test]
    fn to_leave_waits_for_an_office_that_is_being_opened_and_for_its_end() {
        let Rig {
            desk, calls, go, ..
        } = rig();
        desk.open();
        assert_eq!(calls.recv(), Ok("open"));
        std::thread::scope(|scope| {
            let left = scope.spawn(|| desk.leave(Elsewhere::default()));
            assert!(!left.is_finished());
            go.send(Ok(())).expect("it waits");
        });
        assert_eq!(calls.try_recv(), Ok("leave"));
        assert!(!desk.is_busy());
    }

    #[test]
    fn to_leave_does_not_wait_until_sessions_are_stored() {
        let Rig {
            desk, calls, go, ..
        } = rig();
        desk.open();
        go.send(Ok(())).expect("it waits");
        assert_eq!(calls.recv(), Ok("open"));
        desk.store();
        assert_eq!(calls.recv(), Ok("over"));
        // Storing needs commits of the thread that leaves: it would wait for ever.
        desk.leave(Elsewhere::default());
        assert!(desk.is_busy());
        go.send(Ok(())).expect("it waits");
        assert_eq!(calls.recv(), Ok("leave"), "the new address is told");
    }

    #[test]
    fn an_office_that_cannot_be_opened_is_told_and_may_be_tried_again() {
        let Rig {
            desk,
            calls,
            go,
            inbox,
        } = rig();
        go.send(Err("no".to_owned())).expect("it waits");
        desk.open();
        assert_eq!(calls.recv(), Ok("open"));
        assert_eq!(calls.recv(), Ok("leave"), "where clients go is told again");
        desk.leave(Elsewhere::default());
        assert!(inbox.take().has_failed);
        go.send(Ok(())).expect("it waits");
        desk.open();
        while calls.recv() != Ok("open") {}
        desk.leave(Elsewhere::default());
    }
}
