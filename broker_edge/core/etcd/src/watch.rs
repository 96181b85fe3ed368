//! Changes of a prefix, across lost connections.
//!
//! A watch goes on after the last change that it gave out. When etcd has compacted what came after that, or sends more
//! of it at once than is taken, the watch reads all keys again and says so. What a member answers to a question for progress shows that it lives and no more: before
//! 3.4.25 and 3.5.8 it may name revisions whose changes have not been sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::client::Client;
use crate::connect::Connection;
use crate::error::{Error, Fault};
use crate::proto::{self, WatchAnswer, WatchAsk, WatchRequest};
use crate::status::{Failure, failure, shortened};
use crate::store::{Change, MetaStore as _, Revision, Update, Watch, Why};
use crate::wire::{key_value, revision, wire};

/// Before the first attempt after a failure; doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A watch of etcd.
#[derive(Debug)]
pub struct EtcdWatch {
    client: Client,
    prefix: String,
    /// Everything up to here was given out. `None`: all keys have to be read.
    seen: Option<Revision>,
    why: Why,
    open: Option<Open>,
    ready: VecDeque<Update>,
    pause: Duration,
    not_before: Option<Instant>,
}

/// The stream of one connection.
#[derive(Debug)]
struct Open {
    connection: Arc<Connection>,
    asks: mpsc::Sender<WatchAsk>,
    answers: Streaming<WatchAnswer>,
    /// When the member is asked for progress, or when it is lost if it has been asked.
    deadline: Instant,
    is_asked: bool,
}

impl EtcdWatch {
    pub(crate) fn new(client: Client, prefix: &str) -> Self {
        Self {
            client,
            prefix: prefix.to_owned(),
            seen: None,
            why: Why::First,
            open: None,
            ready: VecDeque::new(),
            pause: PAUSE_MIN,
            not_before: None,
        }
    }

    /// One step towards the next update. What is awaited here may be dropped at any time.
    async fn step(&mut self) -> Result<(), Error> {
        if let Some(at) = self.not_before {
            sleep_until(at).await;
            self.not_before = None;
        }
        let Some(seen) = self.seen else {
            let listing = self.client.get_all(&self.prefix).await?;
            self.seen = Some(listing.revision);
            let why = self.why;
            self.ready.push_back(Update::All { why, listing });
            return Ok(());
        };
        if self.open.is_none() {
            // A read finds out whether the store went back, which a watch of a revision to come would not show.
            self.client.get(&self.prefix).await?;
            let connection = self.client.connection().await?;
            self.open = Some(self.begin(connection, seen).await?);
        }
        self.receive().await
    }

    async fn begin(&self, connection: Arc<Connection>, seen: Revision) -> Result<Open, Error> {
        let (asks, requests) = mpsc::channel(2);
        let create = WatchRequest::Create(proto::WatchCreate {
            key: self.prefix.clone().into(),
            range_end: proto::range_end(&self.prefix),
            start_revision: wire(Revision(seen.0 + 1)),
        });
        let sent = asks.try_send(ask(create));
        sent.expect("there is room in a new channel");
        let patience = self.client.patience();
        let requests = ReceiverStream::new(requests);
        let opened = connection
            .stream(proto::WATCH, requests, patience.request)
            .await;
        match opened {
            Ok(answers) => Ok(Open {
                connection,
                asks,
                answers,
                deadline: Instant::now() + patience.progress,
                is_asked: false,
            }),
            Err(failure) => Err(self.lost(&connection, failure)),
        }
    }

    async fn receive(&mut self) -> Result<(), Error> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let patience = self.client.patience().progress;
        let Ok(received) = timeout_at(open.deadline, open.answers.message()).await else {
            return self.ask_progress();
        };
        open.deadline = Instant::now() + patience;
        open.is_asked = false;
        let connection = Arc::clone(&open.connection);
        let missing = || tonic::Status::unavailable("the stream has ended");
        let taken = match received.and_then(|answer| answer.ok_or_else(missing)) {
            Ok(answer) => self.take(answer),
            Err(status) => Err(failure(&status)),
        };
        match taken {
            // It would come again each time the watch goes on from here.
            Err(failure) if matches!(failure.fault, Fault::LargeAnswer(_)) => {
                self.read_all_again();
                Ok(())
            }
            taken => taken.map_err(|failure| self.lost(&connection, failure)),
        }
    }

    fn read_all_again(&mut self) {
        (self.seen, self.why, self.open) = (None, Why::Missed, None);
    }

    fn ask_progress(&mut self) -> Result<(), Error> {
        let patience = self.client.patience().progress;
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let progress = ask(WatchRequest::Progress(proto::WatchProgress {}));
        if !open.is_asked && open.asks.try_send(progress).is_ok() {
            open.is_asked = true;
            open.deadline = Instant::now() + patience;
            return Ok(());
        }
        let connection = Arc::clone(&open.connection);
        let silent = Fault::Silent(2 * patience.as_millis());
        Err(self.lost(&connection, silent.into()))
    }

    fn take(&mut self, answer: WatchAnswer) -> Result<(), Failure> {
        self.client.believe(&answer, Revision(0))?;
        if answer.compact_revision > 0 {
            self.read_all_again();
            return Ok(());
        }
        if answer.canceled {
            return Err(cancelled(&answer.cancel_reason));
        }
        self.pause = PAUSE_MIN;
        let seen = self.seen.unwrap_or_default();
        let mut newest = seen;
        let mut changes = Vec::new();
        for event in answer.events {
            let Some(pair) = event.kv.filter(|pair| revision(pair.mod_revision) > seen) else {
                continue;
            };
            newest = newest.max(revision(pair.mod_revision));
            match key_value(pair) {
                Ok(found) => changes.push(Change {
                    key: found.key,
                    revision: found.revision,
                    value: Some(found.value).filter(|_| event.kind != proto::EVENT_DELETE),
                }),
                Err(fault) => {
                    let endpoint = self
                        .open
                        .as_ref()
                        .map(|open| open.connection.endpoint.to_string());
                    let error = fault.at(&endpoint.unwrap_or_default());
                    self.ready.push_back(Update::Failed(error));
                }
            }
        }
        self.seen = Some(newest);
        if !changes.is_empty() {
            self.ready.push_back(Update::Changes(changes));
        }
        Ok(())
    }

    fn lost(&self, connection: &Arc<Connection>, failure: Failure) -> Error {
        if failure.fault.is_of_member() || failure.is_token_refused {
            self.client.give_up(connection);
        }
        failure.fault.at(&connection.endpoint)
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Update {
        loop {
            if let Some(update) = self.ready.pop_front() {
                return update;
            }
            if let Err(error) = self.step().await {
                self.open = None;
                self.not_before = Some(Instant::now() + self.pause);
                self.pause = PAUSE_MAX.min(self.pause * 2);
                return Update::Failed(error);
            }
        }
    }
}

fn ask(request: WatchRequest) -> WatchAsk {
    WatchAsk {
        request: Some(request),
    }
}

/// Why etcd ends a watch. Releases before 3.4.25 say "permission denied" of a refused token, too.
fn cancelled(reason: &str) -> Failure {
    let is_denied = reason.contains("permission denied");
    let fault = if is_denied {
        Fault::Denied
    } else {
        Fault::Unavailable(shortened(reason))
    };
    Failure {
        fault,
        may_be_done: false,
        is_token_refused: is_denied || reason.contains("auth"),
    }
}
