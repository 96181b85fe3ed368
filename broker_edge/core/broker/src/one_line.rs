//! Text of others in a sentence for a person.

/// Characters at the beginning, and as many at the end, of a text that is shown in part.
const SHOWN: usize = 400;

/// The text with its control characters as escapes: it may have ends of lines, and a terminal would carry out others.
/// Of a text of more than 800 characters the middle is left out.
pub fn one_line(text: &str) -> String {
    let left_out = text.chars().count().saturating_sub(2 * SHOWN);
    let mut shown = String::with_capacity(text.len().min(4 * SHOWN));
    for (at, c) in text.chars().enumerate() {
        if left_out > 0 && (SHOWN..SHOWN + left_out).contains(&at) {
            if at == SHOWN {
                shown.push_str(&format!(" [{left_out} characters] "));
            }
        } else if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_a_long_middle_is_left_out() {
        assert_eq!(one_line("é\r\n\u{1b}[2J\0"), "é\\r\\n\\u{1b}[2J\\u{0}");
        let (begin, end) = ("b".repeat(SHOWN), "e".repeat(SHOWN));
        let whole = format!("{begin}{end}");
        assert_eq!(one_line(&whole), whole);
        let long = format!("{begin}\n\n\n{end}");
        assert_eq!(one_line(&long), format!("{begin} [3 characters] {end}"));
    }
}
