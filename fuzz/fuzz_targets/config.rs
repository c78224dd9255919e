//! Any text as a configuration, with a secure file or without one. What is done with them is beside this, for `tests/corpora.rs` too.
#![no_main]

#[path = "../inputs/config.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
