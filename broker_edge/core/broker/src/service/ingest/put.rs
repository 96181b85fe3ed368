//! A DoPut call: handles its messages in order, each answered before the next.

use std::sync::Arc;

use arrow_flight::{FlightData, FlightDescriptor};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Code, Request, Status, Streaming};

use super::produce;
use super::put_body::SharedLoan;
use crate::service::arrow::ipc::Decoder;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::Work;
use crate::service::error::Refusal;
use crate::service::request::{self, command};
use crate::service::shared::{Shared, stopped};

/// Receives the first message of a DoPut, whose descriptor names the operation.
async fn first(messages: &mut Streaming<FlightData>) -> Result<FlightData, Refusal> {
    let first = match messages.message().await {
        Ok(Some(first)) => first,
        Ok(None) => {
            return Err(Refusal::invalid(
                "",
                "the first message must carry a descriptor and a schema",
            ));
        }
        Err(status) if status.code() == Code::Unavailable => {
            return Err(Refusal::unavailable(status.message()));
        }
        Err(status) => {
            return Err(Refusal::invalid(
                "",
                format!("the first message is unreadable: {}", status.message()),
            ));
        }
    };
    let put: request::Put = match &first.flight_descriptor {
        Some(descriptor) => command(descriptor)?,
        None => command(&FlightDescriptor::default())?,
    };
    if put.op != "produce" {
        return Err(Refusal::invalid(
            "op",
            format!("`op` is `{}`; it must be `produce`", put.op.escape_debug()),
        ));
    }
    Ok(first)
}

/// A DoPut in progress.
pub struct Put {
    messages: BoxStream<'static, Result<FlightData, Status>>,
    decoder: Decoder,
    shared: Arc<Shared>,
    pub caller: Caller,
    lent: SharedLoan,
    /// Held for the duration of the call.
    _turn: Option<OwnedSemaphorePermit>,
}

impl Put {
    /// Receives the first message.
    ///
    /// # Errors
    /// The caller may not publish or is over its share, or the call is not a valid DoPut.
    pub async fn begin(
        shared: &Arc<Shared>,
        caller: Caller,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Self, Refusal> {
        caller.must_publish()?;
        shared.office.get()?;
        // Waits before receiving anything, because received messages take memory.
        let turn = shared.shares.turn(&caller, Work::Put).await?;
        let lent = request.extensions().get::<SharedLoan>().cloned();
        let mut messages = request.into_inner();
        let first = first(&mut messages).await?;
        let messages = stream::iter([Ok(first)])
            .chain(messages)
            .take_until(stopped(shared.stopping.clone()));
        Ok(Put {
            messages: messages.boxed(),
            decoder: Decoder::default(),
            shared: Arc::clone(shared),
            caller,
            lent: lent.unwrap_or_default(),
            _turn: turn,
        })
    }

    /// The answer to the next batch of rows; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Value, Refusal>> {
        loop {
            let answer = match self.messages.next().await {
                Some(Ok(message)) => self.take(message).await,
                Some(Err(status)) if status.code() == Code::Unavailable => {
                    Err(Refusal::unavailable(status.message()))
                }
                Some(Err(status)) => Err(Refusal::invalid(
                    "",
                    format!("the rows are unreadable: {}", status.message()),
                )),
                None if *self.shared.stopping.borrow() => {
                    Err(Refusal::unavailable("the broker is stopping"))
                }
                None => return None,
            };
            if let Some(answer) = answer.transpose() {
                return Some(answer);
            }
        }
    }

    /// Decodes a message and appends its rows, if it has any.
    async fn take(&mut self, message: FlightData) -> Result<Option<Value>, Refusal> {
        let (runtime, by) = (Handle::current(), self.caller.clone());
        let mut decoder = std::mem::take(&mut self.decoder);
        let loan = self.lent.keep();
        let (decoder, answer) = self
            .shared
            .blocking(&self.caller, Work::Write, move |shared, _| {
                // Returned when the rows are appended, even if the call is gone.
                let _loan = loan;
                let answer = match decoder.decode(&message)? {
                    Some(batch) => Some(produce::produce(shared, &by, &batch, &runtime)?),
                    None => None,
                };
                Ok((decoder, answer))
            })
            .await?;
        self.decoder = decoder;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_descriptor_is_refused_before_it_is_read() {
        let long = format!(r#"{{"op": "{}"}}"#, "\u{7f}".repeat(20_000));
        let refused = command::<request::Put>(&FlightDescriptor::new_cmd(long));
        let status = Status::from(refused.expect_err("the descriptor is too long"));
        assert!(status.message().contains("the limit is 16384"), "{status}");
    }
}
