//! Configuration files: validation, loading, the schema, and a comparison with Nodepool 11.

#[path = "config/load.rs"]
mod load;
#[path = "config/reference.rs"]
mod reference;
#[path = "config/schema.rs"]
mod schema;
mod support;
#[path = "config/validate.rs"]
mod validate;
