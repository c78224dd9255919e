//! Parts that several drivers and the builder use: host-key scans, child processes, image files, server sections.

pub mod checksums;
pub mod dib;
pub mod error_text;
pub mod file_stamps;
pub mod hook;
pub mod image_files;
pub mod keyscan;
#[cfg(any(feature = "aws", feature = "ibm"))]
pub mod object_store;
#[cfg(any(feature = "aws", feature = "ibm"))]
pub mod part_upload;
pub mod process_group;
pub mod python_format;
pub mod retry_after;
pub mod server_section;
#[cfg(any(feature = "azure", feature = "ibm"))]
pub mod tolerant_json;
#[cfg(any(feature = "aws", feature = "azure", feature = "ibm"))]
pub mod unused_listing;
