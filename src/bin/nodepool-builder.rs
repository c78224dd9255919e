//! `nodepool-builder`: its flags, and off it goes.

use std::process::ExitCode;

use clap::Parser;
use nodepool::actors::builder::BuilderOptions;
use nodepool::actors::flags::{absolute, line_format, seconds, seconds_or_none};
use nodepool::actors::log::{LineFormat, Verbosity};
use nodepool::actors::process::{DaemonOptions, Mode, run_builder};
use nodepool::actors::shared::{LauncherOptions, VERSION};
use nodepool::model::time::Span;

/// Node pool image builder.
#[derive(Parser)]
#[command(name = "nodepool-builder", disable_version_flag = true, infer_long_args = true, args_override_self = true)]
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
    #[arg(short = 'p', value_name = "PIDFILE", default_value = "/var/run/nodepool/nodepool-builder.pid")]
    pid_file: String,
    /// do not run as a daemon, with debug logging
    #[arg(short = 'd')]
    debug: bool,
    /// do not run as a daemon
    #[arg(short = 'f')]
    foreground: bool,
    /// number of build workers
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..=1000), allow_negative_numbers = true, default_value = "1")]
    build_workers: u16,
    /// number of upload workers
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..=1000), allow_negative_numbers = true, default_value = "4")]
    upload_workers: u16,
    /// make small files instead of images
    #[arg(long)]
    fake: bool,
    /// accepted for compatibility; there is no Python console here
    #[arg(long)]
    repl: bool,
    /// show version
    #[arg(long)]
    version: bool,
    /// seconds before an image whose build has failed is built again
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "10")]
    build_interval: Span,
    /// seconds between looks whether a build that is under way is still wanted
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "30")]
    build_poll_timeout: Span,
    /// seconds before an upload that has failed is tried again
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "10")]
    upload_interval: Span,
    /// seconds from one upload of a worker to its next
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none, allow_negative_numbers = true, default_value = "0")]
    image_upload_sleep: Span,
    /// seconds that a post-upload-hook may take
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "3600")]
    hook_timeout: Span,
    /// seconds between looks for builds, uploads and files that are not needed any more; 0: none
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none, allow_negative_numbers = true, default_value = "60")]
    cleanup_interval: Span,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.version {
        println!("Nodepool version: {VERSION}");
        return ExitCode::SUCCESS;
    }
    if flags.repl {
        eprintln!("--repl is ignored: there is no Python console here; send SIGUSR2 for a dump of all state");
    }
    let options = LauncherOptions {
        secure: flags.secure.as_deref().map(absolute),
        webapp: false,
        ..LauncherOptions::new(absolute(&flags.config))
    };
    let builder = BuilderOptions {
        build_workers: usize::from(flags.build_workers),
        upload_workers: usize::from(flags.upload_workers),
        build_interval: flags.build_interval,
        build_poll: flags.build_poll_timeout,
        upload_interval: flags.upload_interval,
        upload_rest: flags.image_upload_sleep,
        hook_timeout: flags.hook_timeout,
        cleanup_interval: flags.cleanup_interval,
        ..BuilderOptions::default()
    };
    let builder = if flags.fake { builder.faked() } else { builder };
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
    run_builder(options, builder, &daemon)
}
