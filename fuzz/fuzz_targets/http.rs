//! Fuzz target: bytes of a connection to the web port. The check is in `fuzz/inputs`, shared with
//! `tests/fuzz_corpus/main.rs`.
#![no_main]

#[path = "../inputs/http.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
