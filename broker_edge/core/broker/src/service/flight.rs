//! The Flight service: decodes each call, passes it to the module that answers it, and encodes the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use headwater_log::Partition;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tonic::{Request, Response, Status, Streaming};

use super::backup;
use super::caller::{Caller, now_us};
use super::columns::SCHEMA;
use super::error::Refusal;
use super::gaps::{self, GapRecord, Gaps};
use super::ipc::Decoder;
use super::put_body::SharedLoan;
use super::shares::Work;
use super::{Shared, offsets, plan, put, read, request, wire};
use crate::audit::{Interface, Refused};
use crate::auth::Access;
use crate::filter::Filters;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

const ACTIONS: [(&str, &str); 9] = [
    ("version", "version, protocol, disk format and log id"),
    (
        "topics",
        "topics with their partition, first and next offset",
    ),
    (
        "offsets",
        "log start, high watermark, epoch, offset for a time",
    ),
    (
        "plan",
        "how far to read within limits that count matching records",
    ),
    ("commit", "commits offsets of a consumer group"),
    ("committed", "what a consumer group committed"),
    ("groups", "the consumer groups that the caller may use"),
    ("remove_group", "removes a consumer group"),
    ("gap", "records a gap that a reader found"),
];

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

/// Bodies up to this size are parsed on the thread that receives them.
const SMALL_BODY_BYTES: usize = 16 << 10;
/// The longest reason or log id in a gap report.
const GAP_TEXT_BYTES_MAX: usize = 4_096;

pub(super) struct Flight {
    pub shared: Arc<Shared>,
}

impl Flight {
    pub fn new(shared: Arc<Shared>) -> Flight {
        Flight { shared }
    }

    /// Runs `work` on a thread that may wait for the disk, when it is the caller's turn. The flag tells it to stop when
    /// the call is dropped.
    pub async fn blocking<T: Send + 'static>(
        &self,
        caller: &Caller,
        kind: Work,
        work: impl FnOnce(&Arc<Shared>, &Arc<AtomicBool>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.shared.shares.turn(caller, kind).await?;
        let shared = Arc::clone(&self.shared);
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
    async fn body<T: DeserializeOwned + Send + 'static>(
        &self,
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

    async fn act(&self, caller: Caller, action: &Action) -> Result<Vec<Value>, Refusal> {
        let body = &action.body;
        let groups = &self.shared.groups;
        match action.r#type.as_str() {
            name @ "backup" => caller.must_operate(name)?,
            name @ ("commit" | "committed" | "groups" | "gap") => caller.must_replay(name)?,
            _ => {}
        }
        let one = match action.r#type.as_str() {
            "version" => {
                request::read::<request::Empty>("version", body)?;
                offsets::version(&self.shared)
            }
            "topics" => {
                let body: request::Topics = self.body(&caller, "topics", body).await?;
                let by = caller.clone();
                return self
                    .blocking(&caller, Work::Look, move |shared, stop| {
                        offsets::topics(shared, &by, body, stop)
                    })
                    .await;
            }
            "offsets" => {
                let body: request::Offsets = self.body(&caller, "offsets", body).await?;
                let by = caller.clone();
                self.blocking(&caller, Work::Look, move |shared, stop| {
                    offsets::offsets(shared, &by, body, stop)
                })
                .await?
            }
            "plan" => {
                let body: request::Plan = self.body(&caller, "plan", body).await?;
                let by = caller.clone();
                self.blocking(&caller, Work::Look, move |shared, stop| {
                    plan::plan(shared, &by, body, stop)
                })
                .await?
            }
            "commit" => {
                let body = self.body(&caller, "commit", body).await?;
                groups.commit(&caller, body).await?
            }
            "committed" => {
                let body = request::read("committed", body)?;
                groups.committed(&caller, body).await?
            }
            "groups" => {
                let body = request::read("groups", body)?;
                let by = caller.clone();
                // Every group is decoded to find its owner.
                let page = self.blocking(&caller, Work::Look, move |shared, _| {
                    shared.groups.groups(&by, &body)
                });
                let page = page.await?;
                groups.durable().await?;
                page
            }
            "remove_group" => {
                let body = request::read("remove_group", body)?;
                groups.remove(&caller, body).await?
            }
            "gap" => {
                let body: request::Gap = request::read("gap", body)?;
                if let Some(group) = &body.group {
                    groups.check_use(&caller, group)?;
                }
                self.shared.shares.report(&caller)?;
                let (runtime, by) = (Handle::current(), caller.clone());
                self.blocking(&caller, Work::Write, move |shared, _| {
                    record_gap(shared, &by, &body, &runtime)
                })
                .await?
            }
            "backup" => {
                let body: request::Backup = request::read("backup", body)?;
                self.blocking(&caller, Work::Write, move |shared, _| {
                    backup::backup(shared, &body)
                })
                .await?
            }
            other => return Err(Refusal::not_found(format!("there is no action `{other}`"))),
        };
        Ok(vec![one])
    }

    /// Counts a refusal and records the caller in the audit log.
    pub fn refuse_caller(&self, caller: &Caller, act: &'static str, refusal: Refusal) -> Status {
        if let Some(reason) = refusal.audit_reason() {
            self.shared.metrics.audit.refuse(&Refused {
                door: Interface::Flight,
                act,
                reason,
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

/// Appends to `$gaps` a gap that a reader found.
fn record_gap(
    shared: &Arc<Shared>,
    caller: &Caller,
    gap: &request::Gap,
    runtime: &Handle,
) -> Result<Value, Refusal> {
    for (field, text) in [
        ("reason", Some(&gap.reason)),
        ("log_id", gap.log_id.as_ref()),
    ] {
        if text.is_some_and(|text| text.len() > GAP_TEXT_BYTES_MAX) {
            let message = format!("{field} is longer than {GAP_TEXT_BYTES_MAX} bytes");
            return Err(Refusal::invalid(field, message));
        }
    }
    if gap.reason.starts_with(gaps::OF_RETENTION) {
        let message = "a reason may not begin with `retention: `, which is for the broker's own reports: describe what the reader found";
        return Err(Refusal::invalid("reason", message));
    }
    if gap.end.is_some_and(|end| gap.start >= end) {
        return Err(Refusal::invalid(
            "end",
            "the end of a gap must be above its start",
        ));
    }
    let is_elsewhere = gap
        .log_id
        .as_ref()
        .is_some_and(|log_id| *log_id != shared.log_id);
    if gap.end.is_none() && !is_elsewhere {
        return Err(Refusal::invalid("end", "a gap in this log needs an `end`"));
    }
    let of = if is_elsewhere {
        None
    } else {
        Some(shared.partition(gap.partition)?)
    };
    let gaps = Gaps::of(&shared.log)
        .ok_or_else(|| Refusal::internal("the topic $gaps has no partition"))?;
    let partition = &gaps.partition;
    let records = gaps
        .records(&GapRecord {
            of: gap.partition,
            name: of.map(Partition::name),
            log_id: gap.log_id.as_deref().filter(|_| is_elsewhere),
            start: gap.start,
            end: gap.end,
            reason: &gap.reason,
            group: gap.group.as_deref(),
            user: caller.user().map(|user| &**user),
        })
        .map_err(|_| Refusal::internal("the record of the gap is too large"))?;
    let range = shared.wait_for_room(runtime, partition, records, Partition::append)?;
    runtime.block_on(shared.progress[partition.id().0 as usize].reach(range.end))?;
    Ok(json!({}))
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
        .with_app_metadata(json!({"log_id": shared.log_id, "topics": rows}).to_string());
    info.try_with_schema(&SCHEMA)
        .map_err(|error| Refusal::internal(error.to_string()))
}

/// The unparsed JSON object in a descriptor.
fn text_of(descriptor: &FlightDescriptor) -> Result<&Bytes, Refusal> {
    if descriptor.r#type() != DescriptorType::Cmd {
        return Err(Refusal::invalid(
            "",
            "the descriptor must be a command with a JSON object",
        ));
    }
    Ok(&descriptor.cmd)
}

/// Parses the JSON object in a descriptor that is always short.
pub(super) fn command<T: DeserializeOwned>(descriptor: &FlightDescriptor) -> Result<T, Refusal> {
    let text = text_of(descriptor)?;
    if text.len() > SMALL_BODY_BYTES {
        let message = format!(
            "the descriptor has {} bytes of JSON; the limit is {SMALL_BODY_BYTES}",
            text.len()
        );
        return Err(Refusal::invalid("", message));
    }
    request::read("the descriptor", text)
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
            let ticket: request::Ticket = self.body(&caller, "the ticket", text).await?;
            if ticket.pattern.is_none() && text.len() <= SMALL_BODY_BYTES {
                return read::start(&self.shared, &caller, ticket);
            }
            // Compiling a pattern takes milliseconds, and so does checking the rights to thousands of filters.
            let by = caller.clone();
            self.blocking(&caller, Work::Look, move |shared, _| {
                read::start(shared, &by, ticket)
            })
            .await
        };
        let messages = started
            .await
            .map_err(|refusal| self.refuse_caller(&caller, "read", refusal))?;
        Ok(wire::answer(messages))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        let caller = caller_of(&request).map_err(|refusal| self.refuse(refusal))?;
        caller
            .must_publish()
            .map_err(|refusal| self.refuse_caller(&caller, "produce", refusal))?;
        // Waits before receiving anything, because received messages take memory.
        let turn = self.shared.shares.turn(&caller, Work::Put).await;
        let turn = turn.map_err(|refusal| self.refuse_caller(&caller, "produce", refusal))?;
        let lent = request.extensions().get::<SharedLoan>().cloned();
        let mut messages = request.into_inner();
        let first = put::first(&mut messages)
            .await
            .map_err(|refusal| self.refuse_caller(&caller, "produce", refusal))?;
        let mut stopping = self.shared.stopping.clone();
        let messages = stream::iter([Ok(first)])
            .chain(messages)
            .take_until(async move {
                let _ = stopping.wait_for(|stop| *stop).await;
            });
        let put = put::Put {
            messages: Box::pin(messages),
            decoder: Decoder::default(),
            flight: Flight::new(Arc::clone(&self.shared)),
            caller,
            lent: lent.unwrap_or_default(),
            _turn: turn,
        };
        // A refusal ends the call: rows after it would be out of order.
        let answers = stream::unfold(Some(put), async |put| {
            let mut put = put?;
            let answer = put.next().await?;
            let answer = answer
                .map(|answer| PutResult {
                    app_metadata: answer.to_string().into(),
                })
                .map_err(|refusal| put.flight.refuse_caller(&put.caller, "produce", refusal));
            let go_on = answer.is_ok().then_some(put);
            Some((answer, go_on))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn do_action(&self, request: Request<Action>) -> Answer<Self::DoActionStream> {
        let caller = caller_of(&request).map_err(|refusal| self.refuse(refusal))?;
        let answers = self
            .act(caller.clone(), &request.into_inner())
            .await
            .map_err(|refusal| self.refuse_caller(&caller, "action", refusal))?;
        let results = answers
            .into_iter()
            .map(|answer| Ok(arrow_flight::Result::new(answer.to_string())));
        Ok(Response::new(Box::pin(stream::iter(
            results.collect::<Vec<_>>(),
        ))))
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
            let caller = caller?;
            let text = request.into_inner().expression;
            let body: request::Topics = self.body(&caller, "the criteria", &text).await?;
            let by = caller.clone();
            self.blocking(&caller, Work::Look, move |shared, stop| {
                let pattern = body.pattern.as_deref();
                let filters = request::filters(body.filters, pattern, &by, Access::Receive, stop)?;
                let partitions = offsets::reachable(shared, &filters);
                partitions
                    .map(|partition| flight_info(shared, partition, &filters))
                    .collect::<Result<Vec<_>, _>>()
            })
            .await
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
            let text = text_of(&descriptor)?;
            let ticket: request::Ticket = self.body(&caller, "the descriptor", text).await?;
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
