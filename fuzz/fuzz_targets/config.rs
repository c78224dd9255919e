//! Fuzz target: arbitrary text as a configuration, with or without a secure file. The check is in `fuzz/inputs`, shared
//! with `tests/fuzz_corpus/main.rs`.
#![no_main]

#[path = "../inputs/config.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
