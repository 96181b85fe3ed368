//! The order in which a node starts and ends.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use headwater_cluster::frames::{Hello, VERSION};
use headwater_cluster::marks::{Epoch, Node as Name, Offset};
use headwater_cluster::member_key::MemberKey;
use headwater_etcd::{Client, OptionsError};
use headwater_log::{Clock, Log, LogConfig, RecoveryReport, Seams, Secret};
use headwater_mesh::{Mesh, Tls};
use headwater_replica::{Replica, Setup, StartError};
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use super::clock::now_ms;
use super::desk::{Clients, Desk};
use super::inbox::{Ending, Inbox};
use super::join::{JoinError, Joining, StopFlag};
use super::keys::{Keys, Meta, NodeKey};
use super::meta::{MetaThread, Place};
use super::mistakes;
use super::node::{Node, OnEnd, Parts};

/// Bytes of batches that a leader may send before the first answer.
const CREDIT_BYTES: u32 = 8 << 20;
/// The thread of the node gives up its orderly end earlier.
const LEFT_WITHIN: Duration = Duration::from_secs(12);

/// What a node is told.
#[derive(Clone)]
pub struct Options {
    pub cluster: Name,
    pub node: Name,
    /// Of the cluster's log.
    pub secret: Secret,
    pub etcd: headwater_etcd::Options,
    /// `None`: other nodes are not authenticated.
    pub tls: Option<Tls>,
    /// Where others reach this node. `starts` is set by the start.
    pub address: NodeKey,
    /// As [`Ended::BeginAnew`](super::Ended::BeginAnew) of the life before said.
    pub begin_anew_at: Vec<Option<Offset>>,
    /// Ends a start that waits for etcd.
    pub stop: StopFlag,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Replica(#[from] StartError),
    #[error("cannot start the {what}: {reason}")]
    System {
        what: &'static str,
        reason: std::io::Error,
    },
}

/// A node whose log is open, and which does nothing yet.
pub struct Joined {
    options: Options,
    meta: Meta,
    runtime: Runtime,
    store: Client,
    replica: Replica,
    clock: Arc<dyn Clock>,
    place: Place,
    inbox: Arc<Inbox>,
}

/// Asks etcd for the cluster, opens the log, and registers this life.
///
/// # Errors
/// One sentence with what is wrong with etcd's keys, the folder or the name of the node.
pub fn join(options: Options, log: LogConfig) -> Result<(Joined, RecoveryReport), NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|reason| NodeError::System {
            what: "runtime of etcd",
            reason,
        })?;
    let store = Client::new(options.etcd.clone())?;
    let keys = Keys::new(&options.cluster);
    let joining = Joining {
        store: &store,
        keys: &keys,
        node: &options.node,
        stop: &options.stop,
    };
    let (meta, starts_known) = runtime.block_on(async {
        let meta = joining.meta(&options.cluster).await?;
        Ok::<_, JoinError>((meta, joining.starts_known().await?))
    })?;
    let setup = Setup {
        log,
        log_id: meta.log_id(),
        secret: options.secret,
        node: options.node.clone(),
        min_in_sync: meta.min_in_sync,
        credit_bytes: CREDIT_BYTES,
        starts_known,
        begin_anew_at: options.begin_anew_at.clone(),
        rules: mistakes::rules(),
    };
    let seams = Seams::system();
    let (replica, report) = Replica::start(setup, &seams, now_ms())?;
    let mine = MemberKey {
        disk: replica.me().disk,
        starts: replica.starts(),
    };
    let address = NodeKey {
        starts: mine.starts.0,
        ..options.address.clone()
    };
    let address = address.encode();
    let registered = runtime.block_on(async {
        let lease = joining.register(mine, &address).await?;
        Ok::<_, JoinError>((lease, joining.nodes().await?))
    });
    let (lease, nodes) = match registered {
        Ok(registered) => registered,
        Err(error) => {
            replica.log().shutdown();
            return Err(error.into());
        }
    };
    let inbox = Arc::<Inbox>::default();
    inbox.put(|news| news.nodes = Some(nodes));
    let place = Place {
        keys: keys.clone(),
        meta: meta.clone(),
        me: replica.me().clone(),
        is_new: replica.shard().epoch() == Epoch(0),
        address,
        lease,
    };
    let joined = Joined {
        options,
        meta,
        runtime,
        store,
        replica,
        clock: seams.clock,
        place,
        inbox,
    };
    Ok((joined, report))
}

/// A node that runs. To be ended by [`Running::hand_over`], then [`Running::stop`].
pub struct Running {
    inbox: Arc<Inbox>,
    left: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
    meta: Option<MetaThread>,
}

impl Joined {
    pub fn log(&self) -> &Log {
        self.replica.log()
    }

    /// Where the node can be asked for a report.
    pub fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// Begins to speak with the other nodes.
    ///
    /// # Errors
    /// The system refuses a thread or a poll.
    pub fn run(
        self,
        listener: TcpListener,
        clients: impl Clients,
        ended: Option<OnEnd>,
    ) -> Result<Running, NodeError> {
        let system = |what| move |reason| NodeError::System { what, reason };
        let hello = Hello {
            versions: (VERSION, VERSION),
            log_id: *self.meta.log_id().as_bytes(),
            cluster: self.options.cluster.clone(),
            node: self.options.node.clone(),
            disk: self.replica.me().disk,
            starts: self.replica.starts(),
            clock_ms: 0,
        };
        let clock = self.clock;
        let mesh = Mesh::new(headwater_mesh::Setup {
            hello,
            clock_ms: Box::new(move || u64::try_from(clock.now_us() / 1_000).unwrap_or(0)),
            listener,
            peers: Vec::new(),
            tls: self.options.tls.clone(),
        });
        let mesh = mesh.map_err(system("links to other nodes"))?;
        let desk = Desk::start(clients, Arc::clone(&self.inbox));
        let desk = desk.map_err(system("thread of the office"))?;
        let inbox = Arc::clone(&self.inbox);
        let meta = MetaThread::start(self.runtime, self.store, self.place, Arc::clone(&inbox));
        let meta = meta.map_err(system("thread of etcd"))?;
        let (tell_left, left) = sync_channel(1);
        let node = Node::new(Parts {
            cluster: self.options.cluster,
            replica: self.replica,
            mesh,
            desk,
            asker: meta.asker(),
            inbox: Arc::clone(&inbox),
            ended,
            left: tell_left,
        });
        let thread = std::thread::Builder::new()
            .name("headwater-cluster".to_owned())
            .spawn(move || node.run())
            .map_err(system("thread of the node"))?;
        Ok(Running {
            inbox,
            left: Mutex::new(left),
            thread: Some(thread),
            meta: Some(meta),
        })
    }
}

impl Running {
    /// Stores what clients left, gives the log to another node if this one leads, and has nobody wait for it.
    pub fn hand_over(&self) {
        self.inbox.put(|news| news.ending = Ending::HandOver);
        // Disconnected: it has ended by itself.
        if self.left.lock().recv_timeout(LEFT_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the log was not given to another node");
        }
    }

    /// Closes the log and ends the threads.
    pub fn stop(&mut self) {
        self.inbox.put(|news| news.ending = Ending::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the node has panicked");
        }
        self.meta = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
