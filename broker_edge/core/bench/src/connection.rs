//! The options that say where the broker is and who the clients are, and their environment variables.

use crate::address::Address;
use crate::plan::{Layers, Plan};
use crate::tls::Tls;
use crate::{secrets, stream, tls};

/// The literal password of earlier releases.
const RETIRED_PASSWORD: &str = "HEADWATER_PASSWORD";

/// The values as given.
#[derive(Default)]
pub struct Connection {
    mqtt: Option<String>,
    secrets: secrets::Given,
    tls: tls::Given,
    /// What the user should write differently.
    notes: Vec<String>,
}

impl Connection {
    /// Takes one option; returns false for options that are not about the connection.
    pub fn take(
        &mut self,
        name: &str,
        value: impl FnOnce() -> Result<String, String>,
    ) -> Result<bool, String> {
        if name == "--username" {
            self.note("--username is now --user; the old name works until the next release");
        }
        let place = match name {
            "--mqtt" => &mut self.mqtt,
            "--user" | "--username" => &mut self.secrets.user,
            "--password-from" => &mut self.secrets.password,
            "--token-from" => &mut self.secrets.token,
            "--tls-ca" => &mut self.tls.ca,
            "--tls-cert" => &mut self.tls.cert,
            "--tls-key" => &mut self.tls.key,
            _ => return Ok(false),
        };
        *place = Some(value()?);
        Ok(true)
    }

    fn note(&mut self, sentence: &str) {
        self.notes.push(sentence.to_owned());
    }

    /// Resolves the host and reads secrets and certificates into the plan. Returns what the user should write
    /// differently.
    pub fn apply(
        mut self,
        plan: &mut Plan,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>, String> {
        let text = self.mqtt.take().or_else(|| variable("HEADWATER_MQTT"));
        let text = text.unwrap_or_else(|| "127.0.0.1:1883".to_owned());
        let address = Address::parse(&text)?;
        if !address.scheme.is_tls() && !self.tls.is_empty() {
            return Err(format!(
                "--tls-ca, --tls-cert and --tls-key are for mqtts:// and wss:// addresses, not for `{text}`"
            ));
        }
        let mut given = std::mem::take(&mut self.secrets).or_from(&variable);
        let lacks_password =
            given.user.is_some() && given.password.is_none() && given.token.is_none();
        if lacks_password && variable(RETIRED_PASSWORD).is_some() {
            self.note(
                "a password is read from HEADWATER_PASSWORD until the next release only: write \
                 --password-from env:HEADWATER_PASSWORD",
            );
            given.password = Some(format!("env:{RETIRED_PASSWORD}"));
        }
        plan.credentials = given.read()?;
        plan.layers = Layers {
            tls: if address.scheme.is_tls() {
                Some(Tls::new(&address.host, &self.tls.or_from(&variable))?)
            } else {
                None
            },
            websocket: if address.scheme.is_websocket() {
                Some(stream::uri(&address.uri())?)
            } else {
                None
            },
        };
        plan.address = address.resolve()?;
        let is_local = plan.address.ip().is_loopback();
        if plan.credentials.password.is_some() && plan.layers.tls.is_none() && !is_local {
            let scheme = if address.scheme.is_websocket() {
                "wss"
            } else {
                "mqtts"
            };
            self.notes.push(format!(
                "{text} has no TLS: others on the network can read the password or token; write {scheme}://"
            ));
        }
        plan.place = text;
        Ok(self.notes)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::plan::Scenario;

    /// The plan and notes of options, with these variables.
    fn applied(
        options: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<(Plan, Vec<String>), String> {
        let mut connection = Connection::default();
        for (name, value) in options {
            assert!(connection.take(name, || Ok((*value).to_owned()))?);
        }
        let mut plan = Plan::new(Scenario::Pub, SocketAddr::from(([127, 0, 0, 1], 1)));
        let find = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let notes = connection.apply(&mut plan, find)?;
        Ok((plan, notes))
    }

    /// Files of an authority, a certificate and its key, and of another key.
    struct Pki {
        folder: tempfile::TempDir,
    }

    impl Pki {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("there is room");
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
            let made = made.expect("the name is fine");
            let other = rcgen::KeyPair::generate().expect("there is entropy");
            for (name, text) in [
                ("cert", made.cert.pem()),
                ("key", made.signing_key.serialize_pem()),
                ("other", other.serialize_pem()),
                ("empty", "nothing".to_owned()),
            ] {
                std::fs::write(folder.path().join(name), text).expect("it is writable");
            }
            Self { folder }
        }

        fn path(&self, name: &str) -> String {
            self.folder.path().join(name).display().to_string()
        }
    }

    #[test]
    fn schemes_choose_the_layers() {
        let pki = Pki::new();
        let ca = pki.path("cert");
        for (text, is_tls, is_websocket) in [
            ("127.0.0.1:7", false, false),
            ("mqtts://127.0.0.1:7", true, false),
            ("ws://127.0.0.1:7", false, true),
            ("wss://127.0.0.1:7", true, true),
        ] {
            // The variable of an authority is no mistake for an address without TLS.
            let variables = [("HEADWATER_MQTT", text), ("HEADWATER_TLS_CA", ca.as_str())];
            let (plan, notes) = applied(&[], &variables).expect(text);
            assert_eq!(plan.layers.tls.is_some(), is_tls, "{text}");
            assert_eq!(plan.layers.websocket.is_some(), is_websocket, "{text}");
            assert_eq!((plan.place.as_str(), plan.address.port()), (text, 7));
            assert!(notes.is_empty(), "{notes:?}");
        }
    }

    #[test]
    fn certificates_are_paths_or_references() {
        let pki = Pki::new();
        let [ca, key] = ["cert", "key"].map(|name| pki.path(name));
        let reference = format!("file:{ca}");
        let options = [
            ("--mqtt", "mqtts://localhost:7"),
            ("--tls-ca", &reference),
            ("--tls-cert", &ca),
            ("--tls-key", &key),
        ];
        let (plan, _) = applied(&options, &[]).expect("the files are fine");
        assert!(plan.layers.tls.is_some());
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let pki = Pki::new();
        let [cert, key, other, empty] =
            ["cert", "key", "other", "empty"].map(|name| pki.path(name));
        let (cert, key, other, empty) = (&*cert, &*key, &*other, &*empty);
        for (options, named) in [
            (
                vec![("--tls-ca", "/no/file")],
                "--tls-ca: cannot read /no/file",
            ),
            (vec![("--tls-ca", "env:NO_SUCH_")], "no certificate in PEM"),
            (vec![("--tls-ca", empty)], "no certificate in PEM"),
            (vec![("--tls-cert", cert)], "belong together"),
            (vec![("--tls-key", key)], "belong together"),
            (
                vec![("--tls-cert", empty), ("--tls-key", key)],
                "--tls-cert",
            ),
            (
                vec![("--tls-cert", cert), ("--tls-key", empty)],
                "no private key",
            ),
            (
                vec![("--tls-cert", cert), ("--tls-key", other)],
                "is not the key",
            ),
        ] {
            let mut all = vec![("--mqtt", "mqtts://localhost:7"), ("--tls-ca", cert)];
            all.extend(options.iter().copied());
            let reason = applied(&all, &[]).err().unwrap_or_default();
            assert!(reason.contains(named), "{options:?}: {reason}");
        }
        let options = [("--mqtt", "ws://localhost:7"), ("--tls-ca", cert)];
        let reason = applied(&options, &[]).err().unwrap_or_default();
        assert!(reason.contains("mqtts://"), "{reason}");
        let options = [("--mqtt", "mqtts://a..b:7"), ("--tls-ca", cert)];
        let reason = applied(&options, &[]).err().unwrap_or_default();
        assert!(reason.contains("a..b"), "{reason}");
    }

    #[test]
    fn a_password_in_clear_to_another_machine_is_a_note() {
        for (address, scheme) in [
            ("10.1.2.3:7", Some("mqtts://")),
            ("ws://10.1.2.3:7", Some("wss://")),
            ("mqtts://10.1.2.3:7", None),
            ("127.0.0.1:7", None),
        ] {
            let login = [
                ("--mqtt", address),
                ("--user", "ann"),
                ("--password-from", "env:PATH"),
            ];
            let (_, notes) = applied(&login, &[]).expect("it is well-formed");
            assert_eq!(notes.len(), usize::from(scheme.is_some()), "{notes:?}");
            assert!(
                notes
                    .iter()
                    .all(|note| note.ends_with(scheme.unwrap_or_default()))
            );
            let (_, notes) = applied(&login[..1], &[]).expect("it is well-formed");
            assert!(notes.is_empty(), "{notes:?}");
        }
    }

    #[test]
    fn old_names_work_and_say_what_to_write() {
        // The variable itself is read by reference, from the environment of this process.
        let options = [("--username", "ann"), ("--password-from", "env:PATH")];
        let (plan, notes) = applied(&options, &[]).expect("it still works");
        assert_eq!(plan.credentials.username.as_deref(), Some("ann"));
        assert!(notes.len() == 1 && notes[0].contains("--user"), "{notes:?}");
        let reason = applied(&[("--user", "ann")], &[(RETIRED_PASSWORD, "s3cret")]);
        let reason = reason.err().unwrap_or_default();
        assert!(reason.contains("env:HEADWATER_PASSWORD"), "{reason}");
    }
}
