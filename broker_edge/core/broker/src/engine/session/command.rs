//! Commands: records of a topic that names the client as its device. Acknowledging one is a receipt.

use headwater_log::RecordView;

use super::Session;
use super::window::Inflight;

/// A command in the window, with the content of its receipt.
#[derive(Debug)]
pub struct Command {
    pub packet_id: u16,
    pub topic: Box<str>,
    pub key: Box<[u8]>,
    pub idempotency_key: Option<Box<str>>,
}

/// The device that a control topic names.
#[inline]
pub fn device_of(topic: &str) -> Option<&str> {
    let device = topic.strip_prefix("devices/")?.strip_suffix("/actions")?;
    (!device.is_empty() && !device.contains('/')).then_some(device)
}

impl Command {
    fn of(packet_id: u16, record: &RecordView<'_>) -> Self {
        Self {
            packet_id,
            topic: record.topic.into(),
            key: record.key.into(),
            idempotency_key: record.idempotency_key.map(Into::into),
        }
    }
}

impl Session {
    /// Whether a topic has commands for the client of this session.
    #[inline]
    pub fn is_commanded_by(&self, topic: &str) -> bool {
        let client_id = &*self.client_id;
        device_of(topic) == Some(client_id)
            && self
                .rights
                .as_ref()
                .is_none_or(|rights| rights.speaks_as(client_id))
    }

    /// Keeps the content of the receipt, if the delivery is a command of the client.
    #[inline]
    pub fn note_command(&mut self, packet_id: u16, sent: Inflight, record: &RecordView<'_>) {
        if sent.receipt {
            self.extras.commands.push(Command::of(packet_id, record));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_actions_topic_names_a_device() {
        assert_eq!(device_of("devices/d1/actions"), Some("d1"));
        for topic in [
            "devices/d1/status",
            "devices//actions",
            "devices/a/b/actions",
            "x/devices/d/actions",
            "devices/actions",
        ] {
            assert_eq!(device_of(topic), None, "{topic}");
        }
    }
}
