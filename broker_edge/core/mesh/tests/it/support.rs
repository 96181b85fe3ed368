use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use headwater_cluster::frames::{Edges, Frame, Hello, Told, VERSION};
use headwater_cluster::marks::{
    DiskId, Epoch, FollowNumber, Member, Node, Offset, PartitionId, ShardId, Stamp, Starts,
};
use headwater_mesh::{Mesh, MeshEvent, Setup, Tls};

/// A test that waits longer for something has failed.
const DEADLINE: Duration = Duration::from_secs(60);
pub const SHARD: ShardId = ShardId(0);

pub fn node(name: &str) -> Node {
    Node::new(name).unwrap()
}

pub fn hello(name: &str) -> Hello {
    Hello {
        versions: (VERSION, VERSION),
        log_id: [7; 16],
        cluster: node("berlin"),
        node: node(name),
        disk: DiskId(u64::from(name.as_bytes()[0])),
        starts: Starts(1),
        clock_ms: 0,
    }
}

pub fn member(name: &str) -> Member {
    let Hello { node, disk, .. } = hello(name);
    Member { node, disk }
}

pub fn resign(epoch: u64) -> Frame {
    Frame::Resign {
        epoch: Epoch(epoch),
    }
}

pub fn batches(bytes: usize) -> Frame {
    let (high_watermark, log_start) = (Offset(0), Offset(0));
    Frame::Batches {
        stamp: Stamp {
            epoch: Epoch(1),
            starts: Starts(1),
            follow: FollowNumber(1),
        },
        partition: PartitionId(0),
        told: Told {
            high_watermark,
            log_start,
        },
        edges: Edges {
            first: true,
            last: true,
        },
        bytes: vec![1; bytes].into(),
    }
}

pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A mesh, what came to it, and batches that it is to send.
pub struct One {
    pub mesh: Mesh,
    pub came: Vec<MeshEvent>,
    pub batches: Vec<Frame>,
}

impl One {
    pub fn new(
        hello: Hello,
        listener: TcpListener,
        peers: &[(&str, String)],
        tls: Option<Tls>,
    ) -> One {
        let peers = peers.iter().map(|(name, at)| (node(name), at.clone()));
        let hello_ms = hello.clock_ms;
        let mesh = Mesh::new(Setup {
            clock_ms: Box::new(move || hello_ms),
            hello,
            listener,
            peers: peers.collect(),
            tls,
        });
        One {
            mesh: mesh.unwrap(),
            came: Vec::new(),
            batches: Vec::new(),
        }
    }

    pub fn is_linked(&self, name: &str) -> bool {
        let mut of_peer = self.came.iter().filter_map(|event| match event {
            MeshEvent::Linked { peer, .. } if peer.node == node(name) => Some(true),
            MeshEvent::Unlinked { peer } if peer.node == node(name) => Some(false),
            _ => None,
        });
        of_peer.next_back().unwrap_or(false)
    }

    pub fn frames(&self) -> Vec<&Frame> {
        let frames = self.came.iter().filter_map(|event| match event {
            MeshEvent::Frame { frame, .. } => Some(frame),
            _ => None,
        });
        frames.collect()
    }
}

/// The clock of all meshes of a test.
#[derive(Default)]
pub struct Clock(pub u64);

impl Clock {
    /// Gives each mesh a turn, 10 ms apart.
    pub fn step(&mut self, meshes: &mut [&mut One]) {
        self.0 += 10;
        for one in meshes {
            one.mesh.wait(Some(Duration::from_millis(1))).unwrap();
            one.came.extend(one.mesh.turn(self.0));
            let batches = &mut one.batches;
            one.mesh.flush(self.0, |_| Some((SHARD, batches.pop()?)));
        }
    }

    pub fn until(&mut self, meshes: &mut [&mut One], what: impl Fn(&[&mut One]) -> bool) {
        let started = Instant::now();
        while !what(meshes) {
            self.step(meshes);
            assert!(started.elapsed() < DEADLINE, "it did not happen");
        }
    }
}

/// `a` and `b`, which know each other, and are linked.
pub fn pair() -> (One, One, Clock) {
    pair_of(hello("a"), hello("b"))
}

pub fn pair_of(hello_a: Hello, hello_b: Hello) -> (One, One, Clock) {
    let ((at_a, a), (at_b, b)) = (listener(), listener());
    let mut one = One::new(hello_a, at_a, &[("b", b.to_string())], None);
    // The name of a host is looked up by a thread.
    let mut two = One::new(
        hello_b,
        at_b,
        &[("a", format!("localhost:{}", a.port()))],
        None,
    );
    let mut clock = Clock::default();
    clock.until(&mut [&mut one, &mut two], |both| {
        both[0].is_linked("b") && both[1].is_linked("a")
    });
    (one, two, clock)
}
