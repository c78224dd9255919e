//! `nodepool standalone`: from the options to the life of the process.

use nodepool::actors::home;
use nodepool::actors::log::{LineFormat, LogPlan, Verbosity};
use nodepool::actors::standalone::{self, StandaloneOptions};

use crate::args::{Global, StandaloneArguments};

/// Options may stand before the command, where they are for all commands, or after it; the latter win.
pub fn run(global: Global, arguments: StandaloneArguments) -> u8 {
    let log = match &global.logconfig {
        _ if global.debug => LogPlan::to_stdout(Verbosity::Debug),
        Some(path) => match LogPlan::from_file(&home::expanded(path)) {
            Ok(plan) => plan,
            Err(error) => {
                eprintln!("nodepool: error: {error}");
                return 1;
            }
        },
        None => LogPlan::to_stdout(Verbosity::Normal),
    };
    let log = match arguments.log_format {
        LineFormat::Text => log,
        LineFormat::Json => log.as_json(),
    };
    standalone::run(StandaloneOptions {
        config: arguments.config.or(global.config),
        secure: arguments.secure.or(global.secure),
        data_dir: arguments.data_dir,
        builder: !arguments.no_builder,
        log,
        for_programs: arguments.log_format == LineFormat::Json,
    })
}
