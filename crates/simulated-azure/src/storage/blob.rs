//! A page blob: a sparse file without a name, and the ranges that were written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::server::response::{ApiError, ApiResult};

/// Size of the footer of a VHD.
pub const FOOTER_SIZE: u64 = 512;

/// The cookie at the beginning of a VHD's footer.
const COOKIE: &[u8] = b"conectix";

/// A blob that a disk shares with the images made of it.
pub type SharedBlob = Rc<RefCell<Blob>>;

#[derive(Debug)]
pub struct Blob {
    file: File,
    pub size: u64,
    /// End by start of each range that was written; ranges do not overlap or touch.
    written: BTreeMap<u64, u64>,
    /// Number of calls that wrote.
    writes: u64,
}

/// A blob full of zeros.
pub fn create(size: u64) -> ApiResult<SharedBlob> {
    let file = tempfile::tempfile().and_then(|file| file.set_len(size).map(|()| file)).map_err(failed)?;
    Ok(Rc::new(RefCell::new(Blob { file, size, written: BTreeMap::new(), writes: 0 })))
}

/// The error of a file of this process.
fn failed(error: io::Error) -> ApiError {
    ApiError::new("InternalServerError", format!("the blob's file: {error}"))
}

impl Blob {
    pub fn write(&mut self, start: u64, data: &[u8]) -> ApiResult<()> {
        let end = start + data.len() as u64;
        assert!(end <= self.size, "pages {start} to {end} are within the blob");
        self.file.write_all_at(data, start).map_err(failed)?;
        self.writes += 1;
        self.mark(start, end);
        Ok(())
    }

    /// Adds a range to those that were written, and merges it with its neighbours.
    fn mark(&mut self, mut start: u64, mut end: u64) {
        while let Some((&other, &other_end)) = self.written.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.written.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.written.insert(start, end);
    }

    pub fn has_footer(&self) -> bool {
        let mut cookie = [0; COOKIE.len()];
        self.file.read_exact_at(&mut cookie, self.size - FOOTER_SIZE).is_ok() && cookie == COOKIE
    }

    /// Sizes and SHA-256 of the content, with and without the last 512 bytes.
    pub fn json(&self) -> io::Result<Value> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        let disk = digest(&mut file.take(self.size - FOOTER_SIZE))?;
        let mut all = disk.clone();
        let mut footer = [0; FOOTER_SIZE as usize];
        self.file.read_exact_at(&mut footer, self.size - FOOTER_SIZE)?;
        all.update(footer);
        let written: u64 = self.written.iter().map(|(start, end)| end - start).sum();
        Ok(json!({
            "size": self.size, "sha256": hex(&all.finalize()), "sha256_without_footer": hex(&disk.finalize()),
            "has_footer": self.has_footer(), "writes": self.writes, "written_bytes": written,
            "written_pages": written / 512, "ranges": self.written.len(),
        }))
    }
}

fn digest(input: &mut impl Read) -> io::Result<Sha256> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match input.read(&mut buffer)? {
            0 => return Ok(digest),
            count => digest.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_ranges_are_merged() {
        let blob = create(4096).unwrap();
        let mut blob = blob.borrow_mut();
        for (start, size) in [(0, 512), (1024, 512), (3072, 512), (512, 512), (1024, 1024)] {
            blob.write(start, &vec![1; size]).unwrap();
        }
        let ranges: Vec<_> = blob.written.clone().into_iter().collect();
        assert_eq!((ranges, blob.writes), (vec![(0, 2048), (3072, 3584)], 5));
        assert!(!blob.has_footer());
        blob.write(3584, b"conectix").unwrap();
        assert!(blob.has_footer());
    }
}
