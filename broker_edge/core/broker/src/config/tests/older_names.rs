//! Settings of an older release: renamed and retired ones.

use serde_json::{Value, json};

use super::{from_text, sentence};
use crate::config::declare::{Effect, Section, bytes, choice, kib, settings, whole};
use crate::config::units::ByteSize;
use crate::config::{Config, Source, keys, renamed};

choice! {
    pub enum Colour {
        /// like grass
        Green = "green",
    }
}

settings! {
    /// A section with names of an older release.
    pub struct Renamed {
        /// How many.
        #[renamed_from = "how_many"]
        #[renamed_from = "number"]
        #[effect = AtCreation]
        count: u8 = 3, whole(1, 9);
        /// Size of what is gone.
        #[retired = "it is gone"]
        cache_bytes: Option<ByteSize> = None, bytes(kib(1), kib(2));
        /// Its colour.
        colour: Colour = Colour::Green;
    }
}

settings! {
    pub struct Outer {}
    sections {
        /// Around it.
        inner: Renamed = Renamed { count: 4, ..Renamed::default() };
    }
}

fn settled(text: &str) -> (Result<Value, String>, Vec<String>) {
    let mut notes = Vec::new();
    let mut value: Value = serde_saphyr::from_str(text).unwrap();
    let result = renamed::settle(Outer::MEMBERS, "", &mut value, "a.yaml", &mut notes);
    (
        result.map(|()| value).map_err(|error| error.to_string()),
        notes,
    )
}

#[test]
fn an_old_name_works_and_says_the_new_one() {
    let (value, notes) = settled("inner: {how_many: 5}");
    assert_eq!(value.unwrap(), json!({"inner": {"count": 5}}));
    assert_eq!(
        notes,
        [
            "a.yaml: `inner.how_many` is now called `inner.count`; the old name works in this release only"
        ]
    );
    let typed: Outer = serde_saphyr::from_str("inner: {number: 5}").unwrap();
    assert_eq!(typed.inner.count, 5);
    let found = keys::find(Outer::MEMBERS, "inner.number").unwrap();
    assert_eq!(
        (&found.path[..], found.key.effect),
        ("inner.count", Effect::AtCreation)
    );
    assert!(keys::find(Outer::MEMBERS, "inner").is_none());
    assert!(keys::find(Outer::MEMBERS, "inner.count.x").is_none());
    assert_eq!(settled("inner: {count: 5}").1, [""; 0]);
    let (both, _) = settled("inner: {count: 5, number: 5}");
    assert_eq!(
        both.unwrap_err(),
        "a.yaml: `inner.number` is the old name of `inner.count`, which is set as well; remove `inner.number`"
    );
}

#[test]
fn a_retired_setting_is_accepted_and_says_that_it_has_no_effect() {
    let (value, notes) = settled("inner: {cache_bytes: 1KiB}");
    assert!(value.is_ok());
    assert_eq!(
        notes,
        ["a.yaml: `inner.cache_bytes` has no effect any more: it is gone; remove it"]
    );
    assert!(settled("inner: {cache_bytes: }").1.is_empty());
    let printed = serde_json::to_value(Outer::default()).unwrap();
    assert_eq!(printed, json!({"inner": {"count": 4, "colour": "green"}}));
}

#[test]
fn every_layer_says_which_of_its_settings_have_no_effect() {
    let source = Source {
        text: Some("log: {heads_bytes: 8MiB}".to_owned()),
        environment: vec![("HEADWATER_LOG__HEADS_BYTES".to_owned(), "1MiB".to_owned())],
        set: vec!["log.heads_bytes=0".to_owned()],
        ..Source::default()
    };
    let (_, notes) = Config::load_with_notes(&source).unwrap();
    let places = [
        "configuration",
        "HEADWATER_LOG__HEADS_BYTES",
        "--set log.heads_bytes=0",
    ];
    assert_eq!(
        notes,
        places.map(|place| format!(
            "{place}: `log.heads_bytes` has no effect any more: the broker does not cache the headers of batches; remove it"
        ))
    );
    let refused = from_text("log: {heads_bytes: many}");
    assert!(sentence(refused).contains("line 1: `many` is not a size"));
}
