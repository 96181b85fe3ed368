//! The body of a DoPut: a message is received when there is memory for it.
//!
//! tonic collects a whole message, up to `flight.max_message_bytes`, before it passes it on. So this body reads the
//! length prefixes and borrows the memory of a message, from the user's and the common budget, before it passes the
//! message on. The loan is returned when the next message is requested, which is after this one is appended. A client
//! that does not send an announced message loses its call, because it would withhold the memory from others.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;

use crate::service::callers::budget::{Lender, Loan};

/// Each message begins with a byte for "not compressed" and four bytes of length.
const PREFIX_BYTES: usize = 5;
/// Messages up to this size need no loan.
const FREE_BYTES: usize = 64 << 10;
/// The lowest allowed rate of a message, in bytes per second.
const RATE_BYTES: u64 = 32 << 10;

pub struct PutBody {
    body: Body,
    lender: Lender,
    stall: Duration,
    bytes_max: usize,
    /// The received part of the next prefix.
    prefix: Vec<u8>,
    /// Bytes of the message still to come.
    left: usize,
    lending: Option<BoxFuture<'static, Loan>>,
    lent: SharedLoan,
    /// A frame that waits for its loan.
    held: Option<Frame<Bytes>>,
    /// During a message with a loan: the deadline for its next bytes, and the deadline for all of it.
    clock: Option<(Pin<Box<Sleep>>, Instant)>,
}

/// The loan of the newest message. The worker of the message keeps a reference until it is done, because the received
/// bytes may outlive the call.
#[derive(Clone, Default)]
pub struct SharedLoan(Arc<Mutex<Option<Arc<Loan>>>>);

impl SharedLoan {
    pub fn keep(&self) -> Option<Arc<Loan>> {
        self.0.lock().clone()
    }

    fn set(&self, loan: Option<Loan>) {
        *self.0.lock() = loan.map(Arc::new);
    }
}

impl PutBody {
    pub fn new(body: Body, lender: Lender, stall: Duration, bytes_max: usize) -> PutBody {
        PutBody {
            body,
            lender,
            stall,
            bytes_max,
            prefix: Vec::with_capacity(PREFIX_BYTES),
            left: 0,
            lending: None,
            lent: SharedLoan::default(),
            held: None,
            clock: None,
        }
    }

    pub fn lent(&self) -> SharedLoan {
        self.lent.clone()
    }

    /// Tracks the messages in `data`; requests a loan at the start of each message that needs one.
    fn follow(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left > 0 {
                let of_message = self.left.min(data.len());
                self.left -= of_message;
                data = &data[of_message..];
                continue;
            }
            let of_prefix = (PREFIX_BYTES - self.prefix.len()).min(data.len());
            self.prefix.extend_from_slice(&data[..of_prefix]);
            data = &data[of_prefix..];
            if let [_, a, b, c, d] = self.prefix[..] {
                self.prefix.clear();
                self.begin(u32::from_be_bytes([a, b, c, d]) as usize);
            }
        }
    }

    fn begin(&mut self, bytes: usize) {
        self.left = bytes;
        // tonic refuses a longer message before collecting it.
        if bytes <= FREE_BYTES || bytes > self.bytes_max || self.lending.is_some() {
            return;
        }
        self.lent.set(None);
        let lender = self.lender.clone();
        self.lending = Some(Box::pin(async move { lender.lend(bytes).await }));
        let slow = Duration::from_secs(bytes as u64 / RATE_BYTES);
        let now = Instant::now();
        let sleep = Box::pin(tokio::time::sleep_until(now + self.stall));
        self.clock = Some((sleep, now + self.stall + slow));
    }

    /// Extends the deadline when bytes of the message arrive.
    fn wind(&mut self) {
        if let Some((sleep, end)) = &mut self.clock {
            let next = (Instant::now() + self.stall).min(*end);
            sleep.as_mut().reset(next);
        }
    }

    /// Whether the deadline for the whole message has passed, however steadily bytes arrive.
    fn is_over(&self) -> bool {
        let clock = self.clock.as_ref();
        clock.is_some_and(|(_, end)| Instant::now() >= *end)
    }

    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let clock = self.clock.as_mut();
        clock.is_some_and(|(sleep, _)| sleep.as_mut().poll(cx).is_ready())
    }
}

impl http_body::Body for PutBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(lending) = &mut this.lending {
            match lending.as_mut().poll(cx) {
                Poll::Ready(loan) => {
                    this.lent.set(Some(loan));
                    this.lending = None;
                    this.wind();
                }
                Poll::Pending if this.is_late(cx) => {
                    let message = "other calls hold the memory for messages; try again";
                    return Poll::Ready(Some(Err(Status::unavailable(message))));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        if let Some(frame) = this.held.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if this.left == 0 {
            // The message is done, since its receiver asks for the next one.
            this.lent.set(None);
            this.clock = None;
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if this.is_over() || (polled.is_pending() && this.is_late(cx)) {
            let message = "the rest of a message did not arrive in time";
            return Poll::Ready(Some(Err(Status::unavailable(message))));
        }
        let frame = ready!(polled);
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.wind();
            let data = data.clone();
            this.follow(&data);
        }
        match frame {
            Some(Ok(frame)) if this.lending.is_some() => {
                this.held = Some(frame);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tonic::Code;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(100);
    const LARGE: usize = FREE_BYTES + 1;

    /// A body whose frames are sent one by one.
    struct Sent(tokio::sync::mpsc::UnboundedReceiver<Bytes>);

    impl http_body::Body for Sent {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let data = ready!(self.0.poll_recv(cx));
            Poll::Ready(data.map(|data| Ok(Frame::data(data))))
        }
    }

    fn body(lender: Lender, stall: Duration) -> (UnboundedSender<Bytes>, PutBody) {
        let (sender, receiver) = unbounded_channel();
        let body = Body::new(Sent(receiver));
        (sender, PutBody::new(body, lender, stall, 10 * LARGE))
    }

    /// A message with its length prefix.
    fn message(bytes: usize) -> Vec<u8> {
        let length = u32::try_from(bytes).unwrap().to_be_bytes();
        [&[0], &length[..], &vec![7; bytes]].concat()
    }

    async fn next(body: &mut PutBody) -> Result<usize, Code> {
        let frame = futures::stream::poll_fn(|cx| http_body::Body::poll_frame(Pin::new(body), cx));
        let frame = std::pin::pin!(frame).next().await;
        let frame = frame.expect("a frame").map_err(|status| status.code())?;
        Ok(frame.into_data().map_or(0, |data| data.len()))
    }

    async fn is_waiting(body: &mut PutBody) -> bool {
        let waited = tokio::time::timeout(SHORT, next(body));
        waited.await.is_err()
    }

    #[tokio::test]
    async fn a_message_is_received_when_there_is_memory_for_it() {
        let lender = Lender::of(LARGE + LARGE / 2);
        let (first_sender, mut first) = body(lender.another(), LONG);
        let (second_sender, mut second) = body(lender.another(), LONG);
        let large = message(LARGE);
        let (begin, rest) = large.split_at(3);
        for part in [begin, rest] {
            first_sender.send(part.to_vec().into()).unwrap();
        }
        second_sender.send(large.clone().into()).unwrap();
        assert_eq!(next(&mut first).await, Ok(3));
        assert_eq!(next(&mut first).await, Ok(rest.len()));
        assert!(is_waiting(&mut second).await, "the first has the memory");
        let (third_sender, mut third) = body(lender.another(), LONG);
        third_sender.send(message(10).into()).unwrap();
        assert_eq!(next(&mut third).await, Ok(15), "a small one needs none");
        assert!(is_waiting(&mut first).await, "its message is done");
        assert_eq!(next(&mut second).await, Ok(large.len()));
    }

    #[tokio::test]
    async fn who_does_not_send_what_was_announced_loses_the_memory_and_the_call() {
        let lender = Lender::of(LARGE);
        let (sender, mut stalled) = body(lender.another(), SHORT);
        sender.send(message(LARGE)[..10].to_vec().into()).unwrap();
        assert_eq!(next(&mut stalled).await, Ok(10));
        assert_eq!(next(&mut stalled).await, Err(Code::Unavailable));
        drop(stalled);

        // An occasional byte does not keep the call alive forever.
        let (sender, mut slow) = body(lender.another(), SHORT);
        sender.send(message(LARGE)[..10].to_vec().into()).unwrap();
        let ended = async {
            loop {
                if let Err(code) = next(&mut slow).await {
                    return code;
                }
                tokio::time::sleep(SHORT / 10).await;
                sender.send(vec![7].into()).unwrap();
            }
        };
        let ended = tokio::time::timeout(LONG, ended).await;
        assert_eq!(ended, Ok(Code::Unavailable));
    }

    #[tokio::test]
    async fn memory_stays_lent_while_somebody_works_on_a_message_whose_call_is_gone() {
        let lender = Lender::of(LARGE + LARGE / 2);
        let (sender, mut gone) = body(lender.another(), LONG);
        sender.send(message(LARGE).into()).unwrap();
        assert_eq!(next(&mut gone).await, Ok(message(LARGE).len()));
        let kept = gone.lent().keep();
        drop((sender, gone));
        let (sender, mut waiting) = body(lender.another(), LONG);
        sender.send(message(LARGE).into()).unwrap();
        assert!(is_waiting(&mut waiting).await, "the first is worked on");
        drop(kept);
        assert_eq!(next(&mut waiting).await, Ok(message(LARGE).len()));
    }

    #[tokio::test]
    async fn who_waits_too_long_for_memory_is_told_to_come_back() {
        let lender = Lender::of(LARGE);
        let _taken = lender.another().lend(LARGE).await;
        let (sender, mut waiting) = body(lender.another(), SHORT);
        sender.send(message(LARGE).into()).unwrap();
        assert_eq!(next(&mut waiting).await, Err(Code::Unavailable));
    }
}
