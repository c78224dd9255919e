//! Checksum files of a build: read if the build wrote them, else both sums computed in one pass over the image file.
//!
//! The format is that of `md5sum` and `sha256sum`: the digits, two blanks, the path.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

/// Bytes per read.
const CHUNK_SIZE: usize = 1024 * 1024;

/// The sums of one file; `None` where a checksum file is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checksums {
    pub md5: Option<String>,
    pub sha256: Option<String>,
}

/// Reads the checksum files of an image file.
pub fn read(file: &Path) -> Checksums {
    Checksums {
        md5: read_digest(&checksum_path(file, "md5"), 32),
        sha256: read_digest(&checksum_path(file, "sha256"), 64),
    }
}

/// Reads the checksum files of an image file. If one is missing, computes both sums and writes both files. Returns an
/// error early when `stop` is set.
pub fn read_or_compute(file: &Path, stop: &Arc<AtomicBool>) -> io::Result<Checksums> {
    let found = read(file);
    if found.md5.is_some() && found.sha256.is_some() {
        return Ok(found);
    }
    let computed = compute(file, stop)?;
    for (suffix, digits) in [("md5", &computed.md5), ("sha256", &computed.sha256)] {
        let line = format!("{}  {}\n", digits.as_deref().unwrap_or_default(), file.display());
        fs::write(checksum_path(file, suffix), line)?;
    }
    Ok(computed)
}

/// Both sums of a file, in one pass over it.
pub fn compute(file: &Path, stop: &Arc<AtomicBool>) -> io::Result<Checksums> {
    let mut reader = File::open(file)?;
    let (mut md5, mut sha256) = (md5::Context::new(), Sha256::new());
    let mut chunk = vec![0; CHUNK_SIZE];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("stopped"));
        }
        let read = reader.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        md5.consume(&chunk[..read]);
        sha256.update(&chunk[..read]);
    }
    let sha256: String = sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Checksums { md5: Some(format!("{:x}", md5.finalize())), sha256: Some(sha256) })
}

fn checksum_path(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

/// The digest in a checksum file; `None` if the file is missing or has another format.
fn read_digest(file: &Path, length: usize) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let digits = text.get(..length)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| digits.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 1321 A.5 and FIPS 180-4: "abc".
    const MD5: &str = "900150983cd24fb0d6963f7d28e17f72";
    const SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn missing_sums_are_computed_and_existing_ones_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("debian-1e.qcow2");
        fs::write(&file, "abc").unwrap();
        let no_stop = Arc::new(AtomicBool::new(false));
        let both = Checksums { md5: Some(MD5.to_owned()), sha256: Some(SHA256.to_owned()) };
        assert_eq!(read(&file), Checksums::default());
        assert_eq!(read_or_compute(&file, &no_stop).unwrap(), both);
        let line = fs::read_to_string(folder.path().join("debian-1e.qcow2.md5")).unwrap();
        assert_eq!(line, format!("{MD5}  {}\n", file.display()));
        fs::write(&file, "changed").unwrap();
        assert_eq!(read_or_compute(&file, &no_stop).unwrap(), both);
        fs::write(folder.path().join("debian-1e.qcow2.sha256"), "none of it").unwrap();
        assert_eq!(read(&file).sha256, None);
    }

    #[test]
    fn stop_cancels_the_computation_and_a_missing_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.raw");
        let stop = Arc::new(AtomicBool::new(true));
        assert!(compute(&file, &stop).is_err());
        fs::write(&file, "abc").unwrap();
        assert_eq!(compute(&file, &stop).unwrap_err().to_string(), "stopped");
    }
}
