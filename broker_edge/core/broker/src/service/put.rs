//! A DoPut call: handles its messages in order, each answered before the next.

use arrow_flight::{FlightData, FlightDescriptor};
use futures::{Stream, StreamExt};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Code, Status, Streaming};

use super::caller::Caller;
use super::error::Refusal;
use super::flight::{Flight, command};
use super::ipc::Decoder;
use super::put_body::SharedLoan;
use super::shares::Work;
use super::{produce, request};

/// Receives the first message of a DoPut, whose descriptor names the operation.
pub(super) async fn first(messages: &mut Streaming<FlightData>) -> Result<FlightData, Refusal> {
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
pub(super) struct Put<S> {
    pub messages: S,
    pub decoder: Decoder,
    pub flight: Flight,
    pub caller: Caller,
    pub lent: SharedLoan,
    /// Held for the duration of the call.
    pub _turn: Option<OwnedSemaphorePermit>,
}

impl<S: Stream<Item = Result<FlightData, Status>> + Unpin> Put<S> {
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
                None if *self.flight.shared.stopping.borrow() => {
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
            .flight
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
