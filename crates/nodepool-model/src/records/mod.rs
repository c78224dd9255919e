//! Records as they are stored in ZooKeeper, and the value types they are made of.

pub mod backing;
pub mod component;
pub mod ids;
pub mod image_build;
pub mod image_upload;
pub mod interned;
pub mod json;
pub mod node;
pub mod raw_json;
pub mod request;
pub mod resources;
pub mod static_host;
pub mod time;
