//! `nodepool-launcher`: its flags, and off it goes.

use std::process::ExitCode;

use clap::Parser;
use nodepool::actors::flags::{absolute, line_format, seconds};
use nodepool::actors::log::{LineFormat, Verbosity};
use nodepool::actors::process::{DaemonOptions, Mode, run_launcher};
use nodepool::actors::shared::{LauncherOptions, VERSION};
use nodepool::model::time::Span;

/// Launches come and go by the thousand, and so do the lists of a cloud's servers (doc/decisions/0016-allocator.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The numbers of `mi_option_purge_delay` and `mi_option_page_max_candidates`, which the crate has no names for.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const PAGE_CANDIDATES: libmimalloc_sys::mi_option_t = 37;

/// Node pool launcher.
#[derive(Parser)]
#[command(name = "nodepool-launcher", disable_version_flag = true, infer_long_args = true, args_override_self = true)]
struct Flags {
    /// path to config file
    #[arg(short = 'c', value_name = "CONFIG", default_value = "/etc/nodepool/nodepool.yaml")]
    config: String,
    /// path to secure file
    #[arg(short = 's', value_name = "SECURE")]
    secure: Option<String>,
    /// path to log config file
    #[arg(short = 'l', value_name = "LOGCONFIG")]
    log_config: Option<String>,
    /// lines of the log as text or json
    #[arg(long, value_name = "FORMAT", value_parser = line_format, default_value = "text")]
    log_format: LineFormat,
    /// path to pid file
    #[arg(short = 'p', value_name = "PIDFILE", default_value = "/var/run/nodepool/nodepool.pid")]
    pid_file: String,
    /// do not run as a daemon, with debug logging
    #[arg(short = 'd')]
    debug: bool,
    /// do not run as a daemon
    #[arg(short = 'f')]
    foreground: bool,
    /// do not serve HTTP
    #[arg(long)]
    no_webapp: bool,
    /// accepted for compatibility; there is no Python console here
    #[arg(long)]
    repl: bool,
    /// show version
    #[arg(long)]
    version: bool,
    /// seconds between two looks at what no event has told about
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "10")]
    watermark_sleep: Span,
    /// seconds between two cleanups
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "60")]
    cleanup_interval: Span,
    /// seconds between two looks for nodes to delete
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "5")]
    delete_interval: Span,
    /// age in seconds at which the lock of a request that is gone is removed
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "28800")]
    lock_cleanup: Span,
    /// calls of one provider's API that may be under way at once
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true, default_value = "10")]
    api_concurrency: u16,
    /// seconds between two looks for a cloud image that is missing
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "300")]
    image_check_timeout: Span,
}

fn main() -> ExitCode {
    keep_little_memory();
    let flags = Flags::parse();
    if flags.version {
        println!("Nodepool version: {VERSION}");
        return ExitCode::SUCCESS;
    }
    if flags.repl {
        eprintln!("--repl is ignored: there is no Python console here; send SIGUSR2 for a dump of all state");
    }
    let options = LauncherOptions {
        config: absolute(&flags.config),
        secure: flags.secure.as_deref().map(absolute),
        webapp: !flags.no_webapp,
        watermark_sleep: flags.watermark_sleep,
        cleanup_interval: flags.cleanup_interval,
        delete_interval: flags.delete_interval,
        lock_cleanup: flags.lock_cleanup,
        api_concurrency: usize::from(flags.api_concurrency),
        image_check_timeout: flags.image_check_timeout,
        more_drivers: Vec::new(),
        coordinator: None,
    };
    let mode = match flags.debug || flags.foreground {
        true => Mode::Foreground,
        false => Mode::Background { pid_file: absolute(&flags.pid_file) },
    };
    let verbosity = if flags.debug { Verbosity::Debug } else { Verbosity::Normal };
    let daemon = DaemonOptions {
        mode,
        log_config: flags.log_config.as_deref().map(absolute),
        log_format: flags.log_format,
        verbosity,
    };
    run_launcher(options, &daemon, None)
}

/// What a burst needed goes back to the system when it is free, not a second later as mimalloc has it: what the next launches
/// took meanwhile kept a quarter more of it resident. And what is taken is taken from the fullest of many pages instead of
/// four, so that others become free. `MIMALLOC_PURGE_DELAY` and `MIMALLOC_PAGE_MAX_CANDIDATES` in the environment win.
#[allow(unsafe_code)]
fn keep_little_memory() {
    // SAFETY: writes two numbers of mimalloc's table of options, which are read anew each time.
    unsafe {
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, 0);
        libmimalloc_sys::mi_option_set_default(PAGE_CANDIDATES, 64);
    }
}
