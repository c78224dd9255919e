//! Real programs to test against. `tests/run` provides them. A bare `cargo test` skips the tests that need them, and
//! prints a message for each.

pub mod child_process;
pub mod differences;
pub mod ensemble;
pub mod nodepool11;
pub mod nodepool_process;
pub mod ports;
pub mod python;
pub mod sshd;
pub mod tls;
pub mod zookeeper;

use std::{ffi::OsString, io::Write};

/// Whether to skip a test that needs a real program. Every such test starts with `if real::skipped() { return; }`. With
/// NODEPOOL_REQUIRE_REAL=1, which `tests/run` sets, nothing is skipped, and a missing program fails the test.
pub fn skipped() -> bool {
    if std::env::var_os("NODEPOOL_REQUIRE_REAL").is_some_and(|value| value == "1") {
        return false;
    }
    let thread = std::thread::current();
    let line = format!("SKIPPED: {} needs real programs (run tests/run)\n", thread.name().unwrap_or("a test"));
    // Written to the stream itself: the test framework captures the output of `eprintln!` in a test that passes.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open in a test");
    true
}

/// A value that `tests/run` exports, for example the path of an interpreter.
pub fn setting(variable: &str) -> OsString {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: run the tests with tests/run"))
}
