//! Which files of a cluster's settings are accepted, and what is said about the others.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::ClusterFiles;
use crate::config::ClusterSettings;

struct Folder {
    dir: tempfile::TempDir,
    settings: ClusterSettings,
}

impl Folder {
    /// Settings of node `n1`, with valid files.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = ClusterSettings {
            name: Some("c".to_owned()),
            node: Some("n1".to_owned()),
            ..ClusterSettings::default()
        };
        let mut folder = Self { dir, settings };
        folder.settings.secret_file = Some(folder.write("secret", "0123456789abcdef\n"));
        folder.settings.etcd.endpoints = vec!["http://127.0.0.1:2379".to_owned()];
        folder
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A certificate for this name, its key, and the authority that signed it.
    fn with_certificate(mut self, name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = KeyPair::generate().unwrap();
        let authority = params.self_signed(&own).unwrap().pem();
        let issuer = Issuer::new(params, own);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &issuer).unwrap().pem();
        self.settings.tls.ca = Some(self.write("ca.pem", &authority));
        self.settings.tls.cert = Some(self.write("cert.pem", &cert));
        self.settings.tls.key = Some(self.write("key.pem", &key.serialize_pem()));
        self
    }

    fn wrong(&self) -> String {
        let loaded = ClusterFiles::load(&self.settings);
        loaded.err().expect("a file is wrong")
    }
}

#[test]
fn valid_files_are_read() {
    let mut folder = Folder::new().with_certificate("n1");
    folder.settings.etcd.user = Some("root".to_owned());
    folder.settings.etcd.password_file = Some(folder.write("password", "p w\nmore\n"));
    let files = ClusterFiles::load(&folder.settings).unwrap();
    assert_eq!(
        files.secret.as_bytes(),
        &0x0123_4567_89ab_cdef_u64.to_be_bytes()
    );
    assert!(files.mesh_tls.is_some());
    assert_eq!(
        files.etcd.user.map(|user| user.password).as_deref(),
        Some("p w")
    );
    assert!(
        ClusterFiles::load(&Folder::new().settings)
            .unwrap()
            .mesh_tls
            .is_none()
    );
}

#[test]
fn a_wrong_file_is_named_and_its_secret_is_not_shown() {
    let mut folder = Folder::new();
    folder.settings.secret_file = Some(folder.write("secret", "0123456789abcde"));
    let text = folder.wrong();
    assert!(
        text.starts_with("cluster.secret_file: ") && text.contains("16 hexadecimal digits"),
        "{text}"
    );
    assert!(!text.contains("0123456789"), "{text}");
    folder.settings.secret_file = Some(folder.dir.path().join("none"));
    let text = folder.wrong();
    assert!(
        text.contains("cluster.secret_file: cannot read") && text.contains("none"),
        "{text}"
    );

    let mut folder = Folder::new();
    folder.settings.etcd.user = Some("root".to_owned());
    folder.settings.etcd.password_file = Some(folder.write("password", "\nx"));
    assert!(folder.wrong().contains("has no password in its first line"));

    let mut folder = Folder::new();
    folder.settings.etcd.ca = Some(folder.write("etcd-ca.pem", "x"));
    assert!(folder.wrong().starts_with("cluster.etcd: "));
}

#[test]
fn a_file_without_end_is_not_read_whole() {
    let mut folder = Folder::new();
    folder.settings.secret_file = Some(folder.write("long", &"0".repeat((1 << 20) + 1)));
    assert!(folder.wrong().contains("it is larger than 1 MiB"));
}

#[test]
fn a_certificate_has_to_be_that_of_the_node() {
    let folder = Folder::new().with_certificate("n2");
    let text = folder.wrong();
    assert!(text.starts_with("cluster.tls.cert: "), "{text}");
    assert!(
        text.ends_with(
            "is not for node n1: its DNS names are [n2]; sign a certificate with DNS:n1"
        ),
        "{text}"
    );
    for (name, expected) in [
        ("cert.pem", "cluster.tls.cert: "),
        ("key.pem", "cluster.tls.key: "),
        ("ca.pem", "cluster.tls.ca: "),
    ] {
        let folder = Folder::new().with_certificate("n1");
        folder.write(name, "no certificate");
        let text = folder.wrong();
        assert!(
            text.starts_with(expected) && text.contains("in PEM format"),
            "{text}"
        );
    }
    let folder = Folder::new().with_certificate("n1");
    folder.write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
    assert!(folder.wrong().starts_with("cluster.tls: "));
}

#[test]
fn a_reload_says_which_files_wait_for_a_restart() {
    let folder = Folder::new().with_certificate("n1");
    let files = ClusterFiles::load(&folder.settings).unwrap().in_use;
    assert!(files.changed().is_empty());
    folder.write("cert.pem", "other");
    std::fs::remove_file(folder.dir.path().join("key.pem")).unwrap();
    let changed = files.changed();
    assert_eq!(changed.len(), 2, "{changed:?}");
    assert!(changed[0].starts_with("cluster.tls.cert: "), "{changed:?}");
    assert!(changed[1].starts_with("cluster.tls.key: "), "{changed:?}");
    assert!(changed[0].ends_with("cert.pem has changed; the broker uses it after a restart"));
}
