//! The entry of one user: a section of the ACL file, or the claim `acl` of a token.
//!
//! Besides rules on topics it holds the user's own client ids and consumer groups, the user's tenant, and whether the
//! user may view or operate the broker.

use std::sync::Arc;

use super::rules::Rules;

/// Longest name of a client id or group in a line.
const NAME_BYTES_MAX: usize = 65_535;
/// Longest name of a tenant. It is part of the keys of what is stored for the tenant.
const TENANT_BYTES_MAX: usize = 1024;

/// A name, or a prefix of names when it ends with `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    text: Box<str>,
    is_prefix: bool,
}

impl NamePattern {
    /// # Errors
    /// What is wrong with it: empty, too long, or with invalid characters.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        check(text)?;
        let prefix = text.strip_suffix('*');
        let name = prefix.unwrap_or(text);
        if name.contains('*') {
            return Err("has a `*` that is not its last character");
        }
        Ok(Self {
            text: name.into(),
            is_prefix: prefix.is_some(),
        })
    }

    /// The single name that it matches, if it is not a prefix.
    pub fn exact(&self) -> Option<&str> {
        (!self.is_prefix).then_some(&*self.text)
    }

    /// Whether it matches every name.
    pub fn is_all(&self) -> bool {
        self.is_prefix && self.text.is_empty()
    }

    pub fn matches(&self, name: &str) -> bool {
        if self.is_prefix {
            name.starts_with(&*self.text)
        } else {
            *name == *self.text
        }
    }
}

fn check(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        Err("has no name after it")
    } else if text.len() > NAME_BYTES_MAX {
        Err("has a name longer than 65,535 bytes")
    } else if text.contains(char::is_control) {
        Err("contains a control character")
    } else {
        Ok(())
    }
}

/// The section of one user, or of clients without credentials.
#[derive(Debug, Default)]
pub struct Section {
    pub(super) rules: Rules,
    pub(super) client_ids: Vec<NamePattern>,
    groups: Vec<NamePattern>,
    tenant: Option<Arc<str>>,
    pub(super) is_operator: bool,
    pub(super) is_viewer: bool,
}

impl Section {
    /// # Errors
    /// What is wrong with the name.
    pub fn add_client_id(&mut self, text: &str) -> Result<(), &'static str> {
        self.client_ids.push(NamePattern::parse(text)?);
        Ok(())
    }

    /// # Errors
    /// What is wrong with the name.
    pub fn add_group(&mut self, text: &str) -> Result<(), &'static str> {
        self.groups.push(NamePattern::parse(text)?);
        Ok(())
    }

    /// # Errors
    /// What is wrong with the name, or that a tenant is already set.
    pub fn set_tenant(&mut self, name: &str) -> Result<(), &'static str> {
        check(name)?;
        if name.len() > TENANT_BYTES_MAX {
            return Err("has a name longer than 1,024 bytes");
        }
        if self.tenant.as_deref().is_some_and(|held| held != name) {
            return Err("names a second tenant; a user belongs to only one");
        }
        self.tenant = Some(name.into());
        Ok(())
    }

    pub fn owns_client_id(&self, client_id: &str) -> bool {
        self.client_ids.iter().any(|own| own.matches(client_id))
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own.matches(group))
    }

    /// Whether a line names the group, so that other users may not begin it. `*` alone names none.
    pub fn names_group(&self, group: &str) -> bool {
        let mut named = self.groups.iter().filter(|own| !own.is_all());
        named.any(|own| own.matches(group))
    }

    pub fn tenant(&self) -> Option<&Arc<str>> {
        self.tenant.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_the_end_stands_for_any_rest_and_nowhere_else() {
        let pattern = |text| NamePattern::parse(text).unwrap();
        assert!(pattern("pump-7").matches("pump-7"));
        assert!(!pattern("pump-7").matches("pump-77"));
        assert!(pattern("pump-*").matches("pump-") && pattern("pump-*").matches("pump-77"));
        assert!(!pattern("pump-*").matches("pum"));
        assert!(pattern("*").matches("") && pattern("*").matches("anything"));
        for text in ["", "a*b", "**", "*a", "a\u{7}"] {
            assert!(NamePattern::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_user_has_one_tenant() {
        let mut section = Section::default();
        assert!(section.set_tenant("north").is_ok() && section.set_tenant("north").is_ok());
        assert!(section.set_tenant("south").is_err());
        let mut long = Section::default();
        assert!(long.set_tenant(&"n".repeat(1025)).is_err());
        assert!(long.set_tenant(&"n".repeat(1024)).is_ok());
        assert_eq!(section.tenant().map(|name| &**name), Some("north"));
    }
}
