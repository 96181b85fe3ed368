//! All connections of a node, driven by one thread.

mod dialling;
mod sending;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use headwater_cluster::breaker::{WrongPeer, dials};
use headwater_cluster::frames::{Frame, Hello};
use headwater_cluster::link::{Came, Link, LinkError};
use headwater_cluster::marks::{Member, Node, ShardId, Starts};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::dial::CONNECT_MS;
use crate::peer::{Attempt, Peer};
use crate::socket::{Received, Socket, Tls};

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
const EVENTS_MAX: usize = 64;
/// Bytes read from, and sent to, one peer in a turn, so that none keeps the others waiting.
const TURN_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// Connections that have not named their peer yet. A cluster has three nodes, so more are strangers.
const UNNAMED_MAX: usize = 16;

/// Unix milliseconds.
pub type WallClock = Box<dyn Fn() -> u64 + Send>;

/// What a mesh is made of.
pub struct Setup {
    /// What this node says of itself; each connection sets its `clock_ms`.
    pub hello: Hello,
    /// The wall clock, Unix milliseconds.
    pub clock_ms: WallClock,
    /// Bound, of this node.
    pub listener: std::net::TcpListener,
    /// The other nodes, with `host:port` of their listeners.
    pub peers: Vec<(Node, String)>,
    /// `None`: nobody is authenticated, for a loopback or a private network.
    pub tls: Option<Tls>,
}

/// What happened since the last turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeshEvent {
    /// A peer can be sent to. Of one peer there is one link, and its end comes before the next begins.
    Linked {
        peer: Member,
        starts: Starts,
    },
    Unlinked {
        peer: Member,
    },
    /// The host of the peer lives and refused a connection: its process is gone.
    Gone {
        peer: Member,
    },
    Frame {
        from: Member,
        shard: ShardId,
        frame: Frame,
    },
}

struct Conn {
    socket: Socket,
    link: Link,
    /// The peer that was dialled.
    dialled: Option<Node>,
    /// Until then the connection has to be made; `None` once it is.
    connect_by_ms: Option<u64>,
    /// The poll has said that there is something to read.
    is_readable: bool,
    /// The poll has said that the end of the stream is, or will be, behind what there is to read.
    is_closing: bool,
    /// The socket took everything the last time.
    is_writable: bool,
}

pub struct Mesh {
    hello: Hello,
    clock_ms: WallClock,
    tls: Option<Tls>,
    poll: Poll,
    waker: Arc<Waker>,
    listener: TcpListener,
    /// The poll has said that somebody connects.
    has_callers: bool,
    peers: BTreeMap<Node, Peer>,
    conns: BTreeMap<Token, Conn>,
    next_token: usize,
    events: Vec<MeshEvent>,
    random: u64,
}

impl Mesh {
    /// # Errors
    /// The system refuses a poll.
    pub fn new(setup: Setup) -> io::Result<Self> {
        let Setup {
            hello,
            clock_ms,
            listener,
            peers,
            tls,
        } = setup;
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let peers = peers.into_iter().map(|(node, address)| {
            let peer = Peer::new(node.clone(), address);
            (node, peer)
        });
        Ok(Self {
            random: hello.disk.0 ^ hello.starts.0 | 1,
            hello,
            clock_ms,
            tls,
            poll,
            waker,
            listener,
            has_callers: false,
            peers: peers.collect(),
            conns: BTreeMap::new(),
            next_token: LISTENER.0 + 1,
            events: Vec::new(),
        })
    }

    /// Ends a wait in [`Self::turn`], from any thread.
    #[must_use]
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Whether there is a link to this node.
    #[must_use]
    pub fn is_linked(&self, node: &Node) -> bool {
        self.peers.get(node).is_some_and(|peer| peer.link.is_some())
    }

    /// How far the wall clock of this node was ahead of ours when it was linked last.
    #[must_use]
    pub fn clock_ahead_ms(&self, node: &Node) -> Option<i64> {
        self.peers.get(node)?.clock_ahead_ms
    }

    /// Why a peer is not tried at present.
    #[must_use]
    pub fn reason(&self, node: &Node) -> Option<&WrongPeer> {
        self.peers.get(node)?.breaker.reason()
    }

    /// The next time at which something is due without any event.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        let of_conns = self
            .conns
            .values()
            .filter_map(|conn| conn.connect_by_ms.or_else(|| conn.link.deadline_ms()));
        let peers = self.peers.values();
        let of_peers = peers.filter_map(|peer| peer.due_ms(dials(&self.hello.node, &peer.node)));
        of_conns.chain(of_peers).min()
    }

    /// Waits up to `timeout` for something to happen.
    ///
    /// # Errors
    /// Of the poll. A signal is none.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_more = self.conns.values().any(|conn| conn.is_readable);
        let timeout = if has_more {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        let mut events = Events::with_capacity(EVENTS_MAX);
        match self.poll.poll(&mut events, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            self.has_callers |= event.token() == LISTENER;
            if let Some(conn) = self.conns.get_mut(&event.token()) {
                conn.is_closing |= event.is_read_closed() || event.is_error();
                conn.is_readable |= event.is_readable() || conn.is_closing;
                conn.is_writable |= event.is_writable();
            }
        }
        Ok(())
    }

    /// Takes new connections, reads, dials what is due and closes what is late.
    pub fn turn(&mut self, now_ms: u64) -> Vec<MeshEvent> {
        self.accept(now_ms);
        for token in self.tokens() {
            self.connected(token, now_ms);
            self.read(token, now_ms);
            self.check_time(token, now_ms);
        }
        for node in self.peers.keys().cloned().collect::<Vec<_>>() {
            self.dial(&node, now_ms);
        }
        std::mem::take(&mut self.events)
    }

    fn tokens(&self) -> Vec<Token> {
        self.conns.keys().copied().collect()
    }

    fn accept(&mut self, now_ms: u64) {
        while self.has_callers {
            let (tcp, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.has_callers = false;
                    return;
                }
                // Such as no descriptor: the next turn tries again.
                Err(error) => return tracing::debug!(%error, "could not accept a peer"),
            };
            let unnamed =
                |(_, conn): &(&Token, &Conn)| conn.dialled.is_none() && conn.link.peer().is_none();
            if self.conns.iter().filter(unnamed).count() >= UNNAMED_MAX
                && let Some((oldest, _)) = self.conns.iter().find(unnamed)
            {
                let oldest = *oldest;
                self.end(
                    oldest,
                    "too many connections have not named their peer",
                    now_ms,
                );
            }
            let socket = Socket::accepted(tcp, self.tls.as_ref());
            let added =
                socket.and_then(|socket| self.add(socket, address.to_string(), None, now_ms));
            if let Err(error) = added {
                tracing::debug!(%error, "could not register a peer");
            }
        }
    }

    fn add(
        &mut self,
        mut socket: Socket,
        from: String,
        dialled: Option<Node>,
        now_ms: u64,
    ) -> io::Result<Token> {
        let token = Token(self.next_token);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(socket.tcp_mut(), token, interest)?;
        self.next_token += 1;
        let is_dialled = dialled.is_some();
        let hello = Hello {
            clock_ms: (self.clock_ms)(),
            ..self.hello.clone()
        };
        let conn = Conn {
            socket,
            link: Link::new(hello, from, dialled.clone(), now_ms),
            dialled,
            connect_by_ms: is_dialled.then_some(now_ms + CONNECT_MS),
            is_readable: false,
            is_closing: false,
            is_writable: !is_dialled,
        };
        self.conns.insert(token, conn);
        Ok(token)
    }

    fn read(&mut self, token: Token, now_ms: u64) {
        let mut left = TURN_BYTES_MAX;
        while let Some(conn) = self.conns.get_mut(&token)
            && conn.is_readable
            && conn.connect_by_ms.is_none()
            && left > 0
        {
            match conn.socket.read(conn.link.room(READ_BYTES)) {
                Ok(received @ (Received::Bytes(count) | Received::Last(count))) => {
                    let is_last = matches!(received, Received::Last(_));
                    conn.is_readable = !is_last || conn.is_closing;
                    left = left.saturating_sub(count);
                    conn.link.received(count);
                    self.take_all(token, now_ms);
                }
                Ok(Received::Nothing) => conn.is_readable = false,
                Ok(Received::Ended) => return self.end(token, "the peer closed it", now_ms),
                Err(error) => return self.end(token, &error.to_string(), now_ms),
            }
        }
    }

    fn take_all(&mut self, token: Token, now_ms: u64) {
        while let Some(conn) = self.conns.get_mut(&token) {
            match conn.link.take() {
                Ok(None) => return,
                Ok(Some(Came::Peer {
                    member,
                    starts,
                    clock_ms,
                })) => {
                    self.named(token, (member, starts), clock_ms, now_ms);
                }
                Ok(Some(Came::Frame(shard, frame))) => {
                    if let Some(from) = conn.link.peer().cloned() {
                        self.events.push(MeshEvent::Frame { from, shard, frame });
                    }
                }
                Err(error) => return self.fail(token, error, now_ms),
            }
        }
    }

    /// The peer of a connection is known: this is its link from now on.
    fn named(
        &mut self,
        token: Token,
        (member, starts): (Member, Starts),
        clock_ms: u64,
        now_ms: u64,
    ) {
        if let Err(wrong) = self.check_certificate(token, &member.node) {
            return self.fail(token, LinkError::Wrong(wrong), now_ms);
        }
        let Some(peer) = self.peers.get_mut(&member.node) else {
            let what = format!("{} is no peer that this node knows", member.node);
            return self.end(token, &what, now_ms);
        };
        peer.breaker.connected(now_ms);
        peer.probes_left = 0;
        peer.said.clear();
        if matches!(peer.attempt, Some(Attempt::Connecting(own)) if own == token) {
            peer.attempt = None;
        }
        peer.last = Some(member.clone());
        let before = peer.link.replace((token, member.clone()));
        if let Some((old, before)) = before {
            self.conns.remove(&old);
            self.events.push(MeshEvent::Unlinked { peer: before });
        }
        tracing::info!(peer = %member, "linked");
        peer.compare_clocks(clock_ms, (self.clock_ms)());
        self.events.push(MeshEvent::Linked {
            peer: member,
            starts,
        });
    }

    fn check_certificate(&self, token: Token, node: &Node) -> Result<(), WrongPeer> {
        let Some(conn) = self.conns.get(&token).filter(|_| self.tls.is_some()) else {
            return Ok(());
        };
        let names = conn.socket.names();
        if names.iter().any(|name| name == node.as_str()) {
            return Ok(());
        }
        Err(WrongPeer::Certificate {
            expected: node.clone(),
            found: names.join(", "),
        })
    }

    fn check_time(&mut self, token: Token, now_ms: u64) {
        let Some(conn) = self.conns.get(&token) else {
            return;
        };
        match conn.connect_by_ms {
            Some(by_ms) if by_ms <= now_ms => {
                let error = io::Error::new(ErrorKind::TimedOut, "it did not answer in time");
                self.not_connected(token, &error, now_ms);
            }
            Some(_) => {}
            None => {
                if let Err(error) = conn.link.check_time(now_ms) {
                    self.fail(token, error, now_ms);
                }
            }
        }
    }

    /// Closes a connection because of what came on it, or did not.
    fn fail(&mut self, token: Token, error: LinkError, now_ms: u64) {
        let dialled = self.conns.get(&token).and_then(|conn| conn.dialled.clone());
        let said = error.to_string();
        self.end(token, &said, now_ms);
        if let LinkError::Wrong(wrong) = error
            && let Some(peer) = dialled.and_then(|node| self.peers.get_mut(&node))
        {
            peer.breaker.refused(now_ms, wrong);
        }
    }

    /// Closes a connection.
    fn end(&mut self, token: Token, why: &str, now_ms: u64) {
        let random = self.random();
        let Some(conn) = self.conns.get(&token) else {
            return;
        };
        let node = conn.link.peer().map(|member| member.node.clone());
        let node = node.or_else(|| conn.dialled.clone());
        self.forget(token);
        let Some(peer) = node.and_then(|node| self.peers.get_mut(&node)) else {
            return tracing::debug!(why, "a connection to the mesh ended");
        };
        peer.say(&format!("a connection to the peer ended: {why}"));
        if let Some((_, member)) = peer.link.take_if(|(own, _)| *own == token) {
            peer.breaker.lost(now_ms, random);
            peer.begin_probes(now_ms);
            self.events.push(MeshEvent::Unlinked { peer: member });
        } else if peer.link.is_none() {
            peer.failed(now_ms, random);
        }
    }

    /// Drops a connection and the attempt that made it. Returns the node that was dialled.
    fn forget(&mut self, token: Token) -> Option<Node> {
        let conn = self.conns.remove(&token)?;
        let node = conn.dialled?;
        if let Some(peer) = self.peers.get_mut(&node)
            && matches!(peer.attempt, Some(Attempt::Connecting(own)) if own == token)
        {
            peer.attempt = None;
        }
        Some(node)
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
