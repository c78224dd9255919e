//! Configuration files: what is accepted, what is made of them, and what the original makes of them.

#[path = "config/load.rs"]
mod load;
#[path = "config/reference.rs"]
mod reference;
#[path = "config/schema.rs"]
mod schema;
mod support;
#[path = "config/validate.rs"]
mod validate;
