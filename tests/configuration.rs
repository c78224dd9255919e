//! Configuration files: what is accepted, what is made of them, and what the original makes of them.

#[path = "configuration/load.rs"]
mod load;
#[path = "configuration/reference.rs"]
mod reference;
#[path = "configuration/schema.rs"]
mod schema;
mod support;
#[path = "configuration/validate.rs"]
mod validate;
