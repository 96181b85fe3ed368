//! Topic aliases for deliveries: the aliases of one connection, within the limit that the client allows.
//!
//! The first topics delivered get one alias each and keep it while the connection lasts.

use std::collections::HashMap;

/// Limit on the bytes of topic names remembered for one connection.
const NAMES_BYTES_MAX: usize = 16 << 10;
/// An alias takes three bytes in the packet, so an alias for a shorter name saves nothing.
const NAME_BYTES_MIN: usize = 4;

/// How a delivery states its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliasUse {
    /// Only the name.
    Plain,
    /// The name and a new alias for it.
    New(u16),
    /// Only the alias.
    Known(u16),
}

#[derive(Debug, Default)]
pub struct OutAliases {
    max: u16,
    numbers: HashMap<Box<str>, u16>,
    bytes: usize,
}

impl OutAliases {
    /// `None` for a client that accepts no aliases.
    pub fn of(max: u16) -> Option<Box<Self>> {
        let aliases = Self {
            max,
            ..Self::default()
        };
        (max > 0).then(|| Box::new(aliases))
    }

    pub fn alias_use(&self, topic: &str) -> AliasUse {
        if topic.len() < NAME_BYTES_MIN {
            return AliasUse::Plain;
        }
        if let Some(number) = self.numbers.get(topic) {
            return AliasUse::Known(*number);
        }
        let is_full = self.numbers.len() >= usize::from(self.max)
            || self.bytes + topic.len() > NAMES_BYTES_MAX;
        if is_full {
            AliasUse::Plain
        } else {
            AliasUse::New(self.numbers.len() as u16 + 1)
        }
    }

    /// The packet that introduces this alias has been queued.
    pub fn learn(&mut self, topic: &str, number: u16) {
        self.bytes += topic.len();
        self.numbers.insert(topic.into(), number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_topics_get_numbers_within_what_the_client_allows() {
        let mut aliases = OutAliases::of(2).expect("some are allowed");
        assert_eq!(
            aliases.alias_use("a/1"),
            AliasUse::Plain,
            "shorter than an alias"
        );
        assert_eq!(aliases.alias_use("plant/1"), AliasUse::New(1));
        assert_eq!(
            aliases.alias_use("plant/1"),
            AliasUse::New(1),
            "it has not left"
        );
        aliases.learn("plant/1", 1);
        assert_eq!(aliases.alias_use("plant/1"), AliasUse::Known(1));
        aliases.learn("plant/2", 2);
        assert_eq!(aliases.alias_use("plant/3"), AliasUse::Plain);
        assert!(OutAliases::of(0).is_none());
    }

    #[test]
    fn i7_long_names_do_not_grow_the_table() {
        let mut aliases = OutAliases::of(u16::MAX).expect("some are allowed");
        let mut known = 0;
        for n in 0..100 {
            let name = format!("{n}{}", "x".repeat(1000));
            if let AliasUse::New(number) = aliases.alias_use(&name) {
                aliases.learn(&name, number);
                known += 1;
            }
        }
        assert_eq!(known, 16);
    }
}
