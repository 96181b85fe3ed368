//! Sends rows without copying them: Arrow's buffers become the frames of the response body.
//!
//! tonic would encode a message into one buffer, which copies every payload once, and Arrow's encoder would copy it
//! again. So `DoGet` returns its messages beside an empty stream, and [`WireService`] replaces the body with them.
//! tonic still handles requests, headers and refusals before the first message.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use http_body::Frame;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Response, Status};

use crate::service::authenticate::authenticate;
use crate::service::callers::budget::Loan;
use crate::service::connections::pass::Pass;
use crate::service::error::Refusal;
use crate::service::ingest::put_body::PutBody;
use crate::service::records::outbox::{LoanedMessage, Messages};
use crate::service::shared::Shared;

/// The largest request other than DoPut: a JSON object in Flight's envelope.
const REQUEST_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// The most bytes passed to the connection at once.
const FRAME_BYTES: usize = 256 << 10;

/// Passes the messages of a read from `DoGet` to [`WireService`]. Shared, because extensions must be `Clone`.
#[derive(Clone)]
struct MessagesExtension(Arc<Mutex<Option<Messages>>>);

/// A response whose body [`WireService`] replaces with `messages`.
pub fn answer<T>(messages: Messages) -> Response<stream::Empty<T>> {
    let mut response = Response::new(stream::empty());
    let handed = MessagesExtension(Arc::new(Mutex::new(Some(messages))));
    response.extensions_mut().insert(handed);
    response
}

/// Wraps the Flight service: identifies the caller before each call, and inserts the bodies of reads.
#[derive(Clone)]
pub struct WireService<S> {
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
                let stall = shared.limits.stall_timeout;
                let most = shared.config.flight.max_message_bytes.as_usize();
                let (head, body) = request.into_parts();
                let body = PutBody::new(body, lender, stall, most);
                let lent = body.lent();
                request = http::Request::from_parts(head, Body::new(body));
                request.extensions_mut().insert(lent);
            } else {
                let left = REQUEST_BYTES_MAX;
                request = request.map(|body| Body::new(SmallBody { body, left }));
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

impl http_body::Body for SmallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
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
        self.messages.take();
        loop {
            if let Some(part) = self.next_part() {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            self.loan = None;
            let status = match ready!(self.messages.poll(cx)) {
                Ok(LoanedMessage { message, loan }) => {
                    self.parts = message.0.into();
                    self.loan = loan.map(Arc::new);
                    continue;
                }
                Err(status) => status,
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

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
