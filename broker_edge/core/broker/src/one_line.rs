//! Text of others in a sentence for a person.

/// The text with its control characters as escapes: it may have ends of lines, and a terminal would carry out others.
pub fn one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
