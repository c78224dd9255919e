//! What the integration tests share: waiting for a condition, and real parts to run against.
// Every test binary compiles this module and uses only some of it.
#![allow(dead_code, unused_imports)]

pub mod real;
pub mod wait;
