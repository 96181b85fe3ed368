//! Parses the arguments of `headwaterd log VERB`, independent of the verb.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use headwater_log::tools::{Access, ToolError};

/// The arguments of a verb: folders, options with values, and switches.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    places: Vec<PathBuf>,
    options: BTreeMap<&'static str, Vec<String>>,
    switches: Vec<&'static str>,
}

impl Arguments {
    pub fn parse(
        given: &[String],
        options: &[&'static str],
        switches: &[&'static str],
    ) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut rest = given.iter();
        while let Some(argument) = rest.next() {
            let (name, inline) = match argument.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            if !name.starts_with("--") {
                parsed.places.push(PathBuf::from(name));
            } else if let Some(known) = options.iter().find(|known| **known == name) {
                let value = inline.or_else(|| rest.next().cloned());
                let value = value.ok_or(format!("{name} needs a value"))?;
                parsed.options.entry(known).or_default().push(value);
            } else if let Some(known) = switches.iter().find(|known| **known == argument) {
                parsed.switches.push(known);
            } else {
                return Err(format!("unknown argument `{argument}`"));
            }
        }
        Ok(parsed)
    }

    pub fn has(&self, switch: &str) -> bool {
        self.switches.contains(&switch)
    }

    pub fn all(&self, option: &str) -> Vec<String> {
        self.options.get(option).cloned().unwrap_or_default()
    }

    pub fn number(&self, option: &str) -> Result<Option<u64>, String> {
        let value = self.options.get(option).and_then(|values| values.last());
        value
            .map(|text| {
                text.parse()
                    .map_err(|_| format!("{option} needs a number, not `{text}`"))
            })
            .transpose()
    }

    pub fn places<const N: usize>(&self, what: &str) -> Result<[&Path; N], String> {
        let places: Vec<&Path> = self.places.iter().map(PathBuf::as_path).collect();
        places
            .try_into()
            .map_err(|_| format!("the arguments must be {what}"))
    }

    pub fn several(&self, count: RangeInclusive<usize>, what: &str) -> Result<Vec<&Path>, String> {
        if !count.contains(&self.places.len()) {
            return Err(format!("the arguments must be {what}"));
        }
        Ok(self.places.iter().map(PathBuf::as_path).collect())
    }

    pub fn access(&self) -> Access {
        if self.has("--online") {
            Access::Online
        } else {
            Access::Alone
        }
    }
}

/// Why a verb failed.
pub enum Exit {
    Usage(String),
    Failed(ToolError),
}

impl From<String> for Exit {
    fn from(reason: String) -> Self {
        Self::Usage(reason)
    }
}

impl From<ToolError> for Exit {
    fn from(error: ToolError) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn places_options_and_switches_come_in_any_order() {
        let given = words("--online a --filter=x --filter y");
        let parsed = Arguments::parse(&given, &["--filter"], &["--online"]).unwrap();
        assert_eq!(parsed.places::<1>("x").unwrap()[0].to_str(), Some("a"));
        assert_eq!(parsed.all("--filter"), ["x", "y"]);
        assert!(parsed.has("--online"));
        assert!(Arguments::parse(&words("--filter"), &["--filter"], &[]).is_err());
        assert!(Arguments::parse(&words("--nothing"), &[], &[]).is_err());
    }
}
