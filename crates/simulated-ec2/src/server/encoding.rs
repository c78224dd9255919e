//! Encodings of AWS: percent encoding as signatures need it, hexadecimal digits, and bodies in chunks.

use bytes::{Bytes, BytesMut};

/// Percent-encodes everything but unreserved characters and those in `kept`.
pub fn percent_encoded(bytes: &[u8], kept: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || kept.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

pub fn percent_decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let digits = bytes.get(index + 1..index + 3).filter(|_| bytes[index] == b'%');
        let byte = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                index += 3;
            }
            None => {
                decoded.push(bytes[index]);
                index += 1;
            }
        }
    }
    decoded
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The content of a body with `Content-Encoding: aws-chunked`; `None` if it is malformed. Signatures of chunks and
/// trailers are not checked.
pub fn unchunked(body: &[u8]) -> Option<Bytes> {
    let mut content = BytesMut::with_capacity(body.len());
    let mut rest = body;
    loop {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let header = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(header.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(content.freeze());
        }
        content.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_reversed() {
        assert_eq!(percent_encoded(b"a b/\xc3\xa9~", b"/"), "a%20b/%C3%A9~");
        assert_eq!(percent_decoded("a%20b+%C3%A9%zz"), "a b+é%zz".as_bytes());
        let chunked = b"3;chunk-signature=00\r\nabc\r\n2\r\nde\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        assert_eq!(unchunked(chunked).unwrap(), "abcde");
        assert_eq!(unchunked(b"5\r\nabc"), None);
    }
}
