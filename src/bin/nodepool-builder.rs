//! The `nodepool-builder` daemon: parses flags and runs the builder.

use std::process::ExitCode;

use clap::Parser;
use nodepool::actors::builder::builder::BuilderOptions;
use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::process::flags::absolute;
use nodepool::actors::process::flags::builder::BuilderFlags;
use nodepool::actors::process::process::run_builder;

fn main() -> ExitCode {
    let flags = BuilderFlags::parse();
    if let Some(status) = flags.common.early_exit() {
        return status;
    }
    let options = LauncherOptions {
        secure: flags.common.secure.as_deref().map(absolute),
        webapp: false,
        ..LauncherOptions::new(absolute(&flags.common.config))
    };
    let builder = BuilderOptions {
        build_workers: usize::from(flags.build_workers),
        upload_workers: usize::from(flags.upload_workers),
        build_interval: flags.build_interval,
        build_poll_interval: flags.build_poll_timeout,
        upload_interval: flags.upload_interval,
        upload_pause: flags.image_upload_sleep,
        hook_timeout: flags.hook_timeout,
        cleanup_interval: flags.cleanup_interval,
        ..BuilderOptions::default()
    };
    let builder = if flags.fake { builder.faked() } else { builder };
    run_builder(options, builder, &flags.common.daemon(&flags.pid_file))
}
