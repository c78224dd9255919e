//! Routing of records to handlers as by Python's loggers: from the logger up to the root.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use crate::format::{Format, Record, RecordFields};
use crate::logger_names::{LoggerNames, may_be_member};
use crate::sinks::sink::{Sink, SinkPlan};
use crate::{Filter, HandlerPlan, Level, LogError, LogPlan, LoggerPlan, Propagate};

/// A plan with its sinks open.
pub struct Routing {
    handlers: Vec<Handler>,
    loggers: BTreeMap<String, LoggerPlan>,
    /// Receives records that no handler is configured for.
    last_resort: Handler,
    names: &'static LoggerNames,
}

struct Handler {
    level: Level,
    format: Format,
    filters: Vec<Filter>,
    sink: Sink,
}

impl Handler {
    fn open(plan: HandlerPlan) -> Result<Self, LogError> {
        let HandlerPlan { level, format, filters, sink } = plan;
        Sink::open(sink).map(|sink| Self { level, format, filters, sink })
    }
}

impl Routing {
    pub fn open(plan: LogPlan) -> Result<Self, LogError> {
        let handlers = plan.handlers.into_iter().map(Handler::open).collect::<Result<_, _>>()?;
        let last_resort = HandlerPlan {
            level: Level::WARNING,
            format: Format::message(),
            filters: Vec::new(),
            sink: SinkPlan::Stderr,
        };
        Ok(Self { handlers, loggers: plan.loggers, last_resort: Handler::open(last_resort)?, names: plan.names })
    }

    pub fn names(&self) -> &'static LoggerNames {
        self.names
    }

    /// The configured loggers from this name up to the root.
    fn ancestry<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a LoggerPlan> {
        let mut next = Some(name);
        std::iter::from_fn(move || {
            let current = next?;
            next = match current.rfind('.') {
                Some(dot) => Some(&current[..dot]),
                None if current.is_empty() => None,
                None => Some(""),
            };
            Some(self.loggers.get(current))
        })
        .flatten()
    }

    /// Whether any handler would write a record. The level of a root without one is Python's default, WARNING.
    pub fn is_enabled(&self, name: &str, level: Level) -> bool {
        let lowest = self.ancestry(name).find_map(|logger| logger.level).unwrap_or(Level::WARNING);
        let own = self.loggers.get(name);
        let is_silent = own.is_some_and(|own| own.is_disabled || !pass(&own.filters, name));
        level >= lowest && !is_silent && self.handlers_of(name).any(|handler| level >= handler.level)
    }

    /// Whether an entry of the plan may apply to a member of this family.
    pub fn has_entries_for_members_of(&self, family: &str) -> bool {
        self.loggers.keys().any(|entry| may_be_member(entry, family))
    }

    fn handlers_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Handler> {
        let mut is_stopped = false;
        let visited = self.ancestry(name).take_while(move |logger| {
            let continues = !is_stopped;
            is_stopped |= logger.propagate == Propagate::Stop;
            continues
        });
        let mut found =
            visited.flat_map(|logger| logger.handlers.iter().map(|index| &self.handlers[*index])).peekable();
        let has_no_handler = found.peek().is_none();
        found.chain(has_no_handler.then_some(&self.last_resort))
    }

    pub fn write(&self, record: &Record<'_>) {
        let accepts = |handler: &&Handler| record.level >= handler.level && pass(&handler.filters, record.logger);
        for handler in self.handlers_of(record.logger).filter(accepts) {
            let warning = |text: &str| handler.format.render(&log_warning(record, self.names.log_warnings, text));
            if let Some(problem) = handler.sink.write(&handler.format.render(record), record.level, warning) {
                // A failure of stderr cannot be reported anywhere.
                let _ = io::stderr().write_all(format!("{}: {problem}\n", self.names.root).as_bytes());
            }
        }
    }
}

/// A handler's warning about itself, logged with the record that it writes.
fn log_warning<'a>(record: &Record<'a>, logger: &'a str, text: &'a str) -> Record<'a> {
    Record {
        time: record.time,
        level: Level::WARNING,
        logger,
        message: text,
        plain: text,
        fields: RecordFields::default(),
        file: file!(),
        line: line!(),
        thread: record.thread,
    }
}

fn pass(filters: &[Filter], logger: &str) -> bool {
    filters.iter().all(|filter| filter.allows(logger))
}
