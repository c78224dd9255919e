//! Python's `logging.config` files for `tracing`: named loggers with levels and handlers, routed as Python routes them.

pub mod config;
pub mod format;
pub mod layer;
pub mod logger_names;
pub mod routing;
pub mod sinks;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use chrono::{DateTime, Local};

use crate::format::json::{Layout, Object};
use crate::format::{Date, Format};
use crate::logger_names::LoggerNames;
use crate::routing::Routing;
use crate::sinks::file::FilePlan;
use crate::sinks::sink::SinkPlan;

/// Python's levels, by its numbers: a record below a logger's number is not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(pub u32);

impl Level {
    pub const ALL: Level = Level(0);
    pub const TRACE: Level = Level(5);
    pub const DEBUG: Level = Level(10);
    pub const INFO: Level = Level(20);
    pub const WARNING: Level = Level(30);
    pub const ERROR: Level = Level(40);
    pub const CRITICAL: Level = Level(50);
    pub const NEVER: Level = Level(u32::MAX);

    pub fn of(level: &tracing::Level) -> Level {
        match *level {
            tracing::Level::TRACE => Level::TRACE,
            tracing::Level::DEBUG => Level::DEBUG,
            tracing::Level::INFO => Level::INFO,
            tracing::Level::WARN => Level::WARNING,
            tracing::Level::ERROR => Level::ERROR,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            level if level >= Level::CRITICAL => "CRITICAL",
            level if level >= Level::ERROR => "ERROR",
            level if level >= Level::WARNING => "WARNING",
            level if level >= Level::INFO => "INFO",
            _ => "DEBUG",
        }
    }
}

/// The complete configuration: loggers, formats and handlers.
#[derive(Clone, Debug, PartialEq)]
pub struct LogPlan {
    pub handlers: Vec<HandlerPlan>,
    /// By logger name; the root is the empty name.
    pub loggers: BTreeMap<String, LoggerPlan>,
    /// Entries of the file that are not supported; for stderr.
    pub notices: Vec<String>,
    /// The loggers of the tracing targets.
    pub names: &'static LoggerNames,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HandlerPlan {
    pub level: Level,
    pub format: Format,
    /// A record is written if all of them allow it.
    pub filters: Vec<Filter>,
    pub sink: SinkPlan,
}

/// Allows the records of the logger of this name and of those below it; an empty name allows every record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(pub String);

impl Filter {
    pub fn allows(&self, logger: &str) -> bool {
        self.0.is_empty()
            || logger.strip_prefix(self.0.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoggerPlan {
    /// `None` takes the level of the next logger above.
    pub level: Option<Level>,
    /// Indexes of the plan's handlers.
    pub handlers: Vec<usize>,
    /// For records of this logger only, not of those below it.
    pub filters: Vec<Filter>,
    pub propagate: Propagate,
    /// The logger itself logs nothing; loggers below it do.
    pub is_disabled: bool,
}

impl LoggerPlan {
    pub fn new(level: Option<Level>, handlers: Vec<usize>) -> Self {
        Self { level, handlers, filters: Vec::new(), propagate: Propagate::Up, is_disabled: false }
    }

    pub fn disabled() -> Self {
        Self { is_disabled: true, ..Self::new(None, Vec::new()) }
    }
}

/// Whether the handlers of the loggers above receive a record, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagate {
    Up,
    Stop,
}

/// Format of lines, as chosen on a command line; JSON replaces the formatters of a logging file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    Text,
    Json,
}

/// Level from which the default plan shows records of the program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    Normal,
    Debug,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot open the log file {}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("cannot reach the system log at {address}")]
    Syslog { address: String, source: std::io::Error },
    #[error("logging is already initialized")]
    AlreadyInstalled,
}

impl LogPlan {
    /// The plan of a process in the foreground without a logging file.
    pub fn to_stdout(verbosity: Verbosity, names: &'static LoggerNames) -> Self {
        Self::default_plan(SinkPlan::Stdout, verbosity, names)
    }

    /// The plan of a command-line tool, which writes its results to stdout.
    pub fn to_stderr(verbosity: Verbosity, names: &'static LoggerNames) -> Self {
        Self::default_plan(SinkPlan::Stderr, verbosity, names)
    }

    /// The plan of a process in the background without a logging file.
    pub fn to_file(path: impl Into<PathBuf>, verbosity: Verbosity, names: &'static LoggerNames) -> Self {
        Self::default_plan(SinkPlan::File(FilePlan::watched(path)), verbosity, names)
    }

    fn default_plan(sink: SinkPlan, verbosity: Verbosity, names: &'static LoggerNames) -> Self {
        let level = match verbosity {
            Verbosity::Normal => Level::INFO,
            Verbosity::Debug => Level::DEBUG,
        };
        let handler = HandlerPlan { level, format: Format::default(), filters: Vec::new(), sink };
        let logger = |level| LoggerPlan::new(Some(level), vec![0]);
        let mut loggers = BTreeMap::from([(names.root.to_owned(), logger(level))]);
        for library in names.default_libraries {
            for name in names.applies_to(library) {
                loggers.insert(name, logger(Level::WARNING));
            }
        }
        // As in the original: records of other loggers are discarded instead of reaching the handler of last resort.
        let discarding = HandlerPlan { sink: SinkPlan::Nothing, ..handler.clone() };
        loggers.insert(String::new(), LoggerPlan::new(None, vec![1]));
        Self { handlers: vec![handler, discarding], loggers, notices: Vec::new(), names }
    }

    /// Makes every handler write JSON, regardless of its formatter.
    pub fn as_json(mut self) -> Self {
        for handler in &mut self.handlers {
            handler.format = Format::json(Layout::Object(Object::default()), Date::default());
        }
        self
    }

    /// Opens the files and makes this the logging of the process.
    pub fn install(self) -> Result<(), LogError> {
        use tracing_subscriber::layer::SubscriberExt;
        since_start(Local::now());
        let layer = layer::PythonLayer::new(Routing::open(self)?);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadyInstalled)
    }
}

/// Milliseconds since logging was initialized.
fn since_start(now: DateTime<Local>) -> f64 {
    static START: OnceLock<DateTime<Local>> = OnceLock::new();
    (now - *START.get_or_init(|| now)).num_microseconds().unwrap_or(0) as f64 / 1000.0
}
