//! Decoding of records. A record that does not parse is reported and skipped, and its znode is never changed.

use bytes::Bytes;
use serde::de::DeserializeOwned;

use nodepool_model::records::component::{Component, PoolComponent};
use nodepool_model::records::image_build::ImageBuild;
use nodepool_model::records::image_upload::ImageUpload;
use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::Versioned;
use zookeeper_server::types::Stat;

/// Result of decoding the data of a znode.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded<T> {
    Record(T),
    /// No data: a lock attempt re-created a record that had just been deleted.
    Empty,
    /// Not a record of this kind; the reason names the position in the document.
    Unreadable(String),
}

pub fn decode<T: DeserializeOwned>(data: &[u8]) -> Decoded<T> {
    if data.is_empty() {
        return Decoded::Empty;
    }
    match json::from_bytes(data) {
        Ok(record) => Decoded::Record(record),
        Err(error) => Decoded::Unreadable(reason(data, &error)),
    }
}

/// A record that a znode holds.
pub trait Record: DeserializeOwned {
    /// The time of the last state change, for records that have a state.
    fn state_time(&mut self) -> Option<&mut Timestamp> {
        None
    }
}

impl Record for Node {
    fn state_time(&mut self) -> Option<&mut Timestamp> {
        Some(&mut self.state_time)
    }
}

impl Record for NodeRequest {
    fn state_time(&mut self) -> Option<&mut Timestamp> {
        Some(&mut self.state_time)
    }
}

impl Record for ImageBuild {
    fn state_time(&mut self) -> Option<&mut Timestamp> {
        Some(&mut self.state_time)
    }
}

impl Record for ImageUpload {
    fn state_time(&mut self) -> Option<&mut Timestamp> {
        Some(&mut self.state_time)
    }
}

impl Record for PoolComponent {}
impl Record for Component {}

/// Decodes a record, with the version and the newest transaction of its znode.
pub fn decode_versioned<T: Record>(data: &Bytes, stat: &Stat) -> Decoded<Versioned<T>> {
    match decode::<T>(data) {
        Decoded::Record(mut record) => {
            // A record without a state time counts as being in its state since it was written; with a default of 1970
            // it would be too old for every rule.
            if let Some(time) = record.state_time().filter(|time| **time == Timestamp::default()) {
                *time = Timestamp(stat.mtime as f64 / 1000.0);
            }
            Decoded::Record(versioned(record, stat))
        }
        Decoded::Empty => Decoded::Empty,
        Decoded::Unreadable(reason) => Decoded::Unreadable(reason),
    }
}

pub fn versioned<T>(record: T, stat: &Stat) -> Versioned<T> {
    Versioned { record: std::sync::Arc::new(record), version: stat.version, mzxid: stat.mzxid, mtime_ms: stat.mtime }
}

fn reason(data: &[u8], error: &serde_json::Error) -> String {
    if std::str::from_utf8(data).is_err() {
        return format!("{} bytes that are not UTF-8 text", data.len());
    }
    // serde_json names line and column, and quotes at most the one token that it did not expect.
    format!("{error} ({} bytes)", data.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_a_state_time_is_as_old_as_its_znode() {
        let stat = Stat { mtime: 1_700_000_000_500, ..Stat::default() };
        let state_time = |data: &'static [u8]| match decode_versioned::<Node>(&Bytes::from_static(data), &stat) {
            Decoded::Record(stored) => stored.record.state_time,
            other => panic!("{other:?}"),
        };
        assert_eq!(state_time(br#"{"state": "hold"}"#), Timestamp(1_700_000_000.5));
        assert_eq!(state_time(br#"{"state": "hold", "state_time": 5.0}"#), Timestamp(5.0));
    }

    #[test]
    fn empty_foreign_and_binary_data_are_distinguished() {
        assert_eq!(decode::<Node>(b""), Decoded::Empty);
        assert!(matches!(decode::<Node>(b"{\"state\": 5}"), Decoded::Unreadable(_)));
        let Decoded::Unreadable(reason) = decode::<Node>(b"\xff\xfe") else { panic!("binary data is no record") };
        assert_eq!(reason, "2 bytes that are not UTF-8 text");
        assert!(matches!(decode::<Node>(br#"{"state": "ready"}"#), Decoded::Record(_)));
    }
}
