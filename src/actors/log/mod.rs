//! Logging as operators of Nodepool know it: named loggers with levels and handlers, routed as Python routes them.

pub mod config;
pub mod format;
mod ini;
pub mod layer;
pub mod names;
pub mod sink;

use std::collections::BTreeMap;
use std::path::PathBuf;

use self::format::Format;
use self::layer::Routing;
use self::sink::SinkPlan;

/// Python's levels, by its numbers: whatever is below a logger's number is not logged.
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

/// What to log, how it looks and where it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct LogPlan {
    pub handlers: Vec<HandlerPlan>,
    /// By logger name; the root is the empty name.
    pub loggers: BTreeMap<String, LoggerPlan>,
    /// What the file asked for and what has no meaning here; for stderr.
    pub notices: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HandlerPlan {
    pub level: Level,
    pub format: Format,
    pub sink: SinkPlan,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoggerPlan {
    /// `None` takes the level of the next logger above.
    pub level: Option<Level>,
    /// Indexes of the plan's handlers.
    pub handlers: Vec<usize>,
    pub propagate: Propagate,
}

/// Whether the handlers of the loggers above get a record too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagate {
    Up,
    Stop,
}

/// How much the default configuration shows of Nodepool itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    Normal,
    Debug,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot open the log file {}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("logging is set up already")]
    Twice,
}

impl LogPlan {
    /// Foreground, without a logging file.
    pub fn to_stdout(verbosity: Verbosity) -> Self {
        Self::default_plan(SinkPlan::Stdout, verbosity)
    }

    /// Tools, whose results go to stdout.
    pub fn to_stderr(verbosity: Verbosity) -> Self {
        Self::default_plan(SinkPlan::Stderr, verbosity)
    }

    /// Background, without a logging file.
    pub fn to_file(path: impl Into<PathBuf>, verbosity: Verbosity) -> Self {
        Self::default_plan(SinkPlan::WatchedFile(path.into()), verbosity)
    }

    fn default_plan(sink: SinkPlan, verbosity: Verbosity) -> Self {
        let own = match verbosity {
            Verbosity::Normal => Level::INFO,
            Verbosity::Debug => Level::DEBUG,
        };
        let handler = HandlerPlan { level: own, format: Format::default(), sink };
        let logger = |level| LoggerPlan { level: Some(level), handlers: vec![0], propagate: Propagate::Up };
        let mut loggers = BTreeMap::from([("nodepool".to_owned(), logger(own))]);
        for library in ["requests", "openstack", "kazoo"] {
            for name in names::applies_to(library) {
                loggers.insert(name, logger(Level::WARNING));
            }
        }
        loggers.insert(String::new(), LoggerPlan { level: None, handlers: Vec::new(), propagate: Propagate::Up });
        Self { handlers: vec![handler], loggers, notices: Vec::new() }
    }

    /// Opens the files and makes this the logging of the process.
    pub fn install(self) -> Result<(), LogError> {
        use tracing_subscriber::layer::SubscriberExt;
        let layer = layer::PythonLayer::new(Routing::open(self)?);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)
    }
}
