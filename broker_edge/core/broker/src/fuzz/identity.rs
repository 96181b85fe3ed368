//! Who somebody is and what they may do: users, rights, tokens with their keys, certificates with their revocations.

use std::sync::OnceLock;

use super::check_sentence;
use crate::auth::Access;
use crate::auth::acl::{Acl, Target};
use crate::auth::rules::{ClientId, Names};
use crate::auth::token::{Tokens, section_of};
use crate::auth::users::Users;
use crate::config::TokenSettings;
use crate::transport::certificates::names_of;
use crate::transport::revocations;

const ACCESSES: [Access; 3] = [Access::Publish, Access::Subscribe, Access::Replay];

fn check_line(refused: Result<(), (usize, String)>, text: &str) {
    if let Err((line, sentence)) = refused {
        assert!((1..=text.lines().count()).contains(&line), "line {line}");
        check_sentence(&sentence, 1024 + 2 * text.len());
    }
}

pub fn users(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        check_line(Users::parse(text).map(drop), text);
    }
}

pub fn acl(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let acl = match Acl::parse(text) {
        Ok(acl) => acl,
        Err(refused) => return check_line(Err(refused), text),
    };
    assert!(
        acl.client_id_rules()
            .all(|line| line <= text.lines().count())
    );
    for user in [None, Some("pump"), Some("a")] {
        let section = acl.section(user);
        for client_id in [
            ClientId::Absent,
            ClientId::Unproved,
            ClientId::Proved("pump"),
            ClientId::Any,
        ] {
            let names = Names { user, client_id };
            for access in ACCESSES {
                let mut allowed = false;
                for topic in ["a", "a/b", "devices/pump/status", "$SYS/x", ""] {
                    let on_topic = acl.allows(&section, access, Target::Topic(topic), &names);
                    allowed |= on_topic;
                    assert!(!on_topic || acl.might_allow(&section, access, topic, &names));
                }
                for filter in ["a/+", "#", "devices/+/status", "$SYS/#"] {
                    allowed |= acl.allows(&section, access, Target::Filter(filter), &names);
                }
                assert!(!allowed || acl.allows_some(&section, access));
            }
        }
    }
    acl.has_owner("pump");
}

pub fn token_keys(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input)
        && let Err(sentence) = Tokens::parse(text, &TokenSettings::default())
    {
        check_sentence(&sentence, 1024 + 2 * text.len());
    }
}

/// The public key of RFC 8037, A.2.
const KEYS: &str = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "one", "use": "sig",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// Nobody has the private key, so no token is accepted. The claims are read as if one were.
pub fn token(input: &[u8]) {
    static TOKENS: OnceLock<Tokens> = OnceLock::new();
    let tokens =
        TOKENS.get_or_init(|| Tokens::parse(KEYS, &TokenSettings::default()).expect("good keys"));
    Tokens::is_token(input);
    assert!(
        tokens.authenticate(input).is_err(),
        "a forged token is accepted"
    );
    if let Ok(claim) = serde_json::from_slice(input) {
        section_of(&claim);
    }
}

pub fn certificate(input: &[u8]) {
    let names = names_of(&[input.to_vec().into()], None);
    if let Some(names) = names {
        let bytes: usize = names.alternative_names.iter().map(String::len).sum();
        assert!(bytes <= input.len());
    }
    match revocations::read("mqtt", &[input.to_vec().into()]) {
        Ok(revoked) => assert!(revoked.len() <= input.len()),
        Err(sentence) => check_sentence(&sentence, 1024),
    }
}
