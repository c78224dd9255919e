//! Fuzz target: arbitrary text as clouds.yaml and its companions. The check is in `fuzz/inputs`, shared with
//! `tests/fuzz_corpus/main.rs`.
#![no_main]

#[path = "../inputs/clouds.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
