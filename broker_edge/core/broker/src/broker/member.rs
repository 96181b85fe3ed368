//! A broker that is a node of a cluster: how its office is opened and left for the thread of the node, and in which order
//! it starts and stops.

use std::net::TcpListener;

use headwater_cluster::marks::{Node as Name, Offset};
use headwater_log::{Log, RecoveryReport};

use super::StartError;
use super::office::{Elsewhere, Office};
use crate::VERSION;
use crate::cluster::keys::NodeKey;
use crate::cluster::{self, Clients, Joined, OnEnd, Options};
use crate::cluster_files::ClusterFiles;
use crate::config::{Advertised, Config};
use crate::data_plane::DataPlane;
use crate::event_loop::CommandSender;
use crate::log_settings::log_config;
use crate::reload::Reloads;

/// What a start may be told beside the settings.
#[derive(Default)]
pub struct StartOptions {
    /// Ends a start that waits for etcd, when it is set.
    pub stop: cluster::join::StopFlag,
    /// As [`cluster::Ended::BeginAnew`] of the broker before said.
    pub begin_anew_at: Vec<Option<Offset>>,
    /// Told when this broker has ended by itself; it is to be shut down then.
    pub ended: Option<OnEnd>,
}

/// Asks etcd for the cluster and opens the log of this node.
pub(super) fn join(
    config: &Config,
    advertised: Advertised,
    start: &StartOptions,
    reloads: &Reloads,
) -> Result<(Joined, RecoveryReport), StartError> {
    let files = ClusterFiles::load(&config.cluster).map_err(StartError::ClusterFiles)?;
    let in_use = files.in_use;
    reloads.add(move || {
        for sentence in in_use.changed() {
            tracing::warn!("{sentence}");
        }
        Ok(())
    });
    let Advertised {
        mesh,
        mqtt,
        flight,
        admin,
    } = advertised;
    let options = Options {
        cluster: name_of(&config.cluster.name),
        node: name_of(&config.cluster.node),
        secret: files.secret,
        etcd: files.etcd,
        tls: files.mesh_tls,
        address: NodeKey {
            mesh,
            mqtt,
            flight,
            admin,
            version: VERSION.to_owned(),
            starts: 0,
        },
        begin_anew_at: start.begin_anew_at.clone(),
        stop: start.stop.clone(),
    };
    Ok(cluster::join(options, log_config(config))?)
}

/// # Panics
/// Never: the settings were checked.
fn name_of(text: &Option<String>) -> Name {
    let text = text.as_deref().unwrap_or_default();
    Name::new(text).expect("the settings were checked to have names")
}

/// The office of a node, for the thread that opens and leaves it.
struct OfficeOfNode {
    office: Office,
    log: Log,
    commands: CommandSender,
}

impl Clients for OfficeOfNode {
    fn open(&mut self) -> Result<(), String> {
        let opened = self.office.open(&self.log, &self.commands);
        opened.map_err(|error| error.to_string())
    }

    fn leave(&mut self, elsewhere: Elsewhere) {
        self.office.leave(&self.commands, elsewhere);
    }

    fn store(&mut self, elsewhere: Elsewhere, over: &mut dyn FnMut()) {
        self.office.store(&self.commands, elsewhere, over);
    }
}

/// A running node. Dropping it gives the log to another node first.
pub(super) struct Member {
    data_plane: Option<DataPlane>,
    node: cluster::Running,
}

impl Member {
    pub fn run(
        joined: Joined,
        listener: TcpListener,
        data_plane: DataPlane,
        office: Office,
        ended: Option<OnEnd>,
    ) -> Result<Self, StartError> {
        let clients = OfficeOfNode {
            office,
            log: joined.log().clone(),
            commands: data_plane.commands(),
        };
        let node = joined.run(listener, clients, ended)?;
        Ok(Self {
            data_plane: Some(data_plane),
            node,
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.node.hand_over();
        // Clients are sent elsewhere until here.
        self.data_plane = None;
        self.node.stop();
    }
}
