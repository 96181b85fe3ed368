//! What the topics of a DoPut cost the event loop, which finds the receivers of all topics of a batch before it turns to
//! anything else. The loop is asked in small pieces, and appends are made so that each costs it little.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::ask::{AGAIN, ask};
use super::rows::Rows;
use crate::engine::{TOPICS_MAX, WeighRequest};
use crate::event_loop::Command;
use crate::service::error::Refusal;
use crate::service::shared::Shared;

/// The work of the topics of one append, unless one topic alone costs more. The unit is a visited node of the
/// subscription index.
pub const APPEND_WORK_MAX: u64 = 1 << 14;
/// An append with more work shares no batch with another one like it.
pub const SHARED_WORK_MAX: u64 = 1 << 10;
/// With so few subscriptions no topic costs enough to be asked for.
const CHEAP_SUBSCRIPTIONS: i64 = 64;
/// How long the loop may take to find the receivers of one topic.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);

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
    let mut deadline = Instant::now() + SEARCH_TIMEOUT;
    while !left.is_empty() {
        let asked = &left[..left.len().min(TOPICS_MAX)];
        let works = ask(&shared.commands, runtime, |answer| {
            let topics = asked.iter().map(|topic| (*topic).to_owned()).collect();
            Command::Weigh(WeighRequest { topics, answer })
        })?;
        let count = works.len().min(asked.len());
        if count == 0 {
            // The loop has done a part of the work for the first topic.
            if Instant::now() > deadline {
                return Err(Refusal::unavailable(
                    "the receivers of a topic are not found in time, because very many filters may match it",
                ));
            }
            runtime.block_on(async { tokio::time::sleep(AGAIN).await });
        }
        let weighed = asked.iter().copied().zip(works);
        weights.0.extend(weighed);
        left = &left[count..];
        if count > 0 {
            deadline = Instant::now() + SEARCH_TIMEOUT;
        }
    }
    Ok(weights)
}
