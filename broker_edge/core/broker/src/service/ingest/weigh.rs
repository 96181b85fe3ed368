//! What the topics of a DoPut cost the event loop, which finds the receivers of all topics of a batch before it turns to
//! anything else. The loop is asked in small pieces, and appends are made so that each costs it little.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::produce::LOOP_TIMEOUT;
use super::rows::Rows;
use crate::engine::{TOPICS_MAX, WeighRequest};
use crate::event_loop::{AskError, Command};
use crate::service::error::Refusal;
use crate::service::shared::Shared;

/// The work of the topics of one append, unless one topic alone costs more. The unit is a visited node of the
/// subscription index.
pub const APPEND_WORK_MAX: u64 = 1 << 14;
/// An append with more work shares no batch with another one like it.
pub const SHARED_WORK_MAX: u64 = 1 << 10;
/// With so few subscriptions no topic costs enough to be asked for.
const CHEAP_SUBSCRIPTIONS: i64 = 64;
/// How long to wait while others ask the loop.
const AGAIN: Duration = Duration::from_millis(2);

/// The work of each topic; topics that were not weighed cost little.
#[derive(Default)]
pub struct Weights<'a>(HashMap<&'a str, u64>);

impl Weights<'_> {
    pub fn of(&self, topic: &str) -> u64 {
        self.0.get(topic).copied().unwrap_or(0)
    }
}

/// Asks the loop what the topics of these rows cost.
///
/// # Errors
/// The loop does not answer in time.
pub fn weigh<'a>(
    shared: &Arc<Shared>,
    rows: &Rows<'a>,
    runtime: &Handle,
) -> Result<Weights<'a>, Refusal> {
    let mqtt = &shared.metrics.mqtt;
    if mqtt.subscriptions.get() <= CHEAP_SUBSCRIPTIONS {
        return Ok(Weights::default());
    }
    let mut known = HashSet::new();
    let topics: Vec<&'a str> = (0..rows.len())
        .map(|row| rows.topic.value(row))
        .filter(|topic| known.insert(*topic))
        .collect();
    let mut weights = Weights::default();
    let mut left = &*topics;
    while !left.is_empty() {
        let asked = &left[..left.len().min(TOPICS_MAX)];
        let works = ask(shared, asked, runtime)?;
        // An answer is for one topic at least.
        let count = works.len().clamp(1, asked.len());
        let weighed = asked.iter().copied().zip(works);
        weights.0.extend(weighed);
        left = &left[count..];
    }
    Ok(weights)
}

fn ask(shared: &Shared, topics: &[&str], runtime: &Handle) -> Result<Vec<u64>, Refusal> {
    let deadline = Instant::now() + LOOP_TIMEOUT;
    loop {
        let (answer, answered) = oneshot::channel();
        let request = WeighRequest {
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            answer,
        };
        match shared.commands.ask(Command::Weigh(request)) {
            Ok(()) => {
                let in_time = async { tokio::time::timeout(LOOP_TIMEOUT, answered).await };
                return match runtime.block_on(in_time) {
                    Ok(Ok(works)) => Ok(works),
                    Ok(Err(_)) | Err(_) => {
                        Err(Refusal::unavailable("the MQTT loop did not answer in time"))
                    }
                };
            }
            Err(AskError::Full) if Instant::now() < deadline => {
                runtime.block_on(tokio::time::sleep(AGAIN));
            }
            Err(error) => return Err(Refusal::unavailable(error.to_string())),
        }
    }
}
