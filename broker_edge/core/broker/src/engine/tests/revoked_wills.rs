//! Delayed wills of clients that have lost the right to publish them meanwhile: not published, also not by a later
//! start of the broker.

use headwater_log::Class;
use headwater_mqtt::encode::WillFields;

use crate::config::{AuthSettings, CertificateUser};
use crate::peer::{CertificateNames, Peer, Transport};

use super::guarded::{Guarded, quick_line};
use super::*;

const TOPICS: [&str; 2] = ["a/will", "own/ann-1/will"];
const WITHOUT_WILLS: &str = "user ann\nclient-id ann-*\ntopic read #\npattern read own/%c/#\n";

/// A broker with a will for each topic, whose clients are away.
fn with_wills() -> Guarded {
    with_wills_of(Guarded::new(|_| {}), &Peer::nobody())
}

fn with_wills_of(mut broker: Guarded, peer: &Peer) -> Guarded {
    let session = [Property::SessionExpiryInterval(600)];
    let delay = [Property::WillDelayInterval(60)];
    for (client_id, topic) in ["ann-0", "ann-1"].into_iter().zip(TOPICS) {
        let mut fields = ConnectFields::new(Version::V5, client_id);
        if peer.certificate.is_none() {
            fields.username = Some("ann");
            fields.password = Some(b"pw-a");
        }
        fields.properties = &session;
        fields.will = Some(WillFields {
            topic,
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: &delay,
        });
        let (key, code) = broker.try_connect_as(peer.clone(), &fields);
        assert_eq!(code, 0);
        broker.rig.engine.remove(key);
        broker.rig.turn();
    }
    assert_eq!(stored(&broker), 2);
    broker
}

fn change(broker: &Guarded, file: &str, text: &str) {
    broker.write(file, text);
    broker.auth_service.reload().expect("the files are right");
}

fn stored(broker: &Guarded) -> usize {
    let mut count = 0;
    let state = &broker.rig.state;
    state.for_each_prefix("will/", |_, _| count += 1);
    count
}

/// How many records there are when the wills are due.
fn published(broker: &mut Guarded) -> u64 {
    broker.rig.pass_time(61_000);
    broker.rig.pass_time(tick::CHECKPOINT_MS);
    let data = broker.rig.log.partitions().iter();
    let data = data.filter(|partition| partition.class() != Class::Internal);
    data.map(|partition| partition.next_offset().0).sum()
}

#[test]
fn a_waiting_will_is_published_after_a_restart_while_its_client_has_the_right() {
    let mut broker = with_wills().restart();
    assert_eq!(published(&mut broker), 2);
    broker.rig.crash();
}

#[test]
fn a_right_that_was_taken_away_keeps_a_will_back_after_a_restart_too() {
    for revoke in [without_acl, without_user] {
        let broker = with_wills();
        revoke(&broker);
        let mut broker = broker.restart();
        assert_eq!(published(&mut broker), 0);
        broker.rig.crash();
    }
}

#[test]
fn a_will_that_was_refused_when_it_was_due_is_not_published_by_a_later_start() {
    let mut broker = with_wills();
    change(&broker, "acl", WITHOUT_WILLS);
    broker.rig.turn();
    assert_eq!(published(&mut broker), 0);
    assert_eq!(stored(&broker), 0);
    let again = "user ann\nclient-id ann-*\ntopic write #\n";
    change(&broker, "acl", again);
    let mut broker = broker.restart();
    assert_eq!(published(&mut broker), 0);
    broker.rig.crash();
}

/// The public key of RFC 8037, A.2.
const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPJHURo"}]}"#;

/// Tokens and certificates name users that no file lists.
fn with_unlisted_users(settings: &mut AuthSettings) {
    let users = settings.password_file.as_ref().expect("a file");
    let keys = users.with_file_name("keys");
    std::fs::write(&keys, KEYS).expect("a file");
    settings.token.keys_file = Some(keys);
    settings.certificate.user = CertificateUser::CommonName;
}

fn without_acl(broker: &Guarded) {
    change(broker, "acl", WITHOUT_WILLS);
}

fn without_user(broker: &Guarded) {
    change(broker, "users", &quick_line("bob", "pw-b"));
}

#[test]
fn a_will_of_a_password_user_is_kept_back_where_tokens_and_certificates_are_taken_too() {
    for revoke in [without_acl, without_user] {
        let broker = with_wills_of(Guarded::new(with_unlisted_users), &Peer::nobody());
        revoke(&broker);
        let mut broker = broker.restart();
        assert_eq!(published(&mut broker), 0);
        broker.rig.crash();
    }
}

#[test]
fn a_will_of_a_user_that_no_file_lists_is_published_after_a_restart() {
    let names = CertificateNames {
        common_name: Some("ann".into()),
        ..CertificateNames::default()
    };
    let address = Peer::nobody().address();
    let peer = Peer::new(address, Transport::Mqtts, Some(std::sync::Arc::new(names)));
    let broker = with_wills_of(Guarded::new(with_unlisted_users), &peer);
    without_user(&broker);
    let mut broker = broker.restart();
    assert_eq!(published(&mut broker), 2);
    broker.rig.crash();
}
