//! Tests of the crate `testkit`: the real services that other tests rely on.

mod real;
mod zuul;
