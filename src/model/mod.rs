//! What there is: records, configuration and the picture of ZooKeeper; pure data, std and serde only.
//!
//! The order below is the order of dependency: a file uses only files above it.

pub mod ids;
pub mod shared;
pub mod time;
pub mod json;
pub mod quantity;
pub mod tidying;
pub mod uploading;
pub mod hosts;
pub mod cloud;
pub mod yaml_scalar;
pub mod problem;
pub mod yaml;
pub mod yaml_tabs;
pub mod yaml_parse;
pub mod config;
pub mod findings;
pub mod driver_facts;
pub mod schema_shape;
pub mod schema_common;
pub mod schema_virtual;
pub mod schema_azure;
pub mod schema_pods;
pub mod schema;
pub mod crosscheck;
pub mod driver_rules;
pub mod resolve_images;
pub mod resolve_providers;
pub mod resolve;
pub mod validate;
pub mod node;
pub mod request;
pub mod component;
pub mod upload;
pub mod build;
pub mod stored;
pub mod images;
pub mod ledger;
pub mod snapshot;
pub mod table;
pub mod world;
pub mod status;
pub mod image_status;
pub mod metrics;
pub mod image_metrics;
