//! What all calls of the service share.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use headwater_log::{ClassConfig, Log, Partition, PartitionId};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::arrow::columns::Constants;
use super::callers::bearer::Bearers;
use super::callers::sessions::Sessions;
use super::callers::shares::Shares;
use super::error::Refusal;
use super::groups::progress::Progress;
use super::limits::Limits;
use super::office::OfficeSlot;
use super::samples::Samples;
use crate::auth::AuthService;
use crate::cluster::inbox::Inbox;
use crate::config::Config;
use crate::event_loop::CommandSender;
use crate::metrics::Metrics;
use crate::reload::Reloads;

/// The most partitions that are named in a sentence.
const NAMED_MAX: usize = 10;

/// Where the service listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub flight: SocketAddr,
    pub admin: SocketAddr,
}

/// State that all calls share.
pub struct Shared {
    pub config: Config,
    pub limits: Limits,
    pub classes: Vec<ClassConfig>,
    pub log: Log,
    pub log_id: String,
    pub addresses: Addresses,
    pub metrics: Arc<Metrics>,
    /// Sends commands to the event loop.
    pub commands: CommandSender,
    pub auth: Arc<AuthService>,
    pub bearers: Bearers,
    /// Of people who have signed in at the admin listener.
    pub sessions: Sessions,
    pub reloads: Arc<Reloads>,
    /// Of a node of a cluster: where to ask what it is.
    pub cluster: Option<Arc<Inbox>>,
    pub office: OfficeSlot,
    pub progress: Vec<Progress>,
    pub shares: Shares,
    pub samples: Samples,
    /// Created by the first read.
    pub constants: OnceLock<Arc<Constants>>,
    /// Locked while an append is in progress whose topics cost the loop much.
    pub costly_appends: Mutex<()>,
    /// Locked during a backup.
    pub backing_up: Mutex<()>,
    /// True when the broker stops, which ends following reads.
    pub stopping: watch::Receiver<bool>,
}

impl Shared {
    pub fn partition(&self, number: u32) -> Result<&Partition, Refusal> {
        self.log
            .partition(PartitionId(number))
            .ok_or_else(|| Refusal::not_found(format!("there is no partition {number}")))
    }

    /// The partition with this name, such as `telemetry-0`, or number.
    pub fn named(&self, name: &str) -> Result<&Partition, Refusal> {
        let is_named =
            |partition: &&Partition| partition.name() == name || partition.id().to_string() == name;
        let all = self.log.partitions();
        all.iter().find(is_named).ok_or_else(|| {
            let names = all.iter().map(Partition::name).take(NAMED_MAX);
            let names = names.collect::<Vec<_>>().join(", ");
            let more = match all.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            Refusal::not_found(format!(
                "there is no partition {name:.64}; there are {names}{more}"
            ))
        })
    }

    /// Limits the number of named partitions, because repeating one would repeat its work.
    pub fn check_partitions(&self, field: &str, asked: usize) -> Result<(), Refusal> {
        let most = self.log.partitions().len();
        if asked <= most {
            return Ok(());
        }
        let message = format!("the request names {asked} partitions; the log has {most}");
        Err(Refusal::invalid(field, message))
    }
}

/// Completes when the broker stops.
pub async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, which also means stop.
    let _ = stopping.wait_for(|stop| *stop).await;
}
