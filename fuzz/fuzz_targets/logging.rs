//! Any text as the file of `-l`. What is done with them is beside this, for `tests/corpora.rs` too.
#![no_main]

#[path = "../inputs/logging.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
