//! Fuzz target: bytes of connections to the embedded coordinator. The check is in `fuzz/inputs`, shared with
//! `tests/fuzz_corpus/main.rs`.
#![no_main]

#[path = "../inputs/frames.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
