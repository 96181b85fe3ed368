//! Settings of authentication: the files, and what counts as proof.

use std::path::PathBuf;

use super::declare::{age, choice, days, ms, secs, settings, whole};
use super::units::Age;

settings! {
    pub struct AuthSettings {
        /// Whether clients without credentials are let in. Without any other way to authenticate, a listener beyond
        /// loopback needs this.
        allow_anonymous: bool = false;
        /// Users and their passwords, as `headwater users add` writes them. Mosquitto's files are read too.
        #[effect = AtReload]
        password_file: Option<PathBuf> = None;
        /// Rights of users, in Mosquitto's syntax. What the file does not allow is denied. Without a file every client
        /// that is let in may use every topic.
        #[effect = AtReload]
        acl_file: Option<PathBuf> = None;
        /// Users who are operators, in addition to those that the ACL file names. An operator may remove groups, take
        /// backups, reload files and use all of `/api/v1`.
        operators: Vec<String> = Vec::new();
        /// Client ids that an ACL rule with `%c` accepts.
        client_ids: ClientIds = ClientIds::Auto;
        /// Threads that check passwords and tokens. Each needs 19 MiB while it checks a password.
        threads: u16 = 2, whole(1, 64);
        /// Clients that wait for their check. A further client is refused: reason code 0x89 for MQTT 5, return code 3 for
        /// older clients.
        max_waiting: u32 = 4096, whole(1, 1_000_000);
        /// Whether `/metrics` needs no credentials.
        open_metrics: bool = false;
    }
    sections {
        /// Tokens (JWT) as passwords.
        token: TokenSettings;
        /// Client certificates that a TLS listener has verified.
        certificate: CertificateSettings;
    }
}

choice! {
    /// Client ids that an ACL rule with `%c` accepts.
    pub enum ClientIds {
        /// of a user with a name, only the user's name, the ids of its `client-id` lines, and the ids in its certificate
        Auto = "auto",
        /// every client id that a client names
        Any = "any",
    }
}

impl Default for ClientIds {
    fn default() -> Self {
        AuthSettings::default().client_ids
    }
}

settings! {
    /// Tokens (JWT) as passwords.
    pub struct TokenSettings {
        /// Public keys of the token issuers: a JWKS or PEM file. Without it tokens are refused.
        #[effect = AtReload]
        keys_file: Option<PathBuf> = None;
        /// Required value of the claim `iss`.
        issuer: Option<String> = None;
        /// Required value of the claim `aud`, alone or in its list.
        audience: Option<String> = None;
        /// Claim with the name of the user.
        user_claim: String = "sub".to_owned();
        /// Permitted difference between the clocks of broker and issuer.
        leeway: Age = secs(0), age(ms(0), days(1));
    }
}

settings! {
    /// Client certificates that a TLS listener has verified.
    pub struct CertificateSettings {
        /// Field of a client certificate that names the user. A client with such a certificate needs no password.
        user: CertificateUser = CertificateUser::Ignored;
        /// Whether the client id must be the user that the certificate names.
        bind_client_id: bool = false;
    }
}

choice! {
    /// The field of a certificate that names the user.
    pub enum CertificateUser {
        /// a certificate does not authenticate anybody
        Ignored = "ignored",
        /// the common name of the subject
        CommonName = "common_name",
        /// the first subject alternative name
        AlternativeName = "alternative_name",
    }
}

impl AuthSettings {
    /// Whether there is any way for a client to authenticate.
    pub fn is_configured(&self) -> bool {
        self.password_file.is_some()
            || self.token.keys_file.is_some()
            || self.certificate.user != CertificateUser::Ignored
    }
}
