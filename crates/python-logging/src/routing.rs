//! Which handlers get a record, as Python's loggers pass it on: from logger to logger up to the root.

use std::collections::BTreeMap;

use crate::format::{Format, Record, RecordFields};
use crate::sinks::sink::{Sink, SinkPlan};
use crate::{Filter, HandlerPlan, Level, LogError, LogPlan, LoggerPlan, Propagate, names};

/// A plan with its files open.
pub struct Routing {
    handlers: Vec<Handler>,
    loggers: BTreeMap<String, LoggerPlan>,
    /// Takes what no handler is there for.
    last_resort: Handler,
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
        Ok(Self { handlers, loggers: plan.loggers, last_resort: Handler::open(last_resort)? })
    }

    /// The loggers from this name up to the root, as far as they are configured.
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

    /// Whether anybody would see it. A root without a level is at Python's default, WARNING.
    pub fn is_enabled(&self, name: &str, level: Level) -> bool {
        let lowest = self.ancestry(name).find_map(|logger| logger.level).unwrap_or(Level::WARNING);
        let own = self.loggers.get(name);
        let is_silent = own.is_some_and(|own| own.is_disabled || !pass(&own.filters, name));
        level >= lowest && !is_silent && self.handlers_of(name).any(|handler| level >= handler.level)
    }

    /// Whether an entry of the plan may be for a member of this family.
    pub fn has_entries_for_members_of(&self, family: &str) -> bool {
        self.loggers.keys().any(|entry| names::may_be_member(entry, family))
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
            let warning = |text: &str| handler.format.render(&own_warning(record, text));
            handler.sink.write(&handler.format.render(record), record.level, warning);
        }
    }
}

/// What a handler has to say of itself, while it writes a record.
fn own_warning<'a>(record: &Record<'a>, text: &'a str) -> Record<'a> {
    Record {
        time: record.time,
        level: Level::WARNING,
        logger: "nodepool.log",
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
