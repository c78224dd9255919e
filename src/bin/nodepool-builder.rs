//! `nodepool-builder`: its flags, and off it goes.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use nodepool::actors::builder::BuilderOptions;
use nodepool::actors::builder_flags::BuilderFlags;
use nodepool::actors::flags::absolute;
use nodepool::actors::log::Verbosity;
use nodepool::actors::process::{DaemonOptions, Mode, run_builder};
use nodepool::actors::shared::{LauncherOptions, VERSION};

fn main() -> ExitCode {
    let flags = BuilderFlags::parse();
    if flags.version {
        // Nobody may be reading.
        let _ = writeln!(std::io::stdout(), "Nodepool version: {VERSION}");
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
