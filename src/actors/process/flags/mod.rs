//! Command line flags that both daemons share, and parsers of flag values.

pub mod builder;
pub mod launcher;
pub mod tilde;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::context::VERSION;
use super::process::{DaemonOptions, Mode};
use nodepool_model::records::time::Seconds;
use python_logging::{LineFormat, Verbosity};

/// Flags of both daemons.
#[derive(clap::Args)]
pub struct CommonFlags {
    /// path to config file
    #[arg(short = 'c', value_name = "CONFIG", default_value = "/etc/nodepool/nodepool.yaml")]
    pub config: String,
    /// path to secure file
    #[arg(short = 's', value_name = "SECURE")]
    pub secure: Option<String>,
    /// path to log config file
    #[arg(short = 'l', value_name = "LOGCONFIG")]
    pub log_config: Option<String>,
    /// format of log lines: text or json
    #[arg(long, value_name = "FORMAT", value_parser = line_format, default_value = "text")]
    pub log_format: LineFormat,
    /// do not run as a daemon, with debug logging
    #[arg(short = 'd')]
    pub debug: bool,
    /// do not run as a daemon
    #[arg(short = 'f')]
    pub foreground: bool,
    /// accepted for compatibility; there is no Python console here
    #[arg(long)]
    pub repl: bool,
    /// show version
    #[arg(long)]
    pub version: bool,
}

impl CommonFlags {
    /// Handles `--version` and `--repl`; returns an exit status if the process has nothing else to do.
    pub fn early_exit(&self) -> Option<ExitCode> {
        if self.version {
            // Standard output may be closed.
            let _ = writeln!(std::io::stdout(), "Nodepool version: {VERSION}");
            return Some(ExitCode::SUCCESS);
        }
        if self.repl {
            eprintln!("--repl is ignored: there is no Python console here; send SIGUSR2 for a dump of all state");
        }
        None
    }

    pub fn daemon(&self, pid_file: &str) -> DaemonOptions {
        DaemonOptions {
            mode: match self.debug || self.foreground {
                true => Mode::Foreground,
                false => Mode::Background { pid_file: absolute(pid_file) },
            },
            log_config: self.log_config.as_deref().map(absolute),
            log_format: self.log_format,
            verbosity: if self.debug { Verbosity::Debug } else { Verbosity::Normal },
        }
    }
}

/// A duration in seconds, with decimals; above zero and within the range of a timer.
pub fn seconds(text: &str) -> Result<Seconds, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && (0.001..=1e9).contains(&seconds) => Ok(Seconds(seconds)),
        _ => Err("a number of seconds above 0 is expected, such as 10 or 0.5".to_owned()),
    }
}

/// A duration as in `seconds`, or 0 for never.
pub fn seconds_or_none(text: &str) -> Result<Seconds, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(Seconds::ZERO),
        _ => seconds(text).map_err(|error| format!("{error}, or 0")),
    }
}

/// Format of log lines.
pub fn line_format(text: &str) -> Result<LineFormat, String> {
    match text {
        "text" => Ok(LineFormat::Text),
        "json" => Ok(LineFormat::Json),
        _ => Err("`text` or `json` is expected".to_owned()),
    }
}

/// Absolute path with `~` expanded, because the working directory of a daemon is `/`.
pub fn absolute(path: &str) -> PathBuf {
    let expanded = tilde::expand_tilde(path);
    // This fails only without a current directory; opening the path then reports an error.
    std::path::absolute(&expanded).unwrap_or(expanded)
}
