//! The user name in a client certificate. The TLS handshake has already validated the certificate.

use super::users::check_name;
use crate::config::{CertificateSettings, CertificateUser};
use crate::peer::CertificateNames;

/// The user named by a certificate, if the settings derive users from certificates. A name that the password file could
/// not hold is ignored.
pub fn user_of<'a>(settings: &CertificateSettings, names: &'a CertificateNames) -> Option<&'a str> {
    let name = match settings.user {
        CertificateUser::Ignored => None,
        CertificateUser::CommonName => names.common_name.as_deref(),
        CertificateUser::AlternativeName => names.alternative_names.first().map(String::as_str),
    };
    // A URI has a colon. Only the password file's syntax forbids it.
    name.filter(|name| check_name(&name.replace(':', "")).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_name_counts_and_no_other() {
        let names = CertificateNames {
            common_name: Some("pump-7".into()),
            alternative_names: vec!["urn:pump:7".into(), "pump-7.local".into()],
            ..CertificateNames::default()
        };
        let user = |user, names: &CertificateNames| {
            let settings = CertificateSettings {
                user,
                bind_client_id: false,
            };
            user_of(&settings, names).map(str::to_owned)
        };
        assert_eq!(user(CertificateUser::Ignored, &names), None);
        assert_eq!(
            user(CertificateUser::CommonName, &names).as_deref(),
            Some("pump-7")
        );
        assert_eq!(
            user(CertificateUser::AlternativeName, &names).as_deref(),
            Some("urn:pump:7")
        );
        for bad in ["", "a\0b", " a", "a\nb"] {
            let names = CertificateNames {
                common_name: Some(bad.into()),
                alternative_names: Vec::new(),
                ..CertificateNames::default()
            };
            assert_eq!(user(CertificateUser::CommonName, &names), None, "{bad:?}");
        }
    }
}
