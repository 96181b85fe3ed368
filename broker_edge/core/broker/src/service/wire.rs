//! Sends rows without copying them: Arrow's buffers become the frames of the response body.
//!
//! tonic would encode a message into one buffer, which copies every payload once, and Arrow's encoder would copy it
//! again. So `DoGet` returns its messages beside an empty stream, and [`WireService`] replaces the body with them.
//! tonic still handles requests, headers and refusals before the first message.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use arrow_schema::{ArrowError, SchemaRef};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream;
use http_body::Frame;
use parking_lot::Mutex;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Response, Status};

use super::Shared;
use super::budget::Loan;
use super::caller::authenticate;
use super::error::Refusal;
use super::gate::Pass;
use super::put_body::PutBody;
use super::shares::Pace;

/// `FlightData.data_body`, the last field of a message.
const BODY_FIELD: u32 = 1000;
/// Each message begins with a byte for "not compressed" and four bytes of length.
const GRPC_PREFIX_BYTES: usize = 5;
/// The marker and the length before the metadata of an Arrow message.
const IPC_PREFIX_BYTES: usize = 8;
/// Buffers up to this size are copied together, because a separate frame costs more than the copy.
const COPIED_BYTES_MAX: usize = 8 << 10;
/// The largest request other than DoPut: a JSON object in Flight's envelope.
const REQUEST_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// The most bytes passed to the connection at once.
const FRAME_BYTES: usize = 256 << 10;

/// One encoded message of a read: its head, then the buffers of its rows.
pub(super) struct Message(Vec<Bytes>);

/// A message that waits for its reader, with its loan. The read may take it back.
#[derive(Clone)]
pub(super) struct MessageSlot(Arc<Mutex<Option<LoanedMessage>>>);

struct LoanedMessage {
    message: Message,
    loan: Option<Loan>,
}

impl MessageSlot {
    pub fn new(message: Message, loan: Option<Loan>) -> MessageSlot {
        MessageSlot(Arc::new(Mutex::new(Some(LoanedMessage { message, loan }))))
    }

    pub fn discard(self) {
        drop(self.0.lock().take());
    }
}

/// The messages of a read, then its final status.
pub(super) struct Messages {
    receiver: mpsc::Receiver<Result<MessageSlot, Status>>,
    pace: Arc<Pace>,
}

impl Messages {
    pub fn new(receiver: mpsc::Receiver<Result<MessageSlot, Status>>, pace: Arc<Pace>) -> Messages {
        Messages { receiver, pace }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.pace.gone.store(true, Ordering::Relaxed);
    }
}

/// Encodes record batches of one schema into messages.
pub(super) struct Encoder {
    encoder: StreamEncoder,
}

impl Encoder {
    /// The encoder, and the schema message, which must be sent first.
    pub fn new(schema: &SchemaRef) -> Result<(Encoder, Message), ArrowError> {
        let mut encoder = StreamEncoder::try_new(schema)?;
        // The first output begins with the schema in file framing, which Flight does not use.
        encoder.encode(&RecordBatch::new_empty(Arc::clone(schema)))?;
        let first = FlightData::from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()));
        Ok((Encoder { encoder }, Message::new(&first, Vec::new())))
    }

    /// The canonical schema has no dictionaries, so a batch is exactly one message.
    pub fn encode(
        &mut self,
        batch: &RecordBatch,
        app_metadata: String,
    ) -> Result<Message, ArrowError> {
        let mut parts = self
            .encoder
            .encode(batch)?
            .into_iter()
            .map(Bytes::from_owner);
        let mut head = BytesMut::new();
        let header_bytes = loop {
            if let Some(length) = ipc_header_bytes(&head)
                && head.len() >= IPC_PREFIX_BYTES + length
            {
                break length;
            }
            let part = parts
                .next()
                .ok_or_else(|| ArrowError::IpcError("a message ends in its header".to_owned()))?;
            head.extend_from_slice(&part);
        };
        let mut header = head.freeze().split_off(IPC_PREFIX_BYTES);
        let begun = header.split_off(header_bytes);
        let message = FlightData::new()
            .with_data_header(header)
            .with_app_metadata(app_metadata);
        Ok(Message::new(&message, [begun].into_iter().chain(parts)))
    }
}

fn ipc_header_bytes(head: &[u8]) -> Option<usize> {
    let length = head.get(IPC_PREFIX_BYTES - 4..IPC_PREFIX_BYTES)?;
    usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()
}

impl Message {
    /// Builds a message from `fields` (without its body) and the parts of the body.
    fn new(fields: &FlightData, body: impl IntoIterator<Item = Bytes>) -> Message {
        let body: Vec<Bytes> = body.into_iter().filter(|part| !part.is_empty()).collect();
        let body_bytes: usize = body.iter().map(Bytes::len).sum();
        let mut encoded = BytesMut::with_capacity(fields.encoded_len() + 16);
        fields
            .encode(&mut encoded)
            .expect("a buffer that grows has room");
        if body_bytes > 0 {
            encode_key(BODY_FIELD, WireType::LengthDelimited, &mut encoded);
            encode_varint(body_bytes as u64, &mut encoded);
        }
        let mut gathered = BytesMut::with_capacity(GRPC_PREFIX_BYTES + encoded.len());
        gathered.put_u8(0);
        let message_bytes = encoded.len() + body_bytes;
        gathered.put_u32(u32::try_from(message_bytes).expect("a batch of rows stays below 2 GiB"));
        gathered.extend_from_slice(&encoded);
        let mut parts = Vec::with_capacity(body.len() + 1);
        for part in body {
            if part.len() <= COPIED_BYTES_MAX {
                gathered.extend_from_slice(&part);
            } else {
                if !gathered.is_empty() {
                    parts.push(gathered.split().freeze());
                }
                parts.push(part);
            }
        }
        if !gathered.is_empty() {
            parts.push(gathered.freeze());
        }
        Message(parts)
    }
}

/// Passes the messages of a read from `DoGet` to [`WireService`]. Shared, because extensions must be `Clone`.
#[derive(Clone)]
struct MessagesExtension(Arc<Mutex<Option<Messages>>>);

/// A response whose body [`WireService`] replaces with `messages`.
pub(super) fn answer<T>(messages: Messages) -> Response<stream::Empty<T>> {
    let mut response = Response::new(stream::empty());
    let handed = MessagesExtension(Arc::new(Mutex::new(Some(messages))));
    response.extensions_mut().insert(handed);
    response
}

/// Wraps the Flight service: identifies the caller before each call, and inserts the bodies of reads.
#[derive(Clone)]
pub(super) struct WireService<S> {
    pub service: S,
    pub shared: Arc<Shared>,
}

impl<S: NamedService> NamedService for WireService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for WireService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // Uses the instance that was polled ready, and leaves a fresh one in its place.
        let fresh = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, fresh);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let Some(pass) = request.extensions().get::<Arc<Pass>>().cloned() else {
                return Ok(Status::internal("the connection has no pass").into_http());
            };
            if is_of_a_browser(request.headers()) {
                shared.refuse_call(&pass, "origin", None);
                let refused = Status::permission_denied("Flight does not serve web pages");
                return Ok(refused.into_http());
            }
            let caller = match authenticate(&shared, request.headers(), &pass).await {
                Ok(caller) => caller,
                Err(refusal) => {
                    shared.metrics.flight.errors.inc();
                    return Ok(Status::from(refusal).into_http());
                }
            };
            if request.uri().path().ends_with("/DoPut") {
                let lender = shared.shares.put_lender(&caller);
                let stall = shared.config.limits.stall_timeout;
                let most = shared.config.flight.max_message_bytes.as_usize();
                let (head, body) = request.into_parts();
                let body = PutBody::new(body, lender, stall, most);
                let lent = body.lent();
                request = http::Request::from_parts(head, Body::new(body));
                request.extensions_mut().insert(lent);
            } else {
                request = request.map(|body| Body::new(SmallBody::new(body)));
            }
            request.extensions_mut().insert(caller);
            let mut response = service.call(request).await?;
            let handed = response.extensions_mut().remove::<MessagesExtension>();
            Ok(match handed.and_then(|handed| handed.0.lock().take()) {
                Some(messages) => response.map(|_| Body::new(WireBody::new(messages))),
                None => response,
            })
        })
    }
}

/// Whether a web page may have made the call. A browser speaks HTTP/2 only over TLS, to a host whose certificate it
/// trusts, so DNS rebinding does not reach Flight. A page cannot send gRPC's content type without a preflight request,
/// which nothing here answers. Requests that any page can send are refused.
fn is_of_a_browser(headers: &http::HeaderMap) -> bool {
    let is_grpc = headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    !is_grpc || headers.contains_key(http::header::ORIGIN) || headers.contains_key("sec-fetch-site")
}

/// The body of a request with a small JSON object; it stops receiving at the limit.
struct SmallBody {
    body: Body,
    left: usize,
}

impl SmallBody {
    fn new(body: Body) -> SmallBody {
        SmallBody {
            body,
            left: REQUEST_BYTES_MAX,
        }
    }
}

impl http_body::Body for SmallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match self.left.checked_sub(bytes) {
                Some(left) => self.left = left,
                None => {
                    let message =
                        format!("the request is over the limit of {REQUEST_BYTES_MAX} bytes");
                    return Poll::Ready(Some(Err(Refusal::invalid("", message).into())));
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The body of a read: its messages in parts, then the status as trailers.
struct WireBody {
    messages: Messages,
    /// The rest of the message being sent.
    parts: VecDeque<Bytes>,
    /// The loan of the message being sent; parts that the connection still holds keep it.
    loan: Option<Arc<Loan>>,
    ended: bool,
}

impl WireBody {
    fn new(messages: Messages) -> WireBody {
        WireBody {
            messages,
            parts: VecDeque::new(),
            loan: None,
            ended: false,
        }
    }

    /// The next part of the message being sent, small enough to see a slow reader make progress.
    fn next_part(&mut self) -> Option<Bytes> {
        let part = self.parts.front_mut()?;
        let part = if part.len() > FRAME_BYTES {
            part.split_to(FRAME_BYTES)
        } else {
            self.parts.pop_front()?
        };
        Some(match &self.loan {
            Some(loan) => Bytes::from_owner(MessagePart {
                bytes: part,
                _loan: Arc::clone(loan),
            }),
            None => part,
        })
    }
}

/// A part of a message in the connection. It keeps the loan of the whole message, whose buffers all stay in memory.
struct MessagePart {
    bytes: Bytes,
    _loan: Arc<Loan>,
}

impl AsRef<[u8]> for MessagePart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for WireBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // The connection asks for more, so it has room and the reader is taking data.
        self.messages.pace.take();
        loop {
            if let Some(part) = self.next_part() {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            self.loan = None;
            let next = match self.messages.receiver.poll_recv(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            };
            let status = match next {
                Some(Ok(slot)) => match slot.0.lock().take() {
                    Some(LoanedMessage { message, loan }) => {
                        self.parts = message.0.into();
                        self.loan = loan.map(Arc::new);
                        continue;
                    }
                    None => stalled(),
                },
                Some(Err(status)) => status,
                None => stalled(),
            };
            self.ended = true;
            let mut trailers = http::HeaderMap::new();
            status.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// The status for a reader that continues after losing its slot.
fn stalled() -> Status {
    let message = "this reader took nothing for longer than flight.stall_timeout; continue with a new read from the last `next`";
    Refusal::unavailable(message).into()
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
