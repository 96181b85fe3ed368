//! Settings of who is let in: the files, and what counts as proof.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::or_default;
use super::units::Age;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSettings {
    pub allow_anonymous: bool,
    pub password_file: Option<PathBuf>,
    /// `None`: who was let in may use every topic.
    pub acl_file: Option<PathBuf>,
    /// Users who are operators whatever the ACL says.
    pub operators: Vec<String>,
    pub client_ids: ClientIds,
    /// Threads that check passwords and tokens.
    pub threads: u16,
    /// Clients that wait for one of them.
    pub max_waiting: u32,
    /// `/metrics` needs no credentials.
    pub open_metrics: bool,
    #[serde(deserialize_with = "or_default")]
    pub token: TokenSettings,
    #[serde(deserialize_with = "or_default")]
    pub certificate: CertificateSettings,
}

/// Which client ids a rule with `%c` believes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientIds {
    /// Of a user with a name, those that are shown to be the user's own.
    #[default]
    Auto,
    /// Whatever a client calls itself.
    Any,
}

/// Tokens (JWT) as passwords.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenSettings {
    /// A JWKS or PEM file; without it tokens are refused.
    pub keys_file: Option<PathBuf>,
    /// What `iss` must be.
    pub issuer: Option<String>,
    /// What `aud` must be or contain.
    pub audience: Option<String>,
    /// The claim with the user's name.
    pub user_claim: String,
    /// How far clocks may be apart.
    pub leeway: Age,
}

/// Certificates that a TLS listener has verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CertificateSettings {
    pub user: CertificateUser,
    /// The client id must be the user's name.
    pub bind_client_id: bool,
}

/// Where in a certificate the user's name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateUser {
    /// A certificate does not let anybody in.
    Ignored,
    CommonName,
    /// The first subject alternative name.
    AlternativeName,
}

impl AuthSettings {
    /// Whether there is any way to prove who one is.
    pub fn is_configured(&self) -> bool {
        self.password_file.is_some()
            || self.token.keys_file.is_some()
            || self.certificate.user != CertificateUser::Ignored
    }
}

impl Default for AuthSettings {
    fn default() -> Self {
        Self {
            allow_anonymous: false,
            password_file: None,
            acl_file: None,
            operators: Vec::new(),
            client_ids: ClientIds::Auto,
            threads: 2,
            max_waiting: 4096,
            open_metrics: false,
            token: TokenSettings::default(),
            certificate: CertificateSettings::default(),
        }
    }
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self {
            keys_file: None,
            issuer: None,
            audience: None,
            user_claim: "sub".to_owned(),
            leeway: Age::from_secs(0),
        }
    }
}

impl Default for CertificateSettings {
    fn default() -> Self {
        Self {
            user: CertificateUser::Ignored,
            bind_client_id: false,
        }
    }
}
