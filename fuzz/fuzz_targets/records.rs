//! Fuzz target: arbitrary znode bytes as records. The check is in `fuzz/inputs`, shared with
//! `tests/fuzz_corpus/main.rs`.
#![no_main]

#[path = "../inputs/records.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
