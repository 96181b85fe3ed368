//! Why a broker did not start.

use std::net::SocketAddr;
use std::path::PathBuf;

use headwater_log::OpenError;

use crate::auth;
use crate::cluster::NodeError;
use crate::state::StateError;
use crate::transport::certificates::TlsError;

/// Why a broker did not start. The parts that had started were stopped again.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "cannot listen on {address} for {listener}: {reason}; set listeners.{listener}.bind to a free address"
    )]
    Listen {
        listener: &'static str,
        address: SocketAddr,
        reason: std::io::Error,
    },
    #[error(
        "cannot listen on {address} for other nodes: {reason}; set cluster.listen to a free address"
    )]
    ListenMesh {
        address: SocketAddr,
        reason: std::io::Error,
    },
    #[error("cannot use the data folder {dir}: {reason}; set data_dir to a folder that the broker may write", dir = dir.display())]
    Folder {
        dir: PathBuf,
        reason: std::io::Error,
    },
    #[error(transparent)]
    Auth(#[from] auth::StartError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Log(#[from] OpenError),
    /// A file that the settings of `cluster` name.
    #[error("{0}")]
    ClusterFiles(String),
    #[error("cannot be a node of its cluster: {0}")]
    Node(#[from] NodeError),
    #[error("cannot restore the broker's state: {0}")]
    State(#[from] StateError),
    #[error("cannot start the {what}: {reason}")]
    Thread {
        what: &'static str,
        reason: std::io::Error,
    },
}
