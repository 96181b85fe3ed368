//! Revoked client certificates: refused at the handshake, and disconnected by a reload.

use std::net::SocketAddr;
use std::path::Path;

use headwater_broker::Broker;
use headwater_broker::config::Config;

use super::wires::{
    Authority, Identity, TlsWire, client_config, connect, expect_failures, tls, tls_settings,
    try_connect,
};
use crate::common::{Client, start_with, tcp, try_start_with};

struct Fleet {
    server: Authority,
    clients: Authority,
    dir: tempfile::TempDir,
}

impl Fleet {
    fn new() -> Fleet {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (server, clients) = (Authority::new("server"), Authority::new("clients"));
        Fleet {
            server,
            clients,
            dir,
        }
    }

    fn write(&self, list: &str) {
        std::fs::write(self.dir.path().join("crl.pem"), list).expect("the folder takes files");
    }

    fn change(&self) -> impl FnOnce(&mut Config) {
        let identity = self.server.sign("broker", None);
        let mut settings = tls_settings(self.dir.path(), &identity, Some(&self.clients));
        settings.crl = Some(self.dir.path().join("crl.pem"));
        move |config| {
            config.listeners.mqtts.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
            config.listeners.mqtts.tls = settings;
        }
    }

    fn log(&self) -> std::path::PathBuf {
        Path::new(self.dir.path()).join("log")
    }

    fn enter(&self, broker: &Broker, who: &Identity) -> Option<Client<TlsWire>> {
        self.enter_as(broker, who, "c")
    }

    fn enter_as(
        &self,
        broker: &Broker,
        who: &Identity,
        client_id: &str,
    ) -> Option<Client<TlsWire>> {
        let address = broker.addresses("mqtts")[0];
        let wire = tls(tcp(address), &client_config(&self.server, Some(who)));
        try_connect(wire, client_id)
    }
}

#[test]
fn a_revoked_certificate_is_refused_at_the_handshake() {
    let fleet = Fleet::new();
    fleet.write(&fleet.clients.revoke(&[8], 2100));
    let broker = start_with(&fleet.log(), fleet.change());
    let (good, bad) = (
        fleet.clients.sign_numbered("a", 7),
        fleet.clients.sign_numbered("b", 8),
    );
    fleet.enter(&broker, &good).expect("it is not revoked");
    assert!(fleet.enter(&broker, &bad).is_none());
    expect_failures(&broker, "certificate", 1.0);
}

#[test]
fn a_reload_disconnects_the_clients_whose_certificates_were_revoked_and_no_others() {
    let fleet = Fleet::new();
    fleet.write(&fleet.clients.revoke(&[], 2100));
    let broker = start_with(&fleet.log(), fleet.change());
    let (good, bad) = (
        fleet.clients.sign_numbered("a", 7),
        fleet.clients.sign_numbered("b", 8),
    );
    let address = broker.addresses("mqtts")[0];
    let enter = |who, client_id| {
        connect(
            tls(tcp(address), &client_config(&fleet.server, Some(who))),
            client_id,
        )
    };
    let (mut stays, mut goes) = (enter(&good, "a"), enter(&bad, "b"));
    fleet.write(&fleet.clients.revoke(&[8], 2100));
    broker.reload().expect("the files are right");
    assert!(goes.packet().is_none(), "the connection ends");
    stays.publish("t", b"x");
    assert!(fleet.enter(&broker, &bad).is_none());
    fleet.write("no list");
    let reason = broker.reload().expect_err("it is no list");
    assert!(reason.contains("listeners.mqtts.tls.crl"), "{reason}");
    assert!(
        fleet.enter(&broker, &bad).is_none(),
        "the old list stays in use"
    );
    fleet.enter(&broker, &good).expect("it is not revoked");
}

#[test]
fn an_expired_list_and_an_authority_without_a_list_let_nobody_in() {
    let fleet = Fleet::new();
    fleet.write(&fleet.clients.revoke(&[], 2002));
    let broker = start_with(&fleet.log(), fleet.change());
    let client = fleet.clients.sign_numbered("a", 7);
    assert!(fleet.enter(&broker, &client).is_none());
    fleet.write(&Authority::new("others").revoke(&[], 2100));
    broker.reload().expect("it is a list");
    assert!(fleet.enter(&broker, &client).is_none());
    fleet.write(&fleet.clients.revoke(&[], 2100));
    broker.reload().expect("it is a list");
    fleet
        .enter(&broker, &client)
        .expect("the list is valid again");
}

#[test]
fn an_authority_between_is_refused_where_a_list_revokes_it_and_admitted_where_there_is_no_list_for_it()
 {
    let fleet = Fleet::new();
    let (good, bad) = (
        fleet.clients.below("good", 21),
        fleet.clients.below("bad", 22),
    );
    let of = |between: &Authority, name: &str| between.sign_numbered(name, 7).with(between);
    let (stays, goes) = (of(&good, "a"), of(&bad, "b"));
    let own = || [good.revoke(&[], 2100), bad.revoke(&[], 2100)].concat();
    // There is no list of the authority that signed those between.
    fleet.write(&own());
    let broker = start_with(&fleet.log(), fleet.change());
    let mut first = fleet.enter_as(&broker, &stays, "a").expect("not revoked");
    let mut second = fleet.enter_as(&broker, &goes, "b").expect("not known");
    fleet.write(&(own() + &fleet.clients.revoke(&[22], 2100)));
    broker.reload().expect("the files are right");
    assert!(second.packet().is_none(), "the connection ends");
    first.publish("t", b"x");
    assert!(fleet.enter(&broker, &goes).is_none());
    fleet.enter(&broker, &stays).expect("it is not revoked");
    // What was revoked since is not known.
    fleet.write(&(own() + &fleet.clients.revoke(&[], 2002)));
    broker.reload().expect("they are lists");
    assert!(fleet.enter(&broker, &stays).is_none());
    // A list is required of the authority that signed the client's own certificate.
    fleet.write(&(good.revoke(&[], 2100) + &fleet.clients.revoke(&[], 2100)));
    broker.reload().expect("they are lists");
    assert!(fleet.enter(&broker, &goes).is_none());
    fleet.enter(&broker, &stays).expect("it is not revoked");
}

#[test]
fn a_listener_whose_list_is_missing_does_not_start() {
    let fleet = Fleet::new();
    let Err(error) = try_start_with(&fleet.log(), fleet.change()) else {
        panic!("it started without its list");
    };
    assert!(
        error.to_string().contains("listeners.mqtts.tls.crl"),
        "{error}"
    );
}
