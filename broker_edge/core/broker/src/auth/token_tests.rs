//! Valid and invalid tokens for each type of key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::super::rules::ClientId;
use super::*;
use crate::auth::Access;
use crate::auth::rules::{Names, Verdict};
use crate::config::units::Age;

/// Signed once with OpenSSL; `sub` is `pump-7`, `exp` is in 2100. ring signs with RSA keys but cannot generate them.
const RSA_TOKEN: &str = concat!(
    "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJwdW1wLTciLCJleHAiOjQxMDI0NDQ4MDB9.PYB1VrWx9b_DWP",
    "Wv3tFSNd3ebmAemg1liKGF7OH7ytaiha4B6XrFiMXraIQnWuUwECae6J9yWNwDWDrc4HGmoUZCuxLuHT07OlyuiNValiXeaV",
    "LOiYIPNZoh8RXwpIt9hDH1hIJnRbW8p2qKjkkE3HZwNWHbIm-XtOhwl2YVt83yu0TG-8ZDoWrNXhcB91YnlkWkxzWFQJ8iRc",
    "VGT2a9WCPYGD7VGS0WWSmu82k61z7hXasq07Uk3DovZBfuBcRoqNMoMSZCpxuu4pUC9NB7LnQv7IeN7yotbmHONijJz8YllE",
    "pIRYKn_pGJg8pmWa9sZZw62tVWbRrX5kCPv0c6LQ",
);
const RSA_MODULUS: &str = concat!(
    "54KFClPSF79vwWMjcGSUfU1IWkzSjO7_69RE9gf_o2v5LZ7zl2UIUy_xhi9r9MZcoVJsVf0rPdKiVfz8pN4L5IW-o8KskPL6",
    "rRsu4Gi4aTvHQ-ktQafTusQ8D2JCD2T93ivfKOe9Vx4icj78a7rEywlBOS8P3qCkAfGRt7aQK1nBHA-FcqEHsC9m_qdKf7_H",
    "SIP2CjeKyCTxFg3-ontfJDRNsFbQPoB2BmZ9Cr1HTPDV6Gn9kreJrrxEqNvKeH6iIdJJnpUQpKeKt0RRpf8qpQyWa5iqglCB",
    "ojkNSPRKs4oz5RR7MpAsbzNg1gDftwzTkOW0Wd-XCcEPbXQfb5kPTQ",
);
const RSA_PEM: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA54KFClPSF79vwWMjcGSU
fU1IWkzSjO7/69RE9gf/o2v5LZ7zl2UIUy/xhi9r9MZcoVJsVf0rPdKiVfz8pN4L
5IW+o8KskPL6rRsu4Gi4aTvHQ+ktQafTusQ8D2JCD2T93ivfKOe9Vx4icj78a7rE
ywlBOS8P3qCkAfGRt7aQK1nBHA+FcqEHsC9m/qdKf7/HSIP2CjeKyCTxFg3+ontf
JDRNsFbQPoB2BmZ9Cr1HTPDV6Gn9kreJrrxEqNvKeH6iIdJJnpUQpKeKt0RRpf8q
pQyWa5iqglCBojkNSPRKs4oz5RR7MpAsbzNg1gDftwzTkOW0Wd+XCcEPbXQfb5kP
TQIDAQAB
-----END PUBLIC KEY-----
";

/// The year 2100 in Unix seconds.
const FAR_S: u64 = 4_102_444_800;

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

struct Issuer {
    key: Ed25519KeyPair,
}

impl Issuer {
    fn new(seed: u8) -> Self {
        let key = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        Self { key }
    }

    fn jwk(&self, id: Option<&str>) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.key.public_key());
        let mut jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": x});
        if let Some(id) = id {
            jwk["kid"] = json!(id);
        }
        jwk
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(header), part(claims));
        let tag = URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes()));
        format!("{signed}.{tag}")
    }

    fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "EdDSA"}), claims)
    }
}

fn load(text: &str, settings: &TokenSettings) -> Result<Tokens, FileError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, text).unwrap();
    Tokens::load(&file, settings)
}

fn tokens(keys: &[Value], settings: &TokenSettings) -> Tokens {
    load(&json!({"keys": keys}).to_string(), settings).unwrap()
}

fn user(tokens: &Tokens, token: &str) -> Result<String, Denied> {
    tokens
        .authenticate(token.as_bytes())
        .map(|identity| identity.user.unwrap_or_default().to_string())
}

#[test]
fn a_token_of_a_known_key_names_its_bearer_and_says_how_long() {
    let issuer = Issuer::new(1);
    let tokens = tokens(&[issuer.jwk(None)], &TokenSettings::default());
    let token = issuer.token(&json!({"sub": "ann", "exp": FAR_S}));
    assert!(Tokens::is_token(token.as_bytes()) && !Tokens::is_token(b"secret.with.dots"));
    let identity = tokens.authenticate(token.as_bytes()).unwrap();
    assert_eq!(identity.user.as_deref(), Some("ann"));
    assert_eq!(
        identity.expires_us,
        Some(i64::try_from(FAR_S * 1_000_000).unwrap())
    );
    assert!(identity.is_expired(i64::MAX) && !identity.is_expired(0));
    // The time may have a fraction.
    let token = issuer.token(&json!({"sub": "ann", "exp": 4_102_444_800.5}));
    assert_eq!(user(&tokens, &token), Ok("ann".to_owned()));
}

#[test]
fn rs256_and_es256_are_checked_too_from_jwks_and_pem() {
    let settings = TokenSettings::default();
    let jwk = json!({"kty": "RSA", "n": RSA_MODULUS, "e": "AQAB"});
    assert_eq!(
        user(&tokens(&[jwk], &settings), RSA_TOKEN),
        Ok("pump-7".to_owned())
    );
    let pem = load(RSA_PEM, &settings).unwrap();
    assert_eq!(user(&pem, RSA_TOKEN), Ok("pump-7".to_owned()));

    let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
    let point = key.public_key().as_ref();
    let (x, y) = (
        URL_SAFE_NO_PAD.encode(&point[1..33]),
        URL_SAFE_NO_PAD.encode(&point[33..]),
    );
    let ec = json!({"kty": "EC", "crv": "P-256", "x": x, "y": y});
    let claims = json!({"sub": "ec", "exp": FAR_S});
    let signed = format!("{}.{}", part(&json!({"alg": "ES256"})), part(&claims));
    let tag = key.sign(&random, signed.as_bytes()).unwrap();
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag));
    assert_eq!(user(&tokens(&[ec], &settings), &token), Ok("ec".to_owned()));
    assert_eq!(user(&pem, &token), Err(Denied::BadToken));
}

#[test]
fn what_is_expired_unsigned_changed_or_for_others_lets_nobody_in() {
    let (issuer, other) = (Issuer::new(1), Issuer::new(2));
    let settings = TokenSettings {
        audience: Some("headwater".into()),
        issuer: Some("login".into()),
        leeway: Age::from_secs(5),
        ..TokenSettings::default()
    };
    let tokens = tokens(&[issuer.jwk(None)], &settings);
    let good = json!({"sub": "ann", "exp": FAR_S, "aud": ["x", "headwater"], "iss": "login"});
    assert_eq!(user(&tokens, &issuer.token(&good)), Ok("ann".to_owned()));
    let changed = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        user(&tokens, &issuer.token(&claims))
    };
    assert_eq!(changed("exp", json!(1_000)), Err(Denied::ExpiredToken));
    for (name, value) in [
        ("exp", json!(null)),
        ("exp", json!("soon")),
        ("nbf", json!(FAR_S - 10)),
        ("aud", json!("others")),
        ("aud", json!(null)),
        ("iss", json!("elsewhere")),
        ("sub", json!("")),
        ("sub", json!(7)),
        ("sub", json!("a\u{0}b")),
        ("sub", json!("x".repeat(2_000))),
        ("acl", json!({"publish": ["a/#/b"]})),
        ("acl", json!({"pubish": []})),
    ] {
        assert_eq!(
            changed(name, value.clone()),
            Err(Denied::BadToken),
            "{name} {value}"
        );
    }
    assert_eq!(user(&tokens, &other.token(&good)), Err(Denied::BadToken));
    let unsigned = format!("{}.{}.", part(&json!({"alg": "none"})), part(&good));
    assert_eq!(user(&tokens, &unsigned), Err(Denied::BadToken));
    // A public key must not be accepted as an HMAC secret.
    for alg in ["HS256", "RS256", "ES256"] {
        let confused = issuer.sign(&json!({"alg": alg}), &good);
        assert_eq!(user(&tokens, &confused), Err(Denied::BadToken), "{alg}");
    }
    let token = issuer.token(&good);
    let (head, tail) = token.split_at(token.len() / 2);
    let flipped = format!(
        "{head}{}{}",
        if tail.starts_with('A') { 'B' } else { 'A' },
        &tail[1..]
    );
    assert_eq!(user(&tokens, &flipped), Err(Denied::BadToken));
}

#[test]
fn a_key_with_an_id_is_for_tokens_that_name_it() {
    let (one, two) = (Issuer::new(1), Issuer::new(2));
    let keys = [one.jwk(Some("one")), two.jwk(Some("two"))];
    let tokens = tokens(&keys, &TokenSettings::default());
    let claims = json!({"sub": "ann", "exp": FAR_S});
    let named = |issuer: &Issuer, id: &str| {
        user(
            &tokens,
            &issuer.sign(&json!({"alg": "EdDSA", "kid": id}), &claims),
        )
    };
    assert!(named(&one, "one").is_ok() && named(&two, "two").is_ok());
    assert!(named(&one, "two").is_err() && named(&one, "three").is_err());
}

#[test]
fn lists_of_filters_in_a_token_are_its_rights() {
    let issuer = Issuer::new(1);
    let tokens = tokens(&[issuer.jwk(None)], &TokenSettings::default());
    let acl = json!({"publish": ["devices/%c/#"], "subscribe": ["news/#"], "replay": []});
    let token = issuer.token(&json!({"sub": "ann", "exp": FAR_S, "acl": acl}));
    let section = tokens
        .authenticate(token.as_bytes())
        .unwrap()
        .own_section
        .unwrap();
    let rules = &section.rules;
    let names = Names {
        user: Some("ann"),
        client_id: ClientId::Proved("pump-7"),
    };
    let on = |access, topic| rules.on_topic(access, topic, &names) == Verdict::Allowed;
    assert!(on(Access::Publish, "devices/pump-7/x") && on(Access::Receive, "news/x"));
    assert!(!on(Access::Publish, "devices/pump-8/x") && !on(Access::Replay, "news/x"));
}

#[test]
fn a_token_says_what_is_its_bearers_own_in_the_words_of_the_file() {
    let issuer = Issuer::new(1);
    let tokens = tokens(&[issuer.jwk(None)], &TokenSettings::default());
    let section_of = |acl: serde_json::Value| {
        let token = issuer.token(&json!({"sub": "ann", "exp": FAR_S, "acl": acl}));
        tokens
            .authenticate(token.as_bytes())
            .map(|ann| ann.own_section)
    };
    let acl =
        json!({"client-id": ["pump-*"], "group": ["bronze"], "tenant": "north", "viewer": true});
    let section = section_of(acl).unwrap().unwrap();
    assert!(section.owns_client_id("pump-7") && section.has_group("bronze"));
    assert!(section.is_viewer && !section.is_operator);
    assert_eq!(section.tenant().map(|name| &**name), Some("north"));
    for bad in [
        json!({"operator": true}),
        json!({"client-id": "pump-7"}),
        json!({"client-id": [""]}),
        json!({"group": vec!["g"; FILTERS_MAX + 1]}),
        json!({"tenant": ""}),
    ] {
        assert!(section_of(bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn files_without_a_usable_public_key_are_refused() {
    let settings = TokenSettings::default();
    let secret = json!({"kty": "oct", "k": "c2VjcmV0"});
    let short = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"});
    for text in [
        "{}".to_owned(),
        json!({"keys": []}).to_string(),
        json!({"keys": [secret]}).to_string(),
        json!({"keys": [short]}).to_string(),
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".to_owned(),
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n".to_owned(),
        "-----BEGIN PUBLIC KEY-----\nAAAA".to_owned(),
    ] {
        assert!(load(&text, &settings).is_err(), "{text}");
    }
}

#[test]
fn a_key_for_encryption_proves_no_signature() {
    let (signs, encrypts) = (Issuer::new(1), Issuer::new(2));
    let mut for_encryption = encrypts.jwk(None);
    for_encryption["use"] = json!("enc");
    let mut for_other_operations = encrypts.jwk(Some("other"));
    for_other_operations["key_ops"] = json!(["deriveKey"]);
    let mut for_signatures = signs.jwk(None);
    for_signatures["use"] = json!("sig");
    for_signatures["key_ops"] = json!(["verify"]);
    let keys = [for_signatures, for_encryption.clone(), for_other_operations];
    let tokens = tokens(&keys, &TokenSettings::default());
    let claims = json!({"sub": "ann", "exp": FAR_S});
    assert_eq!(user(&tokens, &signs.token(&claims)), Ok("ann".to_owned()));
    let header = json!({"alg": "EdDSA", "kid": "other"});
    for token in [encrypts.token(&claims), encrypts.sign(&header, &claims)] {
        assert_eq!(user(&tokens, &token), Err(Denied::BadToken));
    }
    let alone = load(
        &json!({"keys": [for_encryption]}).to_string(),
        &TokenSettings::default(),
    );
    assert!(alone.is_err(), "a file without a usable key is refused");
}

#[test]
fn a_token_that_names_critical_extensions_is_refused() {
    let issuer = Issuer::new(1);
    let tokens = tokens(&[issuer.jwk(None)], &TokenSettings::default());
    let claims = json!({"sub": "ann", "exp": FAR_S});
    for crit in [json!(["exp"]), json!(["urn:example:x"]), json!([])] {
        let token = issuer.sign(&json!({"alg": "EdDSA", "crit": crit}), &claims);
        assert_eq!(user(&tokens, &token), Err(Denied::BadToken));
    }
    let token = issuer.sign(&json!({"alg": "EdDSA"}), &claims);
    assert_eq!(user(&tokens, &token), Ok("ann".to_owned()));
}
