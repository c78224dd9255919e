//! The cast: actors carry messages and do the I/O that the brains in `policy` asked for.
pub mod messages;
