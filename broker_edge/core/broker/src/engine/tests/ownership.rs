//! Which user a client id and its session belong to, and which client ids rules with `%c` accept as proved.

use crate::auth::users::Fingerprint;
use crate::auth::{AuthService, Authority};
use crate::config::{AuthSettings, CertificateUser, ClientIds};
use crate::peer::{CertificateNames, Peer, Transport};

use super::guarded::{Guarded, quick_line};
use super::*;

/// The access list in the documentation, and a user with client ids of other names.
const ACL: &str = "
user site
client-id valve-*
pattern write devices/%c/#
pattern read devices/%c/actions
";

fn broker(change: impl FnOnce(&mut AuthSettings)) -> Guarded {
    let broker = Guarded::new(change);
    broker.write("acl", ACL);
    let users = ["pump-7", "pump-8", "site"].map(|user| quick_line(user, "pw"));
    broker.write("users", &users.concat());
    broker.auth_service.reload().expect("the files are right");
    broker
}

fn lasting<'a>(version: Version, user: &'a str, client_id: &'a str) -> ConnectFields<'a> {
    let mut fields = ConnectFields::new(version, client_id);
    fields.clean_start = false;
    if version.is_v5() {
        fields.properties = &[Property::SessionExpiryInterval(3600)];
    }
    fields.username = Some(user);
    fields.password = Some(b"pw");
    fields
}

fn session_user(broker: &Guarded, client_id: &str) -> Option<String> {
    let session = broker.rig.engine.clients.by_id(client_id)?;
    session.owner().map(str::to_owned)
}

#[test]
fn a_device_with_the_client_id_of_another_gets_none_of_its_commands_and_forges_none() {
    let mut broker = broker(|_| {});
    let thief = broker.connect("pump-8", "pw", "pump-7");
    assert_eq!(
        broker.subscribe(thief, "devices/pump-7/actions", None),
        "0x87"
    );
    assert_eq!(
        broker.publish(thief, "devices/pump-7/status", 1),
        "refused NotAuthorized"
    );
    // Under this name it is not a device, not even itself.
    assert_eq!(
        broker.publish(thief, "devices/pump-8/status", 2),
        "refused NotAuthorized"
    );
    let honest = broker.connect("pump-8", "pw", "pump-8");
    assert_eq!(
        broker.publish(honest, "devices/pump-8/status", 1),
        "puback 1"
    );
    assert_eq!(
        broker.subscribe(honest, "devices/pump-8/actions", None),
        "0x01"
    );
    broker.rig.crash();
}

#[test]
fn a_client_id_line_makes_client_ids_the_users_own_and_any_believes_all() {
    let mut auto = broker(|_| {});
    let valve = auto.connect("site", "pw", "valve-3");
    assert_eq!(auto.publish(valve, "devices/valve-3/x", 1), "puback 1");
    let pump = auto.connect("site", "pw", "pump-9");
    assert_eq!(
        auto.publish(pump, "devices/pump-9/x", 1),
        "refused NotAuthorized"
    );
    auto.rig.crash();
    let mut any = broker(|settings| settings.client_ids = ClientIds::Any);
    let pump = any.connect("site", "pw", "pump-9");
    assert_eq!(any.publish(pump, "devices/pump-9/x", 1), "puback 1");
    any.rig.crash();
}

#[test]
fn the_names_in_a_certificate_are_the_clients_own_and_anonymous_clients_have_no_name_to_compare() {
    let mut broker = broker(|settings| {
        settings.certificate.user = CertificateUser::CommonName;
        settings.allow_anonymous = true;
    });
    let names = CertificateNames {
        common_name: Some("box-1".to_owned()),
        alternative_names: vec!["box-1.plant".to_owned()],
        ..CertificateNames::default()
    };
    let address = ([127, 0, 0, 1], 1).into();
    let peer = Peer::new(address, Transport::Mqtts, Some(names.into()));
    for (client_id, answer) in [
        ("box-1", "puback 1"),
        ("box-1.plant", "puback 1"),
        ("box-2", "refused NotAuthorized"),
    ] {
        let fields = ConnectFields::new(Version::V5, client_id);
        let (key, code) = broker.try_connect_as(peer.clone(), &fields);
        assert_eq!(code, 0, "{client_id}");
        let topic = format!("devices/{client_id}/x");
        assert_eq!(broker.publish(key, &topic, 1), answer, "{client_id}");
    }
    let (key, code) = broker.try_connect(&ConnectFields::new(Version::V5, "guest"));
    assert_eq!(code, 0);
    assert_eq!(broker.publish(key, "devices/guest/x", 1), "puback 1");
    broker.rig.crash();
}

#[test]
fn a_client_without_credentials_is_no_device_that_is_known_to_be_somebodys() {
    let mut broker = broker(|settings| settings.allow_anonymous = true);
    for (client_id, answer) in [
        ("pump-7", "refused NotAuthorized"),
        ("valve-3", "refused NotAuthorized"),
        ("guest", "puback 1"),
    ] {
        let (key, code) = broker.try_connect(&ConnectFields::new(Version::V5, client_id));
        assert_eq!(code, 0, "{client_id}");
        let topic = format!("devices/{client_id}/status");
        assert_eq!(broker.publish(key, &topic, 1), answer, "{client_id}");
    }
    broker.rig.crash();
}

#[test]
fn who_may_read_a_command_and_calls_itself_as_the_device_gives_no_receipt_for_it() {
    let mut broker = broker(|_| {});
    broker.write(
        "acl",
        "user site\ntopic read devices/#\nuser pump-8\ntopic write devices/#\ntopic read $receipts\n",
    );
    broker.auth_service.reload().expect("the file is right");
    let eye = broker.connect("pump-8", "pw", "pump-8");
    assert_eq!(broker.subscribe(eye, "$receipts", None), "0x01");
    for (client_id, gives) in [("pump-7", false), ("box-9", true)] {
        let device = broker.connect("site", "pw", client_id);
        let topic = format!("devices/{client_id}/actions");
        assert_eq!(broker.subscribe(device, &topic, None), "0x01");
        assert_eq!(broker.publish(eye, &topic, 1), "puback 1");
        let mut got = Vec::new();
        while got.is_empty() {
            got = broker.delivered(device);
            if got.is_empty() && !broker.rig.engine.has_more() {
                broker
                    .rig
                    .moved
                    .recv_timeout(DEADLINE)
                    .expect("the command");
            }
        }
        broker.rig.feed(device, |out| {
            let id = PacketId::FIRST;
            encode::puback(out, Version::V5, id, ReasonCode::Success, &[]);
        });
        // A publish to everything comes after the receipt.
        assert_eq!(broker.publish(eye, "devices/x/y", 2), "puback 2");
        let mut receipts = broker.delivered(eye);
        while gives && receipts.is_empty() {
            if !broker.rig.engine.has_more() {
                broker
                    .rig
                    .moved
                    .recv_timeout(DEADLINE)
                    .expect("the receipt");
            }
            receipts = broker.delivered(eye);
        }
        assert_eq!(
            receipts.len(),
            usize::from(gives),
            "{client_id}: {receipts:?}"
        );
    }
    broker.rig.crash();
}

#[test]
fn another_user_is_refused_the_client_id_of_a_session_in_every_version() {
    let mut broker = broker(|settings| settings.allow_anonymous = true);
    let (owner, code) = broker.try_connect(&lasting(Version::V5, "site", "shared"));
    assert_eq!(code, 0);
    for away in [false, true] {
        if away {
            broker.rig.engine.remove(owner);
            broker.rig.turn();
        }
        for (version, code) in [(Version::V5, 0x85), (Version::V311, 2), (Version::V31, 2)] {
            for clean_start in [false, true] {
                let mut fields = lasting(version, "pump-8", "shared");
                fields.clean_start = clean_start;
                assert_eq!(
                    broker.try_connect(&fields).1,
                    code,
                    "{version:?} away: {away}"
                );
            }
            let (_, answer) = broker.try_connect(&ConnectFields::new(version, "shared"));
            assert_eq!(
                answer, code,
                "a client without credentials is another user, too"
            );
        }
    }
    assert_eq!(broker.denied("client_id"), 18);
    let refusals = broker.rig.engine.env.metrics.audit.refusals();
    let row = refusals
        .users
        .iter()
        .find(|row| row.user.as_deref() == Some("pump-8"));
    assert_eq!(row.expect("a row").refused[0].count, 12);
    assert_eq!(session_user(&broker, "shared").as_deref(), Some("site"));
    // The owner still has it, and the other user may have it once it has ended.
    let mut fields = lasting(Version::V5, "site", "shared");
    fields.clean_start = true;
    fields.properties = &[];
    let (owner, code) = broker.try_connect(&fields);
    assert_eq!(code, 0);
    broker.rig.engine.remove(owner);
    broker.rig.turn();
    assert_eq!(
        broker
            .try_connect(&lasting(Version::V5, "pump-8", "shared"))
            .1,
        0
    );
    broker.rig.crash();
}

#[test]
fn who_takes_a_client_id_first_does_not_keep_out_the_user_whose_own_it_is() {
    let mut broker = broker(|_| {});
    let (squatter, code) = broker.try_connect(&lasting(Version::V5, "pump-8", "pump-7"));
    assert_eq!(code, 0);
    let (_, code) = broker.try_connect(&lasting(Version::V5, "pump-7", "pump-7"));
    assert_eq!(code, 0);
    assert!(broker.is_closed(squatter));
    assert_eq!(session_user(&broker, "pump-7").as_deref(), Some("pump-7"));
    // The other way round it is refused, even after a restart, when nobody is connected.
    assert_eq!(
        broker
            .try_connect(&lasting(Version::V5, "pump-8", "pump-7"))
            .1,
        0x85
    );
    let mut broker = broker.restart();
    assert_eq!(
        broker
            .try_connect(&lasting(Version::V5, "pump-8", "pump-7"))
            .1,
        0x85
    );
    assert_eq!(
        broker
            .try_connect(&lasting(Version::V5, "site", "pump-7"))
            .1,
        0x85
    );
    assert_eq!(
        broker
            .try_connect(&lasting(Version::V5, "pump-7", "pump-7"))
            .1,
        0
    );
    broker.rig.crash();
}

#[test]
fn a_session_from_before_there_were_owners_belongs_to_the_first_who_is_let_in() {
    let mut broker = broker(|_| {});
    let (key, _) = broker.try_connect(&lasting(Version::V5, "site", "old"));
    let session = broker
        .rig
        .engine
        .clients
        .conn(key)
        .and_then(|conn| conn.session);
    let session = broker
        .rig
        .engine
        .clients
        .session_mut(session.expect("a session"));
    session.expect("a session").rights = None;
    broker.rig.engine.remove(key);
    broker.rig.turn();
    let mut broker = broker.restart();
    assert_eq!(session_user(&broker, "old"), None);
    assert_eq!(
        broker.try_connect(&lasting(Version::V5, "pump-8", "old")).1,
        0
    );
    assert_eq!(session_user(&broker, "old").as_deref(), Some("pump-8"));
    assert_eq!(
        broker.try_connect(&lasting(Version::V5, "site", "old")).1,
        0x85
    );
    let mut broker = broker.restart();
    assert_eq!(
        broker.try_connect(&lasting(Version::V5, "site", "old")).1,
        0x85
    );
    broker.rig.crash();
}

#[test]
fn operators_are_only_those_who_are_written_down() {
    let is_operator = |change: fn(&mut AuthSettings), is_local: bool, user: &str| {
        let dir = dir();
        let write = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).expect("a file");
            dir.path().join(name)
        };
        let mut settings = AuthSettings {
            password_file: Some(write(
                "users",
                &(quick_line("ann", "pw") + &quick_line("bob", "pw")),
            )),
            acl_file: Some(write("acl", "user ann\noperator")),
            ..AuthSettings::default()
        };
        change(&mut settings);
        let auth_service = AuthService::start(&settings, is_local).expect("the files are right");
        let authority = auth_service.current();
        let identity = match user {
            "" => Arc::default(),
            user => Authority::password_identity(user, Fingerprint(7), i64::MAX),
        };
        authority.opens_operation()
            || authority
                .rights(identity)
                .is_some_and(|rights| rights.is_operator())
    };
    let with_both: fn(&mut AuthSettings) = |_| {};
    let without_acl: fn(&mut AuthSettings) = |settings| settings.acl_file = None;
    let named: fn(&mut AuthSettings) = |settings| {
        settings.acl_file = None;
        settings.operators = vec!["bob".to_owned()];
    };
    let open: fn(&mut AuthSettings) = |settings| {
        settings.acl_file = None;
        settings.password_file = None;
        settings.allow_anonymous = true;
    };
    for (change, is_local, user, expected) in [
        (with_both, false, "ann", true),
        (with_both, false, "bob", false),
        (without_acl, true, "ann", false),
        (without_acl, false, "bob", false),
        (named, false, "bob", true),
        (named, false, "ann", false),
        (named, false, "", false),
        (open, true, "", true),
        (open, false, "", false),
    ] {
        assert_eq!(
            is_operator(change, is_local, user),
            expected,
            "{user} {is_local}"
        );
    }
}
