//! Consumer groups: where the readers of a group began, what they committed, and which reader may commit.
//!
//! A group is one value of the state store, `group/<name>`. Nothing is answered before it is durable. A reader with a
//! higher epoch fences the ones before it, until the group is removed. What groups hold back from retention is `holds.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::Refusal;
use super::holds::GroupHolds;
use super::progress::Progress;
use super::request;
use crate::state::StateStore;

pub(super) const KIND: &str = "group/";
const NAME_BYTES_MAX: usize = 249;
/// A commit that changes nothing is written all the same so often, to show that the group is alive.
const TOUCH_US: u64 = 60_000_000;

pub(super) struct Groups {
    state: Arc<StateStore>,
    progress: Progress,
    holds: Arc<GroupHolds>,
    /// Held from reading a group to queueing its new value.
    changing: Mutex<()>,
}

/// The value in the state store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Group {
    pub reader_epoch: u64,
    /// Unix microseconds of a commit, not older than the last one by more than [`TOUCH_US`].
    pub touched_us: i64,
    pub partitions: BTreeMap<u32, Place>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Place {
    pub initial: Option<u64>,
    pub committed: Option<u64>,
    pub scanned: Option<u64>,
}

impl Groups {
    pub fn new(state: Arc<StateStore>, progress: Progress, holds: Arc<GroupHolds>) -> Groups {
        Groups {
            state,
            progress,
            holds,
            changing: Mutex::new(()),
        }
    }

    pub async fn commit(&self, body: request::Commit) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let initial = by_number("initial", body.initial)?;
        let offsets = by_number("offsets", body.offsets)?;
        let (group, end) = {
            let _changing = self.changing.lock();
            let before = self.read(&body.group)?;
            fence(&body.group, &before, body.reader_epoch)?;
            let mut group = before.clone();
            group.reader_epoch = body.reader_epoch;
            for (number, offset) in initial {
                group
                    .partitions
                    .entry(number)
                    .or_default()
                    .initial
                    .get_or_insert(offset);
            }
            for (number, offsets) in offsets {
                let place = group.partitions.entry(number).or_default();
                place.committed = Some(offsets.committed);
                place.scanned = offsets.scanned.or(place.scanned);
            }
            let now_us = now_us();
            let is_touched = now_us.abs_diff(before.touched_us) >= TOUCH_US;
            let end = if group == before && !is_touched {
                self.state.end()
            } else {
                group.touched_us = now_us;
                self.write(&body.group, &group)?
            };
            self.holds.touch(&body.group);
            (group, end)
        };
        self.progress.reach(end).await?;
        Ok(group.to_json(&body.group))
    }

    pub async fn committed(&self, body: request::CommittedOf) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let group = self.read(&body.group)?;
        if let Some(reader_epoch) = body.reader_epoch {
            fence(&body.group, &group, reader_epoch)?;
        }
        self.progress.reach(self.state.end()).await?;
        Ok(group.to_json(&body.group))
    }

    pub async fn groups(&self) -> Result<Value, Refusal> {
        let mut names = Vec::new();
        self.state
            .for_each_prefix(KIND, |key, _| names.push(key[KIND.len()..].to_owned()));
        let mut groups = Vec::with_capacity(names.len());
        for name in names {
            groups.push(self.read(&name)?.to_json(&name));
        }
        self.progress.reach(self.state.end()).await?;
        Ok(json!({"groups": groups}))
    }

    /// Removes a group: it holds nothing any more, and who commits to it again begins anew.
    pub async fn remove(&self, body: request::GroupOf) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let end = {
            let _changing = self.changing.lock();
            let key = format!("{KIND}{}", body.group);
            if self.state.get(&key).is_none() {
                let message = format!("there is no consumer group {}", body.group);
                return Err(Refusal::not_found(message));
            }
            let removed = self.state.delete(&key);
            removed.map_err(|error| Refusal::from_state(self.state.partition(), error))?
        };
        self.progress.reach(end).await?;
        Ok(json!({}))
    }

    fn read(&self, name: &str) -> Result<Group, Refusal> {
        match self.state.get(&format!("{KIND}{name}")) {
            None => Ok(Group::default()),
            Some(value) => serde_json::from_slice(&value).map_err(|error| {
                Refusal::internal(format!("the state of group {name} cannot be read: {error}"))
            }),
        }
    }

    fn write(&self, name: &str, group: &Group) -> Result<headwater_log::Offset, Refusal> {
        let value = serde_json::to_vec(group).expect("a group is plain values");
        let written = self.state.put(&format!("{KIND}{name}"), &value);
        written.map_err(|error| Refusal::from_state(self.state.partition(), error))
    }
}

impl Group {
    fn to_json(&self, name: &str) -> Value {
        json!({"group": name, "reader_epoch": self.reader_epoch, "partitions": self.partitions})
    }
}

pub(super) fn now_us() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
        })
}

fn fence(name: &str, group: &Group, reader_epoch: u64) -> Result<(), Refusal> {
    if reader_epoch < group.reader_epoch {
        return Err(Refusal::fenced(name, group.reader_epoch, reader_epoch));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_plain = |c: char| !c.is_control() && !matches!(c, '+' | '#' | '/');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        let rule = format!(
            "a group's name has 1 to {NAME_BYTES_MAX} bytes and no `/`, `+`, `#` or control character"
        );
        return Err(Refusal::invalid("group", rule));
    }
    Ok(())
}

fn by_number<T>(
    field: &str,
    places: Option<BTreeMap<String, T>>,
) -> Result<Vec<(u32, T)>, Refusal> {
    places
        .into_iter()
        .flatten()
        .map(|(text, place)| Ok((request::number(field, &text)?, place)))
        .collect()
}
