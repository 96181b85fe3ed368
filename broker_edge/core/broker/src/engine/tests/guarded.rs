//! A rig whose broker has users and an access list.

use std::collections::HashMap;
use std::fs;

use crate::auth::AuthService;
use crate::config::AuthSettings;
use crate::peer::Peer;

use super::*;

/// SHA-512 of the password and a salt, in Mosquitto's format: quick to check, which keeps the tests fast.
pub(super) fn quick_line(user: &str, password: &str) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let mut context = ring::digest::Context::new(&ring::digest::SHA512);
    context.update(password.as_bytes());
    context.update(b"salt");
    let (salt, hash) = (STANDARD.encode("salt"), STANDARD.encode(context.finish()));
    format!("{user}:$6${salt}${hash}\n")
}

const ACL: &str = "
topic read public/#
user ann
topic readwrite a/#
topic deny a/secret
topic replay old/#
topic read old/#
topic write old/#
client-id ann-*
user bob
client-id bob-*
topic read #
pattern readwrite own/%c/#
";

/// A rig whose broker has users, and the folder of their files.
pub(super) struct Guarded {
    pub rig: Rig,
    pub auth_service: Arc<AuthService>,
    delivered: HashMap<ConnKey, Vec<String>>,
    config: LogConfig,
    dir: tempfile::TempDir,
}

fn guarded_rig(config: LogConfig, auth_service: &Arc<AuthService>) -> Rig {
    let mut rig = Rig::open_with(config);
    let tell = rig.tell.clone();
    // The test may have ended.
    let wake = move || {
        let _ = tell.lock().send(());
    };
    rig.engine
        .set_auth(Arc::clone(auth_service), Arc::new(wake));
    rig
}

impl Guarded {
    pub fn new(change: impl FnOnce(&mut AuthSettings)) -> Self {
        Self::with_log(change, |_| {})
    }

    pub fn with_log(
        change: impl FnOnce(&mut AuthSettings),
        change_log: impl FnOnce(&mut LogConfig),
    ) -> Self {
        let dir = dir();
        let mut config = LogConfig::new(dir.path().join("log"));
        change_log(&mut config);
        let users = quick_line("ann", "pw-a") + &quick_line("bob", "pw-b");
        fs::write(dir.path().join("users"), users).expect("a file");
        fs::write(dir.path().join("acl"), ACL).expect("a file");
        let mut settings = AuthSettings {
            password_file: Some(dir.path().join("users")),
            acl_file: Some(dir.path().join("acl")),
            threads: 1,
            ..AuthSettings::default()
        };
        change(&mut settings);
        let auth_service = AuthService::start(&settings, true).expect("the files are right");
        let rig = guarded_rig(config.clone(), &auth_service);
        Self {
            rig,
            auth_service,
            delivered: HashMap::new(),
            config,
            dir,
        }
    }

    /// The broker after a crash, with the same files.
    pub fn restart(self) -> Self {
        let Self {
            rig,
            auth_service,
            config,
            dir,
            ..
        } = self;
        rig.crash();
        let rig = guarded_rig(config.clone(), &auth_service);
        Self {
            rig,
            auth_service,
            delivered: HashMap::new(),
            config,
            dir,
        }
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("a file");
    }

    /// Sends a CONNECT and returns the code of the answer: 0 if the client is admitted.
    pub fn try_connect(&mut self, fields: &ConnectFields<'_>) -> (ConnKey, u8) {
        self.try_connect_as(Peer::nobody(), fields)
    }

    pub fn try_connect_as(&mut self, peer: Peer, fields: &ConnectFields<'_>) -> (ConnKey, u8) {
        let key = self.rig.engine.open(peer);
        self.rig.feed(key, |out| encode::connect(out, fields));
        loop {
            let out = self.rig.engine.out(key).to_vec();
            if !out.is_empty() {
                self.rig.engine.written(key, out.len());
                return (key, out[3]);
            }
            self.rig.turn();
            if self.rig.engine.out(key).is_empty() && !self.rig.engine.has_more() {
                self.rig.moved.recv_timeout(DEADLINE).expect("an answer");
            }
        }
    }

    pub fn connect(&mut self, user: &str, password: &str, client_id: &str) -> ConnKey {
        let mut fields = ConnectFields::new(Version::V5, client_id);
        fields.username = Some(user);
        fields.password = Some(password.as_bytes());
        let (key, code) = self.try_connect(&fields);
        assert_eq!(code, 0, "{user} is let in");
        key
    }

    pub fn subscribe(&mut self, key: ConnKey, filter: &str, position: Option<&str>) -> String {
        let options = SubscriptionOptions::new(QoS::AtLeastOnce);
        let one = [Subscription { filter, options }];
        let position = position.map(|value| Property::UserProperty {
            key: "stream-offset",
            value,
        });
        let properties: Vec<_> = position.into_iter().collect();
        self.rig.feed(key, |out| {
            encode::subscribe(out, Version::V5, PacketId::FIRST, &properties, &one);
        });
        self.rig.turn();
        let bytes = self.rig.engine.out(key).to_vec();
        self.keep_deliveries(key);
        let mut rest = bytes.as_slice();
        while let Ok(Frame::Whole {
            first_byte,
            total_len,
            ..
        }) = frame::next(rest, 1 << 20)
        {
            if first_byte == 0x90 {
                return format!("{:#04x}", rest[total_len - 1]);
            }
            rest = &rest[total_len..];
        }
        panic!("no SUBACK in {bytes:?}")
    }

    /// Reads what a connection was sent: keeps the deliveries and returns the rest.
    pub fn keep_deliveries(&mut self, key: ConnKey) -> Vec<String> {
        let sent = self.rig.sent(key, Version::V5);
        let is_delivery = |packet: &String| packet.starts_with("publish ");
        let (delivered, others) = sent.into_iter().partition(is_delivery);
        self.delivered
            .entry(key)
            .or_default()
            .extend::<Vec<_>>(delivered);
        others
    }

    /// The deliveries to a connection since the last call.
    pub fn delivered(&mut self, key: ConnKey) -> Vec<String> {
        self.rig.turn();
        self.keep_deliveries(key);
        self.delivered.remove(&key).unwrap_or_default()
    }

    pub fn publish(&mut self, key: ConnKey, topic: &str, id: u16) -> String {
        let text = format!("{topic} {id}");
        self.rig
            .publish_to(topic, false, key, Version::V5, id, &text);
        loop {
            if let Some(answer) = self.keep_deliveries(key).into_iter().next() {
                return answer;
            }
            self.rig.turn();
            let is_empty = self.rig.engine.out(key).to_vec().is_empty();
            if is_empty && !self.rig.engine.has_more() {
                self.rig.moved.recv_timeout(DEADLINE).expect("an answer");
            }
        }
    }

    pub fn denied(&self, reason: &str) -> u64 {
        let mut text = String::new();
        let registry = self.rig.engine.env.metrics.registry();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text");
        let name = format!("headwater_auth_denied_total{{reason=\"{reason}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse().expect("a number"))
    }

    pub fn is_closed(&mut self, key: ConnKey) -> bool {
        self.rig.engine.take_closed().contains(&key)
    }
}
