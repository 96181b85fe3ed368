//! A stream of events to a page (`text/event-stream`), at most `admin.max_streams` at a time.
//!
//! A task sends the events. It ends with the page, with the broker, with the session and the rights of the user, and when
//! the page takes nothing for a while.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::failure::Failure;
use crate::service::callers::caller::Caller;
use crate::service::shared::{Shared, stopped};

/// A page that takes no event for this long loses its stream; it can ask for another.
const STALL: Duration = Duration::from_secs(30);
/// How often an idle stream is shown to be alive, also to proxies.
const BEAT: Duration = Duration::from_secs(15);
/// Has proxies pass on each event at once.
const NO_BUFFER: (HeaderName, HeaderValue) = (
    HeaderName::from_static("x-accel-buffering"),
    HeaderValue::from_static("no"),
);

/// The page is gone, takes nothing, or may no longer be sent anything.
pub struct Over;

pub struct Events {
    sender: mpsc::Sender<Result<Event, Infallible>>,
    stopping: watch::Receiver<bool>,
    shared: Arc<Shared>,
    pub caller: Caller,
    _slot: OwnedSemaphorePermit,
}

impl Events {
    /// The stream, and the answer to the page's request.
    ///
    /// # Errors
    /// There are as many streams as there may be.
    pub fn open(shared: &Arc<Shared>, caller: Caller) -> Result<(Events, Response), Failure> {
        let slot = Arc::clone(&shared.samples.streams).try_acquire_owned();
        let slot = slot.map_err(|_| {
            Failure::unavailable(format!(
                "{} streams to pages are open, which is the limit admin.max_streams: close some, or raise the limit",
                shared.config.admin.max_streams
            ))
        })?;
        let (sender, receiver) = mpsc::channel(1);
        let beat = KeepAlive::new().interval(BEAT);
        let body = Sse::new(ReceiverStream::new(receiver)).keep_alive(beat);
        let events = Events {
            sender,
            stopping: shared.stopping.clone(),
            shared: Arc::clone(shared),
            caller,
            _slot: slot,
        };
        Ok((events, ([NO_BUFFER], body).into_response()))
    }

    /// Sends an event, after a look at whether the user is still signed in, and at what they may do now.
    pub async fn send(&mut self, name: &'static str, data: &str) -> Result<(), Over> {
        self.renew()?;
        let event = Event::default().event(name).data(data);
        match timeout(STALL, self.sender.send(Ok(event))).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Over),
        }
    }

    /// A stream may be open for weeks, and meanwhile the session may end and the rights may change. Returns whether the
    /// rights did.
    pub fn renew(&mut self) -> Result<bool, Over> {
        let has_ended = |session| !self.shared.sessions.has(session);
        if self.caller.session().is_some_and(has_ended) {
            return Err(Over);
        }
        let renewed = self.caller.renewed(&self.shared.auth).map_err(|_| Over)?;
        let Some(caller) = renewed else {
            return Ok(false);
        };
        caller.must_view("this path").map_err(|_| Over)?;
        self.caller = caller;
        Ok(true)
    }

    /// Completes when the page is gone or the broker stops.
    pub async fn over(&self) {
        tokio::select! {
            () = self.sender.closed() => {}
            () = stopped(self.stopping.clone()) => {}
        }
    }
}
