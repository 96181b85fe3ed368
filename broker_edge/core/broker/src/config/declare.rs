//! How a setting is declared: once, as a documented field of a [`settings!`] struct.
//!
//! The declaration gives name, type, default, permitted values and meaning. The typed struct, its default, the limits,
//! the old names, the JSON schema, `conf/broker.yaml` and the reference for the docs derive from it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::units::{Age, Bind, Binds, ByteSize};

/// One setting as declared, without its place in the tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// Whether it may be left without a value.
    pub optional: bool,
    pub effect: Effect,
    /// Names that are accepted for one more release.
    pub renamed_from: &'static [&'static str],
    /// Why the setting has no effect any more. It is accepted for one more release.
    pub retired: Option<&'static str>,
    /// The doc comment, line by line.
    pub(super) meaning: &'static [&'static str],
}

/// What stands in a section, in the order of the declaration.
#[derive(Clone, Copy, Debug)]
pub enum Member {
    Key(Key),
    Section {
        name: &'static str,
        /// The doc comment, line by line; none where the name says enough.
        about: &'static [&'static str],
        members: &'static [Member],
    },
}

impl Member {
    /// Whether a file may call it `name`: by its present name or by an old one.
    pub(super) fn answers_to(&self, name: &str) -> bool {
        match self {
            Member::Key(key) => key.name == name || key.renamed_from.contains(&name),
            Member::Section { name: own, .. } => *own == name,
        }
    }

    /// Its present name, unless it has no effect any more.
    pub(super) fn name_in_use(&self) -> Option<&'static str> {
        match self {
            Member::Key(key) => key.retired.is_none().then_some(key.name),
            Member::Section { name, .. } => Some(name),
        }
    }
}

/// A struct of settings.
pub trait Section {
    const MEMBERS: &'static [Member];
}

/// When a new value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::enum_variant_names,
    reason = "a declaration reads as a sentence: takes effect at the start"
)]
pub enum Effect {
    /// At the next start of the broker.
    AtStart,
    /// The setting at the next start; the content of the file that it names also at a reload.
    AtReload,
    /// Only when a log is created.
    AtCreation,
}

/// The values that a setting may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Folder,
    File,
    Text,
    Address,
    /// No address, one, or a list of them.
    Addresses,
    Bool,
    Whole {
        min: u64,
        max: u64,
    },
    Bytes {
        min: ByteSize,
        max: ByteSize,
    },
    Age {
        min: Age,
        max: Age,
    },
    Choice(&'static [Choice]),
    LogId,
    /// MQTT topic filters.
    Filters,
    /// Names of users.
    Names,
    /// A topic filter with one level in braces.
    Template,
    /// Host names without a port.
    Hosts,
    /// Origins of web pages: scheme, host, and the port if it is not the usual one.
    Origins,
}

/// One permitted value of a [`Kind::Choice`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub name: &'static str,
    pub(super) meaning: &'static [&'static str],
}

impl Key {
    pub fn meaning(&self) -> String {
        joined(self.meaning)
    }
}

impl Choice {
    pub fn meaning(&self) -> String {
        joined(self.meaning)
    }
}

/// The lines of a doc comment as one line.
pub(super) fn joined(lines: &[&str]) -> String {
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    words.collect::<Vec<_>>().join(" ")
}

/// A type that a setting may have, and the kind that this alone says.
pub trait Value {
    const KIND: Kind;
    const OPTIONAL: bool = false;
}

impl<T: Value> Value for Option<T> {
    const KIND: Kind = T::KIND;
    const OPTIONAL: bool = true;
}

macro_rules! kinds {
    ($($Type:ty => $kind:expr),+ $(,)?) => {
        $(impl Value for $Type {
            const KIND: Kind = $kind;
        })+
    };
}
kinds! {
    bool => Kind::Bool,
    u8 => whole(0, u8::MAX as u64),
    u16 => whole(0, u16::MAX as u64),
    u32 => whole(0, u32::MAX as u64),
    ByteSize => bytes(ByteSize(0), ByteSize(u64::MAX)),
    Age => age(ms(0), days(36_500)),
    Bind => Kind::Address,
    Binds => Kind::Addresses,
    PathBuf => Kind::File,
    String => Kind::Text,
    Vec<String> => Kind::Names,
}

// The words of a declaration.

pub(super) const fn whole(min: u64, max: u64) -> Kind {
    Kind::Whole { min, max }
}
pub(super) const fn bytes(min: ByteSize, max: ByteSize) -> Kind {
    Kind::Bytes { min, max }
}
pub(super) const fn age(min: Age, max: Age) -> Kind {
    Kind::Age { min, max }
}
pub(super) const fn kib(count: u64) -> ByteSize {
    ByteSize::kib(count)
}
pub(super) const fn mib(count: u64) -> ByteSize {
    ByteSize(count << 20)
}
pub(super) const fn gib(count: u64) -> ByteSize {
    ByteSize(count << 30)
}
pub(super) const fn ms(count: u64) -> Age {
    Age(Duration::from_millis(count))
}
pub(super) const fn secs(count: u64) -> Age {
    Age::from_secs(count)
}
pub(super) const fn days(count: u64) -> Age {
    Age::from_secs(count * 86_400)
}

/// A section whose keys are all commented out is null in YAML and means its defaults.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Declares a struct of settings: first its keys, then its sections.
///
/// A key is `name: Type = default, kind;`. Without a kind the type says it. Between the doc comment, which is the
/// meaning that people read, and the name may stand, in this order:
///
/// - `#[renamed_from = "old"]`: the old name works, with a line that says the new one;
/// - `#[retired = "reason"]`: the setting (an `Option`, `None`) is accepted and has no effect;
/// - `#[effect = AtReload]` or `AtCreation`.
///
/// A section is `name: Struct;`, with `= value` where its defaults are not those of the struct.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        pub struct $Name:ident {
            $(
                $(#[doc = $meaning:literal])+
                $(#[renamed_from = $old:tt])*
                $(#[retired = $why:literal])?
                $(#[effect = $effect:ident])?
                $key:ident: $Type:ty = $default:expr $(, $kind:expr)?;
            )*
        }
        $(sections {
            $(
                $(#[doc = $room:literal])*
                $section:ident: $Section:ty $(= $filled:expr)?;
            )+
        })?
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $Name {
            $(
                $(#[doc = $meaning])+
                $(#[serde(alias = $old)])*
                $(#[doc = $why] #[serde(skip_serializing_if = "Option::is_none")])?
                pub $key: $Type,
            )*
            $($(
                $(#[doc = $room])*
                #[serde(deserialize_with = "crate::config::declare::or_default")]
                pub $section: $Section,
            )+)?
        }

        impl Default for $Name {
            fn default() -> Self {
                Self {
                    $($key: $default,)*
                    $($($section: $crate::config::declare::default_or!(
                        <$Section>::default() $(, $filled)?
                    ),)+)?
                }
            }
        }

        impl $crate::config::declare::Section for $Name {
            const MEMBERS: &'static [$crate::config::declare::Member] = &[
                $($crate::config::declare::Member::Key($crate::config::declare::Key {
                    name: stringify!($key),
                    kind: $crate::config::declare::default_or!(
                        <$Type as $crate::config::declare::Value>::KIND $(, $kind)?
                    ),
                    optional: <$Type as $crate::config::declare::Value>::OPTIONAL,
                    effect: $crate::config::declare::default_or!(
                        $crate::config::declare::Effect::AtStart
                        $(, $crate::config::declare::Effect::$effect)?
                    ),
                    renamed_from: &[$($old),*],
                    retired: $crate::config::declare::default_or!(None $(, Some($why))?),
                    meaning: &[$($meaning),+],
                }),)*
                $($($crate::config::declare::Member::Section {
                    name: stringify!($section),
                    about: &[$($room),*],
                    members: <$Section as $crate::config::declare::Section>::MEMBERS,
                },)+)?
            ];
        }
    };
}

/// The second expression where there is one, else the first.
macro_rules! default_or {
    ($default:expr) => {
        $default
    };
    ($default:expr, $given:expr) => {
        $given
    };
}

/// Declares an enum whose values are written as names, each with its meaning.
macro_rules! choice {
    (
        $(#[doc = $about:literal])*
        pub enum $Name:ident {
            $(
                $(#[doc = $meaning:literal])+
                $Variant:ident = $name:tt,
            )+
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $Name {
            $(
                $(#[doc = $meaning])+
                #[serde(rename = $name)]
                $Variant,
            )+
        }

        impl $crate::config::declare::Value for $Name {
            const KIND: $crate::config::declare::Kind = $crate::config::declare::Kind::Choice(&[
                $($crate::config::declare::Choice {
                    name: $name,
                    meaning: &[$($meaning),+],
                }),+
            ]);
        }
    };
}

pub(super) use {choice, default_or, settings};
