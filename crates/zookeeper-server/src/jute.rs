//! Jute, ZooKeeper's encoding of numbers, text, buffers and lists.

use bytes::Bytes;

/// The bytes do not follow the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("unexpected end of data")]
    Short,
    #[error("invalid length {0}")]
    Length(i32),
    #[error("text that is not UTF-8")]
    Text,
    #[error("{0} is not {1}")]
    Value(i32, &'static str),
}

pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N).map(|bytes| bytes.try_into().expect("exactly that many bytes were taken"))
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        self.array::<1>().map(|[byte]| byte != 0)
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn int(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn long(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    /// A buffer; the absent one (length -1) reads as empty.
    pub fn buffer(&mut self) -> Result<&'a [u8], Malformed> {
        match self.int()? {
            -1 => Ok(&[]),
            length => self.take(usize::try_from(length).map_err(|_| Malformed::Length(length))?),
        }
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        std::str::from_utf8(self.buffer()?).map(str::to_owned).map_err(|_| Malformed::Text)
    }

    /// A list; the absent one (length -1) reads as empty. Grows with the items received, regardless of the announced
    /// length.
    pub fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        let length = self.int()?;
        if length < -1 {
            return Err(Malformed::Length(length));
        }
        let mut items = Vec::new();
        for _ in 0..length.max(0) {
            items.push(item(self)?);
        }
        Ok(items)
    }
}

#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// Bytes for the length at the start of a frame.
const LENGTH_FIELD: usize = 4;

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    /// A writer for a frame of the protocol, which `finish_frame` completes.
    pub fn frame() -> Self {
        Self { bytes: vec![0; LENGTH_FIELD] }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn flag(&mut self, value: bool) -> &mut Self {
        self.byte(u8::from(value))
    }

    pub fn byte(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub fn int(&mut self, value: i32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn long(&mut self, value: i64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn count(&mut self, length: usize) -> &mut Self {
        self.int(i32::try_from(length).expect("lengths are far below 2^31"))
    }

    pub fn buffer(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.buffer(text.as_bytes())
    }

    /// Bytes that are encoded already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// The bytes with their length in front.
    pub fn finish_frame(mut self) -> Bytes {
        let length = i32::try_from(self.bytes.len() - LENGTH_FIELD).expect("frames are far below two gigabytes");
        self.bytes[..LENGTH_FIELD].copy_from_slice(&length.to_be_bytes());
        Bytes::from(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut writer = Writer::new();
        writer.flag(true).int(-2).long(i64::MIN).text("päth").buffer(b"").count(2).int(7).int(8);
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.flag(), Ok(true));
        assert_eq!(reader.int(), Ok(-2));
        assert_eq!(reader.long(), Ok(i64::MIN));
        assert_eq!(reader.text(), Ok("päth".to_owned()));
        assert_eq!(reader.buffer(), Ok(&b""[..]));
        assert_eq!(reader.list(Reader::int), Ok(vec![7, 8]));
        assert!(reader.is_empty());
    }

    #[test]
    fn false_lengths_are_errors_and_allocate_nothing() {
        assert_eq!(Reader::new(&i32::MAX.to_be_bytes()).buffer(), Err(Malformed::Short));
        assert_eq!(Reader::new(&(-2i32).to_be_bytes()).buffer(), Err(Malformed::Length(-2)));
        assert_eq!(Reader::new(&i32::MAX.to_be_bytes()).list(Reader::long), Err(Malformed::Short));
        assert_eq!(Reader::new(&(-5i32).to_be_bytes()).list(Reader::long), Err(Malformed::Length(-5)));
        assert_eq!(Reader::new(&[0, 0, 0, 1, 0xff]).text(), Err(Malformed::Text));
        assert_eq!(Reader::new(&[0, 0]).int(), Err(Malformed::Short));
    }
}
