//! Tests the limits of sessions, and what is kept of a cookie.

use tonic::codegen::http::header::HOST;

use super::*;
use crate::auth::users::Fingerprint;

const NOW_US: i64 = 1_800_000_000_000_000;

fn sessions() -> Sessions {
    Sessions::new(false)
}

/// An identity of a user that [`Authority::open`] still admits: it knows no passwords, and admits whoever shows none.
fn user(name: &str) -> Identity {
    user_until(name, None)
}

fn user_until(name: &str, expires_us: Option<i64>) -> Identity {
    let mut identity = Identity::default();
    identity.user = Some(name.into());
    identity.expires_us = expires_us;
    identity
}

fn begin_at(sessions: &Sessions, identity: &Identity, now_us: i64) -> String {
    let headers = HeaderMap::new();
    sessions.begin(&headers, identity, now_us).unwrap()
}

/// The headers of a browser that keeps this cookie.
fn headers(set_cookie: &str) -> HeaderMap {
    cookies(&[set_cookie.split(';').next().unwrap()])
}

fn cookies(lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(COOKIE, line.parse().unwrap());
    }
    headers
}

fn user_at(sessions: &Sessions, set_cookie: &str, now_us: i64) -> Option<Arc<str>> {
    let named = sessions.named(&headers(set_cookie)).unwrap()?;
    let identity = sessions.authenticate(&Authority::open(), &named, now_us);
    identity.and_then(|identity| identity.user.clone())
}

fn is_open(sessions: &Sessions, set_cookie: &str) -> bool {
    user_at(sessions, set_cookie, NOW_US).is_some()
}

#[test]
fn only_the_digest_of_a_cookie_is_kept() {
    let sessions = sessions();
    let cookie = begin_at(&sessions, &user("ann"), NOW_US);
    let value = cookie.split(['=', ';']).nth(1).unwrap();
    let secret = URL_SAFE_NO_PAD.decode(value).unwrap();
    assert_eq!(secret.len(), 32);
    let kept: Vec<SessionDigest> = sessions.open.lock().by_digest.keys().copied().collect();
    assert_eq!(kept, [SessionDigest::of(&secret)]);
    assert_ne!(kept[0].0[..], secret[..]);
    // What is kept is no cookie.
    let stolen = format!("{NAME}={}", URL_SAFE_NO_PAD.encode(kept[0].0));
    assert!(!is_open(&sessions, &stolen) && is_open(&sessions, &cookie));
    let other = begin_at(&sessions, &user("ann"), NOW_US);
    assert_ne!(cookie, other);
}

#[test]
fn one_session_more_than_a_user_may_have_ends_its_oldest_and_no_other() {
    let sessions = sessions();
    let bob = begin_at(&sessions, &user("bob"), NOW_US);
    let begin = || begin_at(&sessions, &user("ann"), NOW_US);
    let of_ann: Vec<String> = (0..SESSIONS_PER_USER_MAX).map(|_| begin()).collect();
    assert!(of_ann.iter().all(|cookie| is_open(&sessions, cookie)));
    let more = begin();
    let ended: Vec<bool> = of_ann.iter().map(|one| !is_open(&sessions, one)).collect();
    assert!(ended[0] && !ended[1..].contains(&true), "{ended:?}");
    assert!(is_open(&sessions, &more) && is_open(&sessions, &bob));
}

#[test]
fn one_session_more_than_there_may_be_ends_the_oldest_of_all() {
    let sessions = sessions();
    let begin = |n: usize| {
        let name = format!("user-{}", n / SESSIONS_PER_USER_MAX);
        // A clock that is set back changes nothing about which one is the oldest.
        let at_us = NOW_US - i64::try_from(n).unwrap();
        begin_at(&sessions, &user(&name), at_us)
    };
    let all: Vec<String> = (0..SESSIONS_MAX).map(begin).collect();
    let more = begin(SESSIONS_MAX);
    assert_eq!(sessions.open.lock().by_digest.len(), SESSIONS_MAX);
    assert!(!is_open(&sessions, &all[0]) && is_open(&sessions, &all[1]));
    assert!(is_open(&sessions, &more));
}

#[test]
fn a_session_ends_after_its_time_or_with_the_token_and_leaves_its_place() {
    let sessions = sessions();
    let life_us = LIFE_S * 1_000_000;
    let ann = begin_at(&sessions, &user("ann"), NOW_US);
    let bearer = user_until("bob", Some(NOW_US + 5));
    let bob = begin_at(&sessions, &bearer, NOW_US);
    let long = user_until("eve", Some(i64::MAX));
    let eve = begin_at(&sessions, &long, NOW_US);
    assert!(user_at(&sessions, &bob, NOW_US + 4).is_some());
    assert!(user_at(&sessions, &bob, NOW_US + 5).is_none());
    // It was dropped, so a clock that is set back does not bring it back.
    assert!(user_at(&sessions, &bob, NOW_US).is_none());
    for cookie in [&ann, &eve] {
        assert!(user_at(&sessions, cookie, NOW_US + life_us - 1).is_some());
    }
    begin_at(&sessions, &user("ann"), NOW_US + life_us);
    assert_eq!(sessions.open.lock().by_digest.len(), 1, "ann's new one");
}

#[test]
fn a_session_whose_user_is_not_admitted_any_more_is_dropped() {
    let sessions = sessions();
    // No user file contains this password.
    let gone = Authority::password_identity("ann", Fingerprint(7), i64::MAX);
    let cookie = begin_at(&sessions, &gone, NOW_US);
    assert_eq!(sessions.open.lock().by_digest.len(), 1);
    assert!(!is_open(&sessions, &cookie));
    assert!(sessions.open.lock().by_digest.is_empty());
}

#[test]
fn a_cookie_is_found_among_others_and_refused_when_it_is_malformed_or_twice_there() {
    let sessions = sessions();
    let cookie = begin_at(&sessions, &user("ann"), NOW_US);
    let pair = cookie.split(';').next().unwrap();
    let named = |lines: &[&str]| sessions.named(&cookies(lines));
    let own = named(&[pair]).unwrap();
    assert!(own.is_some());
    assert_eq!(named(&[&format!("a=b; {pair};c; =;")]), Ok(own));
    assert_eq!(named(&["a=b", &format!("c=d;{pair}")]), Ok(own));
    let mut odd = cookies(&[pair]);
    let bytes = tonic::codegen::http::HeaderValue::from_bytes(b"x=\xff\xfe").unwrap();
    odd.append(COOKIE, bytes);
    assert_eq!(sessions.named(&odd), Ok(own));
    for other in [
        "",
        NAME,
        "headwater-sessions=x",
        "Headwater-Session=x",
        &format!("x{pair}"),
        &format!("__Host-{pair}"),
        &format!("x={pair}"),
    ] {
        assert_eq!(named(&[other]), Ok(None), "{other:?}");
    }
    let twice = format!("{pair}; {pair}");
    for bad in [
        &format!("{NAME}="),
        &format!("{NAME}=x"),
        &format!("{pair}A"),
        &pair[..pair.len() - 1],
        &format!("{pair}="),
        &format!("{NAME}=\"{}\"", &pair[NAME.len() + 1..]),
        &format!("{pair}; {NAME}=x"),
        &twice,
    ] {
        assert_eq!(named(&[bad]), Err(Denied::BadCredentials), "{bad:?}");
    }
    assert!(named(&[pair, pair]).is_err());
    // Both of two are ended.
    sessions.end(&cookies(&[&format!("{NAME}=x; {pair}")]));
    assert!(sessions.open.lock().by_digest.is_empty());
}

#[test]
fn the_flags_of_a_cookie_follow_the_listener() {
    let ends = "; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200";
    let cookie = begin_at(&sessions(), &user("ann"), NOW_US);
    assert!(cookie.starts_with("headwater-session=") && cookie.ends_with(ends));
    let with_tls = Sessions::new(true);
    let cookie = begin_at(&with_tls, &user("ann"), NOW_US);
    assert!(cookie.starts_with("__Host-headwater-session="), "{cookie}");
    assert!(cookie.ends_with(&format!("{ends}; Secure")), "{cookie}");
    assert!(with_tls.named(&headers(&cookie)).unwrap().is_some());
    assert!(sessions().named(&headers(&cookie)).unwrap().is_none());
    let forgotten = with_tls.forget_cookie(&HeaderMap::new());
    assert!(forgotten.starts_with("__Host-headwater-session=; "));
    assert!(forgotten.ends_with("Max-Age=0; Secure"));
}

#[test]
fn the_name_of_a_cookie_has_the_port_that_the_browser_has_called() {
    for (host, port) in [
        ("localhost", ""),
        ("[::1]", ""),
        ("localhost:8080", "-8080"),
        ("[::1]:8080", "-8080"),
        // The guard refuses such a request.
        ("localhost:8080; a=b", ""),
    ] {
        for (is_tls, name) in [(false, NAME), (true, NAME_WITH_TLS)] {
            let name = format!("{name}{port}");
            let sessions = Sessions::new(is_tls);
            let mut at = HeaderMap::new();
            at.insert(HOST, host.parse().unwrap());
            let cookie = sessions.begin(&at, &user("ann"), NOW_US).unwrap();
            assert!(cookie.starts_with(&format!("{name}=")), "{cookie}");
            let forgotten = sessions.forget_cookie(&at);
            assert!(forgotten.starts_with(&format!("{name}=; ")), "{forgotten}");
            at.insert(COOKIE, cookie.split(';').next().unwrap().parse().unwrap());
            assert!(sessions.named(&at).unwrap().is_some(), "{host}");
            at.insert(HOST, "localhost:9".parse().unwrap());
            assert_eq!(sessions.named(&at), Ok(None), "{host}");
        }
    }
}
