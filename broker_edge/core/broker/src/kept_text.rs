//! Text of clients that is kept for people: cut to a bounded length, in a buffer that is used again.

/// Bytes of a topic or filter that are kept, because it may have 64 KiB.
pub const TOPIC_BYTES_MAX: usize = 256;
/// Characters of a name that are kept, for the same reason.
pub const NAME_CHARS_MAX: usize = 64;

/// The beginning of a topic or filter, and whether there is more of it.
pub fn cut_topic(topic: &str) -> (&str, bool) {
    if topic.len() <= TOPIC_BYTES_MAX {
        return (topic, false);
    }
    let mut ends = (0..=TOPIC_BYTES_MAX).rev();
    let end = ends.find(|end| topic.is_char_boundary(*end));
    (&topic[..end.unwrap_or(0)], true)
}

/// The beginning of a client id or user name, and whether there is more of it.
pub fn cut_name(name: &str) -> (&str, bool) {
    let end = name.char_indices().nth(NAME_CHARS_MAX);
    end.map_or((name, false), |(end, _)| (&name[..end], true))
}

/// A cut text that is replaced by later ones.
#[derive(Debug, Default)]
pub struct KeptText {
    text: String,
    is_cut: bool,
}

impl KeptText {
    /// Allocates nothing unless the text is longer than all before it.
    pub fn set(&mut self, (text, is_cut): (&str, bool)) {
        self.is_cut = is_cut;
        if self.text == text {
            return;
        }
        self.text.clear();
        // Exactly: what is kept is never larger than the longest cut text.
        self.text.reserve_exact(text.len());
        self.text.push_str(text);
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// What it has allocated.
    pub fn bytes(&self) -> usize {
        self.text.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_cut_at_the_last_whole_character() {
        for topic in ["", "a/b", &"x".repeat(TOPIC_BYTES_MAX)] {
            assert_eq!(cut_topic(topic), (topic, false));
        }
        for letter in ["x", "é", "€", "😀"] {
            for before in ["", "a", "ab", "abc"] {
                let topic = format!("{before}{}", letter.repeat(TOPIC_BYTES_MAX + 1));
                let (kept, is_cut) = cut_topic(&topic);
                assert!(is_cut && topic.starts_with(kept), "{topic}");
                let room = TOPIC_BYTES_MAX - kept.len();
                assert!(room < letter.len(), "{topic}: {room} bytes are left");
            }
        }
    }

    #[test]
    fn a_name_is_cut_by_its_characters() {
        let name = "é".repeat(NAME_CHARS_MAX);
        assert_eq!(cut_name(&name), (&*name, false));
        let longer = format!("{name}x");
        assert_eq!(cut_name(&longer), (&*name, true));
    }

    #[test]
    fn a_later_text_takes_the_buffer_of_the_one_before() {
        let mut kept = KeptText::default();
        let long = "x".repeat(10_000);
        kept.set(cut_topic(&long));
        assert_eq!((kept.text().len(), kept.is_cut()), (TOPIC_BYTES_MAX, true));
        let (bytes, at) = (kept.bytes(), kept.text().as_ptr());
        assert_eq!(bytes, TOPIC_BYTES_MAX);
        for topic in ["a/b", &"y".repeat(TOPIC_BYTES_MAX), "", &long] {
            kept.set(cut_topic(topic));
            assert_eq!((kept.bytes(), kept.text().as_ptr()), (bytes, at));
        }
        assert_eq!(kept.text(), &long[..TOPIC_BYTES_MAX]);
        // The same beginning, but all of it.
        kept.set(cut_topic(&long[..TOPIC_BYTES_MAX]));
        assert!(!kept.is_cut());
    }
}
