//! The configuration: the YAML of its file, and `--set`.

use super::check_sentence;
use crate::config::{Config, Source, to_yaml};

/// The first byte chooses between the file and the lines of `--set`.
pub fn config(input: &[u8]) {
    let Some((kind, text)) = input.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let source = if kind % 2 == 0 {
        Source {
            text: Some(text.to_owned()),
            ..Source::default()
        }
    } else {
        Source {
            set: text.lines().map(str::to_owned).collect(),
            ..Source::default()
        }
    };
    match Config::load(&source) {
        Ok(config) => {
            let again = Source {
                text: Some(to_yaml(&config)),
                ..Source::default()
            };
            let again = Config::load(&again).expect("what was printed is read");
            assert_eq!(again, config, "it changes by being printed");
        }
        Err(error) => check_sentence(&error.to_string(), 4096 + 4 * text.len()),
    }
}
