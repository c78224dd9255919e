//! Znode bytes of any content as records. What is done with them is beside this, for `tests/corpora.rs` too.
#![no_main]

#[path = "../inputs/records.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
