//! The `nodepool-launcher` daemon: parses flags and runs the launcher.

use std::process::ExitCode;

use clap::Parser;
use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::process::flags::absolute;
use nodepool::actors::process::flags::launcher::LauncherFlags;
use nodepool::actors::process::process::run_launcher;

/// Thousands of launches and large server lists are allocated and freed all the time (doc/decisions/0016-allocator.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The numbers of `mi_option_purge_delay` and `mi_option_page_max_candidates`, which the crate does not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const PAGE_CANDIDATES: libmimalloc_sys::mi_option_t = 37;

fn main() -> ExitCode {
    configure_allocator();
    let flags = LauncherFlags::parse();
    if let Some(status) = flags.common.early_exit() {
        return status;
    }
    let options = LauncherOptions {
        secure: flags.common.secure.as_deref().map(absolute),
        webapp: !flags.no_webapp,
        watermark_sleep: flags.watermark_sleep,
        cleanup_interval: flags.cleanup_interval,
        delete_interval: flags.delete_interval,
        lock_cleanup: flags.lock_cleanup,
        api_concurrency: usize::from(flags.api_concurrency),
        image_check_timeout: flags.image_check_timeout,
        ..LauncherOptions::new(absolute(&flags.common.config))
    };
    run_launcher(options, &flags.common.daemon(&flags.pid_file), None)
}

/// Returns freed memory to the system at once, not after mimalloc's delay of one second: allocations made during that
/// delay kept a quarter more memory resident after a burst. Allocates from the fullest of 64 pages instead of four, so
/// that other pages become free. `MIMALLOC_PURGE_DELAY` and `MIMALLOC_PAGE_MAX_CANDIDATES` in the environment override
/// both.
#[allow(unsafe_code)]
fn configure_allocator() {
    // SAFETY: writes two numbers of mimalloc's table of options, which mimalloc reads at each use.
    unsafe {
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, 0);
        libmimalloc_sys::mi_option_set_default(PAGE_CANDIDATES, 64);
    }
}
