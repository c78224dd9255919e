//! `nodepool standalone`: parses its options and runs the process.

use std::io::Write;

use nodepool::actors::process::flags::tilde;
use nodepool::actors::process::logger_names::NODEPOOL;
use nodepool::actors::process::standalone::{self, StandaloneOptions};
use python_logging::{LineFormat, LogPlan, Verbosity};
use serde_json::json;

use crate::args::{Global, OutputFormat, StandaloneArguments};

/// Options before the command apply to all commands; those after it override them.
pub fn run(global: Global, arguments: StandaloneArguments) -> u8 {
    let log_format = arguments.log_format.unwrap_or(match global.output {
        OutputFormat::Table => LineFormat::Text,
        OutputFormat::Json => LineFormat::Json,
    });
    let log = match log_plan(&global) {
        Ok(log) => log,
        Err(error) => {
            if global.output == OutputFormat::Json {
                // The reader may have closed the output.
                let _ = writeln!(std::io::stdout(), "{}", json!({"outcome": "failed", "message": error}));
            }
            eprintln!("nodepool: error: {error}");
            return 1;
        }
    };
    standalone::run(StandaloneOptions {
        config: arguments.config.or(global.config),
        secure: arguments.secure.or(global.secure),
        data_dir: arguments.data_dir,
        builder: !arguments.no_builder,
        log: match log_format {
            LineFormat::Text => log,
            LineFormat::Json => log.as_json(),
        },
        is_machine_readable: log_format == LineFormat::Json,
    })
}

fn log_plan(global: &Global) -> Result<LogPlan, String> {
    match &global.logconfig {
        _ if global.debug => Ok(LogPlan::to_stdout(Verbosity::Debug, &NODEPOOL)),
        Some(path) => LogPlan::from_file(&tilde::expand_tilde(path), &NODEPOOL).map_err(|error| error.to_string()),
        None => Ok(LogPlan::to_stdout(Verbosity::Normal, &NODEPOOL)),
    }
}
