//! A client's connection below MQTT: the socket alone, or with TLS, WebSocket frames, or both.
//!
//! A connection without layers costs a comparison per call; see [`Stream::is_plain`]. All calls are non-blocking. The
//! poll is edge-triggered, so a receive with layers returns `None` only when the socket is empty.

use std::io::{self, Read, Write};
use std::mem;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;
use tungstenite::ClientRequestBuilder;
use tungstenite::client::client_with_config;
use tungstenite::error::ProtocolError;
use tungstenite::handshake::client::{ClientHandshake, Response};
use tungstenite::handshake::{HandshakeError, MidHandshake};
use tungstenite::http::Uri;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Bytes, Error, Message, WebSocket};

use crate::net;
use crate::plan::{Layers, Plan};
use crate::tls::TlsSocket;

/// The longest frame that is sent.
const SENT_FRAME_BYTES_MAX: usize = 64 << 10;
/// Each connection has a buffer of this size for received frames.
const FRAME_BUFFER_BYTES: usize = 16 << 10;
/// As much of a refusal's text is shown.
const ANSWER_BYTES_MAX: usize = 200;
const SUBPROTOCOL: &str = "mqtt";

/// A connection to the broker.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    Layered(Box<Layered>),
}

#[derive(Debug)]
pub struct Layered {
    layers: Layers,
    stage: Stage,
    /// The rest of a frame that did not fit into the caller's buffer.
    received: Bytes,
}

/// How far a connection with layers has come.
#[derive(Debug)]
enum Stage {
    Connecting(TcpStream),
    /// The TLS handshake is in progress.
    Securing(Box<TlsSocket>),
    /// The WebSocket request was sent, or is being sent.
    Upgrading(MidHandshake<ClientHandshake<Lower>>),
    Secured(Box<TlsSocket>),
    Upgraded(WebSocket<Lower>),
    Failed,
}

/// What carries WebSocket frames.
#[derive(Debug)]
enum Lower {
    Tcp(TcpStream),
    Tls(Box<TlsSocket>),
}

impl Read for Lower {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Lower {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

impl Stream {
    /// Starts a connection. Sockets are closed with a reset, so that many short connections do not use up the ports.
    pub fn begin(plan: &Plan, registry: &Registry, token: usize) -> io::Result<Self> {
        let mut tcp = TcpStream::connect(plan.address)?;
        tcp.set_nodelay(true)?;
        SockRef::from(&tcp).set_linger(Some(Duration::ZERO))?;
        let both = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut tcp, Token(token), both)?;
        if plan.layers.is_none() {
            return Ok(Self::Plain(tcp));
        }
        Ok(Self::Layered(Box::new(Layered {
            layers: plan.layers.clone(),
            stage: Stage::Connecting(tcp),
            received: Bytes::new(),
        })))
    }

    /// A short receive of such a connection has emptied the socket.
    #[inline]
    pub fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Continues to connect, after any event of the socket. Returns true when MQTT may be sent.
    pub fn open(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(tcp) => net::is_up(tcp),
            Self::Layered(layered) => layered.open(),
        }
    }

    /// `None` when no bytes are available now, zero at the end of the stream.
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(tcp) => net::retried(|| tcp.read(buffer)),
            Self::Layered(layered) => layered.receive(buffer),
        }
    }

    /// `None` when no bytes are accepted now.
    #[inline]
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(tcp) => net::retried(|| tcp.write(bytes)),
            Self::Layered(layered) => layered.send(bytes),
        }
    }

    /// Sends what the layers have accepted but keep; returns false when the socket is full.
    #[inline]
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Layered(layered) => layered.flush(),
        }
    }
}

impl Layered {
    fn open(&mut self) -> io::Result<bool> {
        loop {
            // An error leaves the connection failed; the caller drops it.
            self.stage = match mem::replace(&mut self.stage, Stage::Failed) {
                Stage::Connecting(tcp) => {
                    if !net::is_up(&tcp)? {
                        self.stage = Stage::Connecting(tcp);
                        return Ok(false);
                    }
                    match &self.layers.tls {
                        Some(tls) => Stage::Securing(Box::new(TlsSocket::new(tcp, tls)?)),
                        None => self.upgrade(Lower::Tcp(tcp))?,
                    }
                }
                Stage::Securing(mut socket) => {
                    if !socket.shake_hands()? {
                        self.stage = Stage::Securing(socket);
                        return Ok(false);
                    }
                    if self.layers.websocket.is_some() {
                        self.upgrade(Lower::Tls(socket))?
                    } else {
                        Stage::Secured(socket)
                    }
                }
                Stage::Upgrading(handshake) => match upgraded(handshake.handshake())? {
                    waiting @ Stage::Upgrading(_) => {
                        self.stage = waiting;
                        return Ok(false);
                    }
                    other => other,
                },
                Stage::Failed => return Err(io::ErrorKind::NotConnected.into()),
                opened => {
                    self.stage = opened;
                    return Ok(true);
                }
            };
        }
    }

    /// Sends the request that opens a WebSocket.
    fn upgrade(&self, lower: Lower) -> io::Result<Stage> {
        let uri = self.layers.websocket.clone().unwrap_or_default();
        let request = ClientRequestBuilder::new(uri).with_sub_protocol(SUBPROTOCOL);
        // The broker's frames are copied into MQTT packets, which have their own limit.
        let settings = WebSocketConfig::default()
            .read_buffer_size(FRAME_BUFFER_BYTES)
            .max_frame_size(Some(net::PACKET_BYTES_MAX))
            .max_message_size(Some(net::PACKET_BYTES_MAX));
        upgraded(client_with_config(request, lower, Some(settings)))
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let socket = match &mut self.stage {
            Stage::Upgraded(socket) => socket,
            Stage::Secured(tls) => return net::retried(|| tls.read(buffer)),
            _ => return Err(io::ErrorKind::NotConnected.into()),
        };
        let mut filled = 0;
        loop {
            let count = self.received.len().min(buffer.len() - filled);
            buffer[filled..filled + count].copy_from_slice(&self.received.split_to(count));
            filled += count;
            if filled == buffer.len() {
                return Ok(Some(filled));
            }
            match received(socket.read()) {
                Ok(Some(bytes)) => self.received = bytes,
                // The next call reports the end, or the error.
                _ if filled > 0 => return Ok(Some(filled)),
                Ok(None) => return Ok(Some(0)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match &mut self.stage {
            Stage::Secured(tls) => net::retried(|| tls.write(bytes)),
            Stage::Upgraded(socket) => {
                if !flushed(socket)? {
                    return Ok(None);
                }
                let count = bytes.len().min(SENT_FRAME_BYTES_MAX);
                let frame = Message::Binary(Bytes::copy_from_slice(&bytes[..count]));
                // A frame that the socket does not accept yet is kept, and sent by the next call.
                match socket.write(frame).map_err(io_error) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
                flushed(socket)?;
                Ok(Some(count))
            }
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        match &mut self.stage {
            Stage::Secured(tls) => Ok(net::retried(|| tls.flush().map(|()| 0))?.is_some()),
            Stage::Upgraded(socket) => flushed(socket),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Returns false when the socket is full.
fn flushed(socket: &mut WebSocket<Lower>) -> io::Result<bool> {
    Ok(net::retried(|| socket.flush().map(|()| 0).map_err(io_error))?.is_some())
}

/// The payload of a data frame, empty for other frames; `None` at the end of the WebSocket.
fn received(read: Result<Message, Error>) -> io::Result<Option<Bytes>> {
    match read {
        Ok(Message::Binary(bytes)) => Ok(Some(bytes)),
        Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => Ok(Some(Bytes::new())),
        Ok(Message::Close(_)) => Ok(None),
        Ok(Message::Text(_)) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the broker sent a WebSocket text frame; MQTT uses binary frames",
        )),
        Err(
            Error::ConnectionClosed
            | Error::AlreadyClosed
            | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
        ) => Ok(None),
        Err(error) => Err(io_error(error)),
    }
}

/// What an HTTP answer says in place of opening a WebSocket.
fn refusal(response: &Response) -> String {
    let body = response.body().as_deref().unwrap_or_default();
    let body = String::from_utf8_lossy(&body[..body.len().min(ANSWER_BYTES_MAX)]);
    let said = body.lines().next().unwrap_or_default().trim();
    let said = if said.is_empty() {
        "is the path right?".into()
    } else {
        said.escape_debug().to_string()
    };
    let status = response.status();
    format!("the broker answered the WebSocket request with {status}: {said}")
}

type Upgraded = (WebSocket<Lower>, Response);

fn upgraded(result: Result<Upgraded, HandshakeError<ClientHandshake<Lower>>>) -> io::Result<Stage> {
    let error = match result {
        Ok((socket, _)) => return Ok(Stage::Upgraded(socket)),
        Err(HandshakeError::Interrupted(handshake)) => return Ok(Stage::Upgrading(handshake)),
        Err(HandshakeError::Failure(error)) => error,
    };
    let sentence = match error {
        Error::Io(error) => return Err(error),
        Error::Http(response) => refusal(&response),
        Error::Protocol(ProtocolError::HandshakeIncomplete) => {
            "the broker closed the connection without an answer to the WebSocket request: does this port speak WebSocket?"
                .to_owned()
        }
        other => format!(
            "the broker did not answer the WebSocket request as one: {other}"
        ),
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, sentence))
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// The URI of a WebSocket request.
pub fn uri(text: &str) -> Result<Uri, String> {
    text.parse()
        .map_err(|error| format!("--mqtt: `{text}` is not a WebSocket address: {error}"))
}
