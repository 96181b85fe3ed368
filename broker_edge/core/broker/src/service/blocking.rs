//! Runs the work of a call on a thread that may wait for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::callers::caller::Caller;
use super::callers::shares::Work;
use super::error::Refusal;
use super::request::{self, SMALL_BODY_BYTES};
use super::shared::Shared;

/// Sets the flag when the waiting call is dropped.
#[derive(Default)]
struct Waiting {
    stop: Arc<AtomicBool>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Runs `work` on a thread that may wait for the disk, when it is the caller's turn. The flag tells it to stop when
    /// the call is dropped.
    pub async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        caller: &Caller,
        kind: Work,
        work: impl FnOnce(&Arc<Shared>, &Arc<AtomicBool>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.shares.turn(caller, kind).await?;
        let shared = Arc::clone(self);
        let waiting = Waiting::default();
        let stop = Arc::clone(&waiting.stop);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            if stop.load(Ordering::Relaxed) {
                return Err(Refusal::unavailable("the call was cancelled"));
            }
            work(&shared, &stop)
        });
        let done = done.await;
        drop(waiting);
        done.unwrap_or_else(|error| {
            Err(Refusal::internal(format!("the call ended early: {error}")))
        })
    }

    /// Parses the body of `what`. A large one takes milliseconds, so it waits for the caller's turn and runs on a
    /// blocking thread.
    pub async fn body<T: DeserializeOwned + Send + 'static>(
        self: &Arc<Self>,
        caller: &Caller,
        what: &'static str,
        body: &Bytes,
    ) -> Result<T, Refusal> {
        if body.len() <= SMALL_BODY_BYTES {
            return request::read(what, body);
        }
        let body = body.clone();
        self.blocking(caller, Work::Look, move |_, _| request::read(what, &body))
            .await
    }

    /// Answers a request that scans topics or records.
    pub async fn look<B: DeserializeOwned + Send + 'static, T: Send + 'static>(
        self: &Arc<Self>,
        caller: &Caller,
        what: &'static str,
        body: &Bytes,
        work: impl FnOnce(&Shared, &Caller, B, &Arc<AtomicBool>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (body, by) = (self.body(caller, what, body).await?, caller.clone());
        self.blocking(caller, Work::Look, move |shared, stop| {
            work(shared, &by, body, stop)
        })
        .await
    }
}
