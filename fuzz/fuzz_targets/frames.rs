//! The bytes of connections to the embedded coordinator. What is done with them is beside this, for `tests/corpora.rs` too.
#![no_main]

#[path = "../inputs/frames.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
