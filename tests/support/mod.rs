//! Support of the integration tests: waiting for a condition, and real programs to test against.
// Every test binary compiles this module and uses only some of it.
#![allow(dead_code, unused_imports)]

pub mod real;
pub mod wait;
