//! A producer asks the event loop and waits for the answer.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, Sender};

use crate::event_loop::{AskError, Command, CommandSender};
use crate::service::error::Refusal;

/// How long to wait for the loop: for room in its queue, and then for its answer.
const LOOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait while others ask the loop, or before asking it again.
pub const AGAIN: Duration = Duration::from_millis(2);

/// Asks by the command that `command` makes. Must run on a blocking thread.
///
/// # Errors
/// The queue of the loop stays full, or the loop does not answer in time.
pub fn ask<T>(
    commands: &CommandSender,
    runtime: &Handle,
    command: impl Fn(Sender<T>) -> Command,
) -> Result<T, Refusal> {
    let deadline = Instant::now() + LOOP_TIMEOUT;
    let answered = loop {
        let (answer, answered) = oneshot::channel();
        match commands.ask(command(answer)) {
            Ok(()) => break answered,
            Err(AskError::Full) if Instant::now() < deadline => {
                runtime.block_on(async { tokio::time::sleep(AGAIN).await });
            }
            Err(error) => return Err(Refusal::unavailable(error.to_string())),
        }
    };
    match runtime.block_on(async { tokio::time::timeout(LOOP_TIMEOUT, answered).await }) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(Refusal::unavailable("the MQTT loop did not answer in time")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mio::{Poll, Token, Waker};

    use super::*;
    use crate::engine::WeighRequest;
    use crate::event_loop::{LoopWaker, queue};

    fn weigh(answer: Sender<Vec<u64>>) -> Command {
        let topics = vec!["t".to_owned()];
        Command::Weigh(WeighRequest { topics, answer })
    }

    #[test]
    fn a_producer_waits_for_room_in_the_queue() {
        let poll = Poll::new().expect("a poll");
        let waker = Waker::new(poll.registry(), Token(0)).expect("a waker");
        let (sender, mut commands) = queue(Arc::new(LoopWaker::new(waker)));
        while sender.ask(weigh(oneshot::channel().0)).is_ok() {}
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (tried, tries) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                ask(&sender, runtime.handle(), |answer| {
                    let _ = tried.send(());
                    weigh(answer)
                })
            });
            tries.recv().expect("it asks");
            tries.recv().expect("it asks again");
            let mut waiting = Vec::new();
            while !asker.is_finished() {
                if let Some(Command::Weigh(request)) = commands.take() {
                    // Nobody waits for those that filled the queue.
                    waiting.push(request.answer.send(vec![7]));
                }
            }
            let answer = asker.join().expect("no panic");
            assert!(matches!(answer.as_deref(), Ok([7])));
        });
    }
}
