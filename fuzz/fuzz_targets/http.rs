//! The bytes of a connection to the web port. What is done with them is beside this, for `tests/corpora.rs` too.
#![no_main]

#[path = "../inputs/http.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
