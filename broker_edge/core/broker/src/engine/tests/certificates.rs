//! Certificates that clients have presented: the user they name, and their end.

use crate::config::CertificateUser;
use crate::peer::{CertificateNames, Peer, Transport};

use super::guarded::Guarded;
use super::*;

#[test]
fn a_certificate_names_the_user_and_binds_the_client_id() {
    let mut broker = Guarded::new(|settings| {
        settings.certificate.user = CertificateUser::CommonName;
        settings.certificate.bind_client_id = true;
    });
    let peer = || {
        let names = CertificateNames {
            common_name: Some("ann".into()),
            alternative_names: Vec::new(),
            ..CertificateNames::default()
        };
        let address = Peer::nobody().address();
        Peer::new(address, Transport::Mqtts, Some(Arc::new(names)))
    };
    let (key, code) = broker.try_connect_as(peer(), &ConnectFields::new(Version::V5, "ann"));
    assert_eq!(code, 0);
    assert_eq!(broker.publish(key, "a/x", 1), "puback 1");
    for (version, expected) in [(Version::V5, 0x85), (Version::V311, 2)] {
        let (_, code) = broker.try_connect_as(peer(), &ConnectFields::new(version, "other"));
        assert_eq!(code, expected);
    }
    assert_eq!(broker.denied("client_id"), 2);
    broker.rig.crash();
}

#[test]
fn a_connection_ends_with_its_certificate_whoever_its_user_is() {
    let mut broker = Guarded::new(|_| {});
    let connect = |broker: &mut Guarded, client_id: &str, left_us: i64| {
        let names = CertificateNames {
            expires_us: Some(broker.rig.now.wall_us + left_us),
            ..CertificateNames::default()
        };
        let address = Peer::nobody().address();
        let peer = Peer::new(address, Transport::Mqtts, Some(Arc::new(names)));
        let mut fields = ConnectFields::new(Version::V5, client_id);
        fields.username = Some("ann");
        fields.password = Some(b"pw-a");
        let (key, code) = broker.try_connect_as(peer, &fields);
        assert_eq!(code, 0);
        key
    };
    let short = connect(&mut broker, "short", 60_000_000);
    let long = connect(&mut broker, "long", 600_000_000);
    broker.rig.pass_time(59_000);
    assert!(!broker.is_closed(short));
    broker.rig.pass_time(2_000);
    assert!(broker.is_closed(short) && !broker.is_closed(long));
    broker.rig.crash();
}

#[test]
fn a_certificate_that_a_browser_shows_for_a_page_of_another_host_lets_nobody_in() {
    let mut broker = Guarded::new(|settings| {
        settings.certificate.user = CertificateUser::CommonName;
    });
    let peer = || {
        let names = CertificateNames {
            common_name: Some("ann".into()),
            alternative_names: Vec::new(),
            ..CertificateNames::default()
        };
        let address = Peer::nobody().address();
        let mut peer = Peer::new(address, Transport::Wss, Some(Arc::new(names)));
        peer.foreign_origin = true;
        peer
    };
    let mut fields = ConnectFields::new(Version::V5, "ann");
    assert_eq!(broker.try_connect_as(peer(), &fields).1, 0x87);
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    assert_eq!(broker.try_connect_as(peer(), &fields).1, 0);
    broker.rig.crash();
}
