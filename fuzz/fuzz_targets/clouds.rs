//! Any texts as clouds.yaml and what belongs to it. What is done with them is beside this, for `tests/corpora.rs` too.
#![no_main]

#[path = "../inputs/clouds.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::check(data));
