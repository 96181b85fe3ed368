//! The connections that a node makes itself: when it dials a peer, and what comes of it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use headwater_cluster::breaker::{Breaker, dials};
use headwater_cluster::marks::Node;
use mio::Token;
use mio::net::TcpStream;

use super::{Mesh, MeshEvent};
use crate::dial::{CONNECT_MS, Found, find};
use crate::peer::{Attempt, Peer};
use crate::socket::Socket;

impl Mesh {
    /// Names another node that has just started, and where it is. One that is linked stays so.
    pub fn know(&mut self, node: &Node, address: &str) {
        if *node == self.hello.node {
            return;
        }
        match self.peers.get_mut(node) {
            Some(peer) => {
                address.clone_into(&mut peer.address);
                // What was wrong was wrong in an earlier life, or at the old address.
                peer.breaker = Breaker::default();
            }
            None => {
                let peer = Peer::new(node.clone(), address.to_owned());
                self.peers.insert(node.clone(), peer);
            }
        }
    }

    /// Dials a peer when that is due.
    pub(super) fn dial(&mut self, node: &Node, now_ms: u64) {
        let Some(peer) = self.peers.get_mut(node) else {
            return;
        };
        let found = match &peer.attempt {
            Some(Attempt::Connecting(_)) => return,
            Some(Attempt::Looking(lookup, by_ms)) => match lookup.answer() {
                Some(answer) => answer.map(Found::Address),
                None if *by_ms <= now_ms => Err(io::Error::new(
                    ErrorKind::TimedOut,
                    "the name of its host is not found in time",
                )),
                None => return,
            },
            None => {
                let is_due = dials(&self.hello.node, node) && peer.breaker.dial(now_ms);
                let is_probed = peer.link.is_none() && peer.probe(now_ms);
                if peer.link.is_some() || !(is_due || is_probed) {
                    return;
                }
                peer.is_probe = !is_due;
                find(&peer.address, &self.waker)
            }
        };
        peer.attempt = None;
        let result = match found {
            Ok(Found::Later(lookup)) => {
                peer.attempt = Some(Attempt::Looking(lookup, now_ms + CONNECT_MS));
                return;
            }
            Ok(Found::Address(address)) => self.connect(node, address, now_ms),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            let random = self.random();
            if let Some(peer) = self.peers.get_mut(node) {
                peer.failed(now_ms, random);
                peer.say(&format!("cannot connect to the peer: {error}"));
            }
        }
    }

    fn connect(&mut self, node: &Node, address: SocketAddr, now_ms: u64) -> io::Result<()> {
        let tcp = TcpStream::connect(address)?;
        let socket = Socket::dialled(tcp, self.tls.as_ref(), node)?;
        let token = self.add(socket, address.to_string(), Some(node.clone()), now_ms)?;
        if let Some(peer) = self.peers.get_mut(node) {
            peer.attempt = Some(Attempt::Connecting(token));
        }
        Ok(())
    }

    /// Looks whether a connection that was dialled is made.
    pub(super) fn connected(&mut self, token: Token, now_ms: u64) {
        let Some(conn) = self.conns.get_mut(&token) else {
            return;
        };
        if conn.connect_by_ms.is_none() || !(conn.is_writable || conn.is_readable) {
            return;
        }
        let made = match conn.socket.tcp().take_error() {
            Ok(Some(error)) | Err(error) => Err(error),
            Ok(None) => match conn.socket.tcp().peer_addr() {
                Err(error) if error.kind() == ErrorKind::NotConnected => return,
                other => other.map(|_| ()),
            },
        };
        if let Err(error) = made.and_then(|()| conn.socket.set_options()) {
            return self.not_connected(token, &error, now_ms);
        }
        conn.connect_by_ms = None;
        let node = conn.dialled.clone();
        let is_ours = node
            .as_ref()
            .is_some_and(|node| dials(&self.hello.node, node));
        if !is_ours {
            // It was made only to see whether the process lives: the peer itself dials.
            self.forget(token);
        }
    }

    /// A connection could not be made.
    pub(super) fn not_connected(&mut self, token: Token, error: &io::Error, now_ms: u64) {
        let Some(node) = self.forget(token) else {
            return;
        };
        let random = self.random();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.failed(now_ms, random);
        peer.say(&format!("cannot connect to the peer: {error}"));
        if error.kind() == ErrorKind::ConnectionRefused
            && peer.link.is_none()
            && let Some(member) = peer.last.take()
        {
            peer.probes_left = 0;
            self.events.push(MeshEvent::Gone { peer: member });
        }
    }
}
