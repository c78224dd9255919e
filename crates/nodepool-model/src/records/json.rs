//! JSON in Python's notation (`", "`, `": "`, ASCII escapes), and a reader that accepts Python's `NaN` and `Infinity`.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::Formatter;

/// The bytes that Python's `json.dumps` would return for the same document.
pub fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, PythonStyle);
    value.serialize(&mut serializer).expect("records hold only text keys and finite numbers");
    bytes
}

/// Parses a record; the tokens `NaN`, `Infinity` and `-Infinity`, which are not JSON, read as null.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    parse(bytes).or_else(|error| match without_python_tokens(bytes) {
        Some(cleaned) => parse(&cleaned),
        None => Err(error),
    })
}

/// Valid UTF-8 is parsed as text: it is then validated once and not again for each string.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    }
}

/// A copy with Python's non-standard number tokens replaced by `null`; `None` if there are none.
fn without_python_tokens(bytes: &[u8]) -> Option<Vec<u8>> {
    const TOKENS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut cleaned = Vec::with_capacity(bytes.len());
    let (mut in_text, mut found, mut at) = (false, false, 0);
    while at < bytes.len() {
        let token = TOKENS.iter().find(|token| !in_text && bytes[at..].starts_with(token));
        if let Some(token) = token {
            cleaned.extend_from_slice(b"null");
            found = true;
            at += token.len();
            continue;
        }
        match bytes[at] {
            b'"' => in_text = !in_text,
            b'\\' if in_text && at + 1 < bytes.len() => {
                cleaned.push(bytes[at]);
                at += 1;
            }
            _ => {}
        }
        cleaned.push(bytes[at]);
        at += 1;
    }
    found.then_some(cleaned)
}

struct PythonStyle;

impl Formatter for PythonStyle {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        // Checks all bytes, also after the first one that is not plain, so that the compiler can vectorise the loop.
        if fragment.bytes().fold(true, |is_plain, byte| is_plain & matches!(byte, b' '..=b'~')) {
            return writer.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            if character.is_ascii() && character != '\u{7f}' {
                writer.write_all(&[character as u8])?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn written_as_python_writes_it() {
        let value = json!({"a": [1, 2.5, null], "b": "é\n😀", "c": {"\u{7f}": "\u{7f}"}});
        let text = String::from_utf8(to_bytes(&value)).unwrap();
        assert_eq!(text, r#"{"a": [1, 2.5, null], "b": "\u00e9\n\ud83d\ude00", "c": {"\u007f": "\u007f"}}"#);
    }

    #[test]
    fn number_tokens_of_python_read_as_null() {
        let value: Value = from_bytes(br#"{"a": Infinity, "b": -Infinity, "c": "NaN \" NaN", "d": NaN}"#).unwrap();
        assert_eq!(value, json!({"a": null, "b": null, "c": "NaN \" NaN", "d": null}));
        assert!(from_bytes::<Value>(b"{nope").is_err());
    }
}
