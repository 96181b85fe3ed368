//! Who may ask: passwords, rights, certificates.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_etcd::{CasOutcome, Client, Fault, Identity, MetaStore, Tls, Update, User, Watch};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};

use crate::support::{Etcd, Member, PATIENT, client, run, sentence};

fn user(name: &str, password: &str) -> Option<User> {
    let (name, password) = (name.to_owned(), password.to_owned());
    Some(User { name, password })
}

/// The user `node` may read and write keys below `/n/`.
fn enable_authentication(member: &Member) {
    let (from, to) = (STANDARD.encode("/n/"), STANDARD.encode("/n0"));
    for (path, body) in [
        (
            "auth/user/add",
            r#"{"name":"root","password":"r"}"#.to_owned(),
        ),
        ("auth/role/add", r#"{"name":"root"}"#.to_owned()),
        (
            "auth/user/grant",
            r#"{"user":"root","role":"root"}"#.to_owned(),
        ),
        (
            "auth/user/add",
            r#"{"name":"node","password":"n"}"#.to_owned(),
        ),
        ("auth/role/add", r#"{"name":"node"}"#.to_owned()),
        (
            "auth/role/grant",
            format!(
                r#"{{"name":"node","perm":{{"permType":"READWRITE","key":"{from}","range_end":"{to}"}}}}"#
            ),
        ),
        (
            "auth/user/grant",
            r#"{"user":"node","role":"node"}"#.to_owned(),
        ),
        ("auth/enable", "{}".to_owned()),
    ] {
        member.post(path, &body);
    }
}

#[test]
fn passwords_and_rights_are_checked() {
    let etcd = Etcd::start_with(1, "http", &["--bcrypt-cost", "4"]);
    run(async {
        let connect = |user| client(&etcd.urls(), None, user, PATIENT);
        let early = connect(user("node", "n"));
        assert!(
            early.get("/n/a").await.is_ok(),
            "authentication is not enabled"
        );
        enable_authentication(&etcd.members[0]);
        let text = sentence(connect(user("node", "wrong")).get("/n/a").await);
        assert!(
            text.contains("refused the password of user \"node\""),
            "{text}"
        );
        let text = sentence(connect(None).get("/n/a").await);
        assert!(text.contains("demands a user and a password"), "{text}");
        // Its connection has no token.
        assert!(early.get("/n/a").await.is_ok(), "it authenticates anew");
        let node = connect(user("node", "n"));
        done(&node, "/n/a").await;
        let outcome = node.put_if_absent("/m/a", "v".into(), None).await;
        let is_denied =
            matches!(&outcome, CasOutcome::NotDone(error) if error.fault == Fault::Denied);
        assert!(is_denied, "{outcome:?}");
        let Update::Failed(error) = node.watch("/").next().await else {
            panic!("it may not watch everything");
        };
        assert_eq!(error.fault, Fault::Denied);
        let mut watch = node.watch("/n/");
        assert!(matches!(watch.next().await, Update::All { .. }));
    });
}

async fn done(client: &Client, key: &str) {
    let outcome = client.put_if_absent(key, "v".into(), None).await;
    assert!(matches!(outcome, CasOutcome::Done(_)), "{key}: {outcome:?}");
}

#[test]
fn a_token_that_is_refused_is_renewed() {
    let etcd = Etcd::start_with(1, "http", &["--bcrypt-cost", "4"]);
    run(async {
        let member = &etcd.members[0];
        enable_authentication(member);
        let node = client(&etcd.urls(), None, user("node", "n"), PATIENT);
        done(&node, "/n/a").await;
        let answer = member.post("auth/authenticate", r#"{"name":"root","password":"r"}"#);
        let (_, token) = answer.split_once(r#""token":""#).expect("a token");
        let (token, _) = token.split_once('"').expect("its end");
        // All tokens go with it.
        member.post_as(token, "auth/disable", "{}");
        member.post("auth/enable", "{}");
        done(&node, "/n/b").await;
        let mut watch = node.watch("/n/");
        assert!(matches!(watch.next().await, Update::All { .. }));
        done(&node, "/n/c").await;
        assert!(matches!(watch.next().await, Update::Changes(_)));
    });
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "etcd's authority");
        Self(
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
                .expect("made"),
        )
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("params");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Identity {
            certificate: certificate.pem().into(),
            key: key.serialize_pem().into(),
        }
    }
}

fn start_with_tls(folder: &Path, authority: &Authority) -> Etcd {
    let server = authority.issue("127.0.0.1");
    let path = |name: &str| folder.join(name).display().to_string();
    let files = [path("ca.pem"), path("server.pem"), path("server.key")];
    for (file, bytes) in
        files
            .iter()
            .zip([authority.pem().as_bytes(), &server.certificate, &server.key])
    {
        std::fs::write(file, bytes).expect("written");
    }
    let [ca, certificate, key] = &files;
    Etcd::start_with(
        1,
        "https",
        &[
            "--trusted-ca-file",
            ca,
            "--cert-file",
            certificate,
            "--key-file",
            key,
            "--client-cert-auth",
        ],
    )
}

#[test]
fn certificates_are_checked_on_both_sides() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let etcd = start_with_tls(folder.path(), &authority);
    let connect = |ca: &Authority, identity: Option<Identity>| {
        let tls = Tls::new(ca.pem().as_bytes(), identity.as_ref()).expect("used");
        client(&etcd.urls(), Some(tls), None, PATIENT)
    };
    run(async {
        let good = connect(&authority, Some(authority.issue("node")));
        done(&good, "/a").await;
        let text = sentence(
            connect(&stranger, Some(authority.issue("node")))
                .get("/a")
                .await,
        );
        assert!(
            text.contains("failed the TLS handshake: invalid peer certificate"),
            "{text}"
        );
        for identity in [None, Some(stranger.issue("node"))] {
            let text = sentence(connect(&authority, identity).get("/a").await);
            assert!(
                text.contains("closed the connection after the TLS handshake"),
                "{text}"
            );
        }
        let plain = etcd.members[0].url.replace("https", "http");
        let text = sentence(client(&[&plain], None, None, PATIENT).get("/a").await);
        assert!(text.contains("whether TLS is on"), "{text}");
    });
}

#[test]
fn tls_to_a_port_without_tls_is_named() {
    let etcd = Etcd::start(1);
    run(async {
        let tls = Tls::new(Authority::new().pem().as_bytes(), None).expect("used");
        let url = etcd.members[0].url.replace("http", "https");
        let text = sentence(client(&[&url], Some(tls), None, PATIENT).get("/a").await);
        assert!(text.contains("failed the TLS handshake"), "{text}");
    });
}
