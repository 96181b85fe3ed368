//! Binds the listeners before anything else starts.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::start_error::StartError;
use crate::config::{Config, TlsSettings};
use crate::hosts::{Hosts, Origins};
use crate::transport::certificates::Certificates;
use crate::transport::{BACKLOG, BoundListener, ListenerProtocol};

/// Binds the listeners of the data plane and reads their certificates.
pub(super) fn listen_mqtt(
    config: &Config,
) -> Result<(Vec<BoundListener>, Certificates), StartError> {
    let listeners = &config.listeners;
    let hosts = Hosts::new(&config.admin.hosts);
    let mut bound = Vec::new();
    let mut certificates = Certificates::default();
    let no_tls = TlsSettings::default();
    let (mqtt, mqtts, ws, wss) = (
        &listeners.mqtt,
        &listeners.mqtts,
        &listeners.ws,
        &listeners.wss,
    );
    for (name, bind, proxy, tls, origins) in [
        ("mqtt", &mqtt.bind, mqtt.proxy_protocol, &no_tls, &[][..]),
        (
            "mqtts",
            &mqtts.bind,
            mqtts.proxy_protocol,
            &mqtts.tls,
            &[][..],
        ),
        ("ws", &ws.bind, ws.proxy_protocol, &no_tls, &ws.origins[..]),
        (
            "wss",
            &wss.bind,
            wss.proxy_protocol,
            &wss.tls,
            &wss.origins[..],
        ),
    ] {
        if bind.0.is_empty() {
            continue;
        }
        let tls = certificates.load(name, tls, &[])?;
        let origins = Arc::new(Origins::new(origins, &hosts));
        for address in &bind.0 {
            bound.push(BoundListener {
                listener: reserve(name, *address)?,
                speaks: ListenerProtocol {
                    proxy,
                    tls: tls.clone(),
                    websocket: matches!(name, "ws" | "wss"),
                    origins: Arc::clone(&origins),
                },
            });
        }
    }
    Ok((bound, certificates))
}

/// Binds an address early, so that a busy one is reported before anything else happens. Clients cannot connect yet.
fn reserve(listener: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let bind = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // A restart must not wait until the connections of the previous process time out.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // Allows [::] and 0.0.0.0 side by side, each for its own protocol.
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    bind().map_err(|reason| StartError::Listen {
        listener,
        address,
        reason,
    })
}

/// Binds the address for other nodes, if this broker is one of a cluster.
pub(super) fn listen_mesh(config: &Config) -> Result<Option<TcpListener>, StartError> {
    let cluster = &config.cluster;
    let bind = cluster.listen.filter(|_| cluster.is_on());
    let socket = bind.map(|bind| listen("cluster", bind.0));
    socket.transpose().map_err(|error| match error {
        StartError::Listen {
            address, reason, ..
        } => StartError::ListenMesh { address, reason },
        other => other,
    })
}

pub(super) fn listen(
    listener: &'static str,
    address: SocketAddr,
) -> Result<TcpListener, StartError> {
    let socket = reserve(listener, address)?;
    SockRef::from(&socket)
        .listen(BACKLOG)
        .map_err(|reason| StartError::Listen {
            listener,
            address,
            reason,
        })?;
    Ok(socket)
}

pub(super) fn address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|reason| StartError::Thread {
        what: "listener",
        reason,
    })
}
