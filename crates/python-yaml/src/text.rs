//! Text that is safe to print: control characters as Python escapes them.

/// Escapes control characters, because texts of records must not control a terminal. Newlines stay.
pub fn printable(text: String) -> String {
    if !text.chars().any(is_unsafe) {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_unsafe(character) { escape(&mut safe, character) } else { safe.push(character) }
    }
    safe
}

/// Control characters, and characters that reverse the direction of text.
pub fn is_unsafe(character: char) -> bool {
    match character {
        '\n' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

pub fn escape(out: &mut String, character: char) {
    let code = character as u32;
    let escaped = if code < 0x100 { format!("\\x{code:02x}") } else { format!("\\u{code:04x}") };
    out.push_str(&escaped);
}
