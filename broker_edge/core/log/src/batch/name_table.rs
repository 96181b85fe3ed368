//! Parses the tables of topics and client ids of a batch: where each name stands in their text.

use crate::batch::layout::u16_at;

#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub start: u32,
    pub length: u16,
    pub key_start: u16,
    pub key_length: u16,
}

/// The names of a table of exactly `count` entries that fills `table`; their text is appended to `text`.
pub(crate) fn parse_names(
    mut table: &[u8],
    count: u16,
    with_key: bool,
    text: &mut Vec<u8>,
) -> Option<Vec<Name>> {
    let fixed = if with_key { 6 } else { 2 };
    // Each entry takes at least `fixed` bytes, so the allocation is covered by the input.
    if table.len() < usize::from(count) * fixed {
        return None;
    }
    let mut names = Vec::with_capacity(usize::from(count));
    text.reserve(table.len() - usize::from(count) * fixed);
    for _ in 0..count {
        let (head, rest) = table.split_at_checked(fixed)?;
        let length = u16_at(head, 0);
        let (key_start, key_length) = if with_key {
            (u16_at(head, 2), u16_at(head, 4))
        } else {
            (0, 0)
        };
        if u32::from(key_start) + u32::from(key_length) > u32::from(length) {
            return None;
        }
        let (name, rest) = rest.split_at_checked(usize::from(length))?;
        names.push(Name {
            start: u32::try_from(text.len()).ok()?,
            length,
            key_start,
            key_length,
        });
        text.extend_from_slice(name);
        table = rest;
    }
    table.is_empty().then_some(names)
}
