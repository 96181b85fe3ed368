//! Tests which answers wait for the timer, without a look at the clock.

use super::*;
use crate::auth::users::{generate, new_lines};

/// The verdict of a check of these credentials, if they need one.
fn verdict_of(authority: &Arc<Authority>, user: &str, password: &str) -> Option<Verdict> {
    let shown = Credentials {
        user: Some(user),
        password: Some(password.as_bytes()),
        certificate: None,
    };
    match authority.admit(&shown) {
        Admission::Check(check) => Some(check.run()),
        Admission::In(_) | Admission::Out(_) => None,
    }
}

#[test]
fn every_refused_password_waits_for_the_timer_and_no_right_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    let slow = new_lines("slow", "a long password", false).unwrap();
    let (password, generated) = generate("generated").unwrap();
    std::fs::write(&file, slow + &generated).unwrap();
    let settings = AuthSettings {
        password_file: Some(file),
        ..AuthSettings::default()
    };
    let authority = Arc::new(Authority::load(&settings, true).unwrap());
    // Nobody and no-one get decoys of either kind.
    let names = ["slow", "generated", "nobody", "no-one", ""];
    for user in names {
        let verdict = verdict_of(&authority, user, "wrong").expect("the first check");
        assert!(matches!(verdict.answer, Err(Denied::BadCredentials)));
        assert!(verdict.not_before.is_some(), "{user:?}");
    }
    // A check that was queued while the same password was refused also ends without a new one, for all alike.
    let remembered = names.map(|user| verdict_of(&authority, user, "wrong").is_none());
    assert_eq!(remembered, [true; 5]);
    for (user, password) in [("slow", "a long password"), ("generated", &password)] {
        let verdict = verdict_of(&authority, user, password).expect("the first check");
        assert!(verdict.answer.is_ok() && verdict.not_before.is_none());
    }
}
