//! The Flight service: decodes each call, passes it to the module that answers it, and encodes the answer.

pub mod actions;
pub mod backup;
pub mod wire;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use futures::{Stream, stream};
use headwater_log::Partition;
use serde_json::json;
use tonic::{Request, Response, Status, Streaming};

use crate::audit::{self, Interface, Operated, Refused};
use crate::auth::Access;
use crate::clock::now_us;
use crate::filter::Filters;
use crate::service::arrow::columns::SCHEMA;
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::Work;
use crate::service::connections::pass::Pass;
use crate::service::error::Refusal;
use crate::service::ingest::put;
use crate::service::records::{offsets, read};
use crate::service::request;
use crate::service::shared::Shared;
use actions::{ACTIONS, OF_OPERATORS, act};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

pub struct Flight {
    shared: Arc<Shared>,
}

impl Flight {
    pub fn new(shared: Arc<Shared>) -> Flight {
        Flight { shared }
    }

    /// Counts a refusal and records the caller in the audit log.
    pub fn refuse_caller(&self, caller: &Caller, act: &'static str, refusal: Refusal) -> Status {
        if let Some(reason) = refusal.audit_reason() {
            self.shared.metrics.audit.refuse(&Refused {
                door: Interface::Flight,
                act,
                reason,
                topic: refusal.topic(),
                user: caller.user().map(|user| &**user),
                address: None,
                client_id: None,
            });
        }
        self.refuse(refusal)
    }

    /// Counts a refusal.
    fn refuse(&self, refusal: Refusal) -> Status {
        self.shared.metrics.flight.errors.inc();
        let is_denied = u64::from(refusal.is_not_allowed());
        self.shared.metrics.auth.calls_denied.inc_by(is_denied);
        refusal.into()
    }
}

/// The caller, identified before the call reached this service.
fn caller_of<T>(request: &Request<T>) -> Result<Caller, Refusal> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Refusal::internal("the call arrived without an identified caller"))
}

/// The partitions with wanted topics as flights.
fn flight_infos(
    shared: &Shared,
    caller: &Caller,
    body: request::Topics,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<FlightInfo>, Refusal> {
    let filters = request::filters(body.filters, body.pattern, caller, Access::Receive, stop)?;
    offsets::reachable(shared, &filters)
        .map(|partition| flight_info(shared, partition, &filters))
        .collect()
}

/// The partition as a flight: its present records, with its topics as metadata.
fn flight_info(
    shared: &Shared,
    partition: &Partition,
    filters: &Filters,
) -> Result<FlightInfo, Refusal> {
    let (start, end) = (partition.log_start().0, partition.high_watermark().0);
    let rows = offsets::topic_rows(partition, filters)?;
    let ticket = json!({"partition": partition.id().0, "start": start, "end": end}).to_string();
    let info = FlightInfo::new()
        .with_descriptor(FlightDescriptor::new_cmd(ticket.clone()))
        .with_endpoint(FlightEndpoint::new().with_ticket(Ticket::new(ticket)))
        .with_total_records(i64::try_from(end.saturating_sub(start)).unwrap_or(i64::MAX))
        .with_total_bytes(i64::try_from(partition.size_bytes()).unwrap_or(i64::MAX))
        .with_ordered(true)
        .with_app_metadata(offsets::topics_text(shared, &rows));
    info.try_with_schema(&SCHEMA)
        .map_err(|error| Refusal::internal(error.to_string()))
}

#[tonic::async_trait]
impl FlightService for Flight {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = stream::Empty<Result<FlightData, Status>>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    /// The stream is empty: the messages are put into the body beside it.
    async fn do_get(&self, request: Request<Ticket>) -> Answer<Self::DoGetStream> {
        let caller = caller_of(&request).map_err(|refusal| self.refuse(refusal))?;
        let started = async {
            let text = &request.get_ref().ticket;
            let ticket: request::Ticket = self.shared.body(&caller, "the ticket", text).await?;
            if ticket.pattern.is_none() && text.len() <= request::SMALL_BODY_BYTES {
                return read::start(&self.shared, &caller, ticket);
            }
            // Compiling a pattern takes milliseconds, and so does checking the rights to thousands of filters.
            let by = caller.clone();
            let start =
                move |shared: &Arc<Shared>, _: &Arc<AtomicBool>| read::start(shared, &by, ticket);
            self.shared.blocking(&caller, Work::Look, start).await
        };
        let messages = started
            .await
            .map_err(|refusal| self.refuse_caller(&caller, "read", refusal))?;
        Ok(wire::answer(messages))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        let caller = caller_of(&request).map_err(|refusal| self.refuse(refusal))?;
        let begun = put::Put::begin(&self.shared, caller.clone(), request).await;
        let put = begun.map_err(|refusal| self.refuse_caller(&caller, "produce", refusal))?;
        // A refusal ends the call: rows after it would be out of order.
        let flight = Flight::new(Arc::clone(&self.shared));
        let answers = stream::unfold(Some((put, flight)), async |put| {
            let (mut put, flight) = put?;
            let answer = put.next().await?;
            let answer = answer
                .map(|answer| PutResult {
                    app_metadata: answer.to_string().into(),
                })
                .map_err(|refusal| flight.refuse_caller(&put.caller, "produce", refusal));
            let go_on = answer.is_ok().then_some((put, flight));
            Some((answer, go_on))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn do_action(&self, request: Request<Action>) -> Answer<Self::DoActionStream> {
        let caller = caller_of(&request).map_err(|refusal| self.refuse(refusal))?;
        let address = request.extensions().get::<Arc<Pass>>();
        let address = address.map(|pass| pass.address.ip());
        let action = request.into_inner();
        let answers = act(&self.shared, caller.clone(), &action).await;
        // What others try in vain is in the audit as their refusals, which are limited: they must not fill the log.
        let is_told = caller.is_operator() || answers.is_ok();
        if is_told && OF_OPERATORS.contains(&action.r#type.as_str()) {
            let body = String::from_utf8_lossy(&action.body);
            audit::operated(&Operated {
                door: Interface::Flight.name(),
                act: &format!("{} {body}", action.r#type),
                result: answers
                    .as_ref()
                    .map_or_else(|refusal| refusal.message(), |_| "ok"),
                user: caller.user().map(|user| &**user),
                address,
            });
        }
        let answers = answers.map_err(|refusal| self.refuse_caller(&caller, "action", refusal))?;
        let results = answers
            .into_iter()
            .map(|answer| Ok(arrow_flight::Result::new(answer)));
        Ok(Response::new(Box::pin(stream::iter(results))))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Answer<Self::ListActionsStream> {
        let actions = ACTIONS.map(|(name, meaning)| {
            Ok(ActionType {
                r#type: name.to_owned(),
                description: meaning.to_owned(),
            })
        });
        Ok(Response::new(Box::pin(stream::iter(actions))))
    }

    async fn list_flights(&self, request: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        let caller = caller_of(&request);
        let listed = async {
            let (caller, text) = (caller?, request.into_inner().expression);
            self.shared.office.get()?;
            let flights = self
                .shared
                .look(&caller, "the criteria", &text, flight_infos);
            flights.await
        };
        let flights = listed.await.map_err(|refusal| self.refuse(refusal))?;
        Ok(Response::new(Box::pin(stream::iter(
            flights.into_iter().map(Ok),
        ))))
    }

    /// A descriptor holds the same object as a ticket; the answer contains it as a ticket.
    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        let caller = caller_of(&request).map_err(|refusal| self.refuse(refusal))?;
        let descriptor = request.into_inner();
        let found = async {
            let text = request::text_of(&descriptor)?;
            let ticket = self.shared.body(&caller, "the descriptor", text).await;
            let ticket: request::Ticket = ticket?;
            self.shared.office.get()?;
            self.shared.partition(ticket.partition)?;
            let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(descriptor.cmd.clone()));
            let info = FlightInfo::new()
                .with_descriptor(descriptor)
                .with_endpoint(endpoint)
                .with_ordered(true);
            info.with_total_records(-1)
                .with_total_bytes(-1)
                .try_with_schema(&SCHEMA)
                .map_err(|error| Refusal::internal(error.to_string()))
        };
        found
            .await
            .map(Response::new)
            .map_err(|refusal| self.refuse(refusal))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        let schema = SchemaAsIpc::new(&SCHEMA, &IpcWriteOptions::default()).try_into();
        schema
            .map(Response::new)
            .map_err(|error| self.refuse(Refusal::internal(format!("{error}"))))
    }

    /// The password in the header was already checked; the answer is a token to use in its place.
    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Self::HandshakeStream> {
        let caller = caller_of(&request).map_err(|refusal| self.refuse(refusal))?;
        let shared = &self.shared;
        let token = shared.bearers.issue(caller.identity(), now_us());
        let payload = token.clone().unwrap_or_default();
        let answer = HandshakeResponse {
            protocol_version: 0,
            payload: payload.into(),
        };
        let mut response: Response<Self::HandshakeStream> =
            Response::new(Box::pin(stream::iter([Ok(answer)])));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().map_err(|_| {
                self.refuse(Refusal::internal("the token cannot be sent in a header"))
            })?;
            response.metadata_mut().insert("authorization", value);
        }
        Ok(response)
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<PollInfo> {
        Err(Status::unimplemented(
            "PollFlightInfo is not supported; use GetFlightInfo",
        ))
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Answer<Self::DoExchangeStream> {
        Err(Status::unimplemented(
            "DoExchange is not supported; use DoGet and DoPut",
        ))
    }
}
