//! From tracing's events to log lines: which logger, which handlers, which text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::Attributes;
use tracing::subscriber::Interest;
use tracing::{Event, Id, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::format::{Format, Record};
use super::sink::Sink;
use super::{Level, LogError, LogPlan, LoggerPlan, Propagate, names};
use crate::model::table::printable;

const POOL_WORKER: &str = "nodepool.PoolWorker";

/// A plan with its files open.
pub struct Routing {
    handlers: Vec<Handler>,
    loggers: BTreeMap<String, LoggerPlan>,
}

struct Handler {
    level: Level,
    format: Format,
    sink: Sink,
}

impl Routing {
    pub fn open(plan: LogPlan) -> Result<Self, LogError> {
        let open = |handler: super::HandlerPlan| {
            Sink::open(handler.sink).map(|sink| Handler { level: handler.level, format: handler.format, sink })
        };
        let handlers = plan.handlers.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { handlers, loggers: plan.loggers })
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
    fn is_wanted(&self, name: &str, level: Level) -> bool {
        let lowest = self.ancestry(name).find_map(|logger| logger.level).unwrap_or(Level::WARNING);
        level >= lowest && self.handlers_of(name).any(|handler| level >= handler.level)
    }

    fn handlers_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Handler> {
        let mut stopped = false;
        self.ancestry(name)
            .take_while(move |logger| {
                let go_on = !stopped;
                stopped |= logger.propagate == Propagate::Stop;
                go_on
            })
            .flat_map(|logger| logger.handlers.iter().map(|index| &self.handlers[*index]))
    }

    fn write(&self, record: &Record<'_>) {
        for handler in self.handlers_of(record.logger).filter(|handler| record.level >= handler.level) {
            handler.sink.write(&handler.format.render(record), record.level);
        }
    }
}

pub struct PythonLayer {
    routing: Routing,
}

impl PythonLayer {
    pub fn new(routing: Routing) -> Self {
        Self { routing }
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.is_span() {
            // Ours carry the ids for the events inside them; those of libraries carry nothing that is shown.
            return metadata.target().starts_with("nodepool");
        }
        self.routing.is_wanted(&names::logger(metadata.target()), level_of(metadata))
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for PythonLayer {
    /// The plan does not change, so each place in the code is judged once.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields.subject);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let spans = context.event_scope(event).into_iter().flatten();
        for span in spans {
            if let Some(subject) = span.extensions().get::<Subject>() {
                fields.subject.complete_from(subject);
            }
        }
        let metadata = event.metadata();
        let logger = fields.logger(metadata.target());
        let level = level_of(metadata);
        if !self.routing.is_wanted(&logger, level) {
            return;
        }
        let thread = std::thread::current();
        let record = Record {
            // For people, in their own time zone; nothing is decided by it.
            time: chrono::Local::now(),
            level,
            logger: &logger,
            message: &fields.message(),
            file: metadata.file().unwrap_or(""),
            line: metadata.line().unwrap_or(0),
            thread: thread.name().unwrap_or("unnamed"),
        };
        self.routing.write(&record);
    }
}

/// The client crate warns of every attempt to connect, several times a second and without a reason. What an operator has
/// to know of it our session says, so its own words are for those who want to hear more.
fn level_of(metadata: &Metadata<'_>) -> Level {
    let level = Level::of(metadata.level());
    if metadata.target().starts_with("zookeeper_client") { level.min(Level::INFO) } else { level }
}

/// What an event is about, by the ids that operators search for.
#[derive(Clone, Default)]
struct Subject {
    event: Option<String>,
    request: Option<String>,
    node: Option<String>,
}

impl Subject {
    fn complete_from(&mut self, outer: &Subject) {
        for (own, outer) in
            [(&mut self.event, &outer.event), (&mut self.request, &outer.request), (&mut self.node, &outer.node)]
        {
            if own.is_none() {
                own.clone_from(outer);
            }
        }
    }
}

#[derive(Default)]
struct Fields {
    subject: Subject,
    pool: Option<String>,
    message: String,
    others: String,
}

impl Fields {
    /// Each pool's worker has a logger of its own; elsewhere a pool is a value like others.
    fn logger<'a>(&mut self, target: &'a str) -> Cow<'a, str> {
        let name = names::logger(target);
        match self.pool.take() {
            Some(pool) if name == POOL_WORKER => Cow::Owned(format!("{POOL_WORKER}.{pool}")),
            Some(pool) => {
                // Writing to a String cannot fail.
                let _ = write!(self.others, " pool={pool}");
                name
            }
            None => name,
        }
    }

    /// `[e: EVENT] [node_request: ID] [node: ID] text name=value …`
    fn message(&self) -> String {
        let Subject { event, request, node } = &self.subject;
        let mut text = String::with_capacity(64 + self.message.len() + self.others.len());
        for (name, value) in [("e", event), ("node_request", request), ("node", node)] {
            if let Some(value) = value {
                let _ = write!(text, "[{name}: {value}] ");
            }
        }
        text.push_str(&self.message);
        text.push_str(&self.others);
        // Others write records, and a log may be read on a terminal.
        printable(text)
    }

    fn take(&mut self, name: &str, value: String) {
        match name {
            "message" => self.message = value,
            // Requests of other consumers than Zuul belong to no event.
            "event_id" if value.is_empty() => {}
            "event_id" => self.subject.event = Some(value),
            "pool" => self.pool = Some(value),
            "node_request_id" => self.subject.request = Some(value),
            "node_id" => self.subject.node = Some(value),
            // Writing to a String cannot fail.
            _ => drop(write!(self.others, " {name}={value}")),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field.name(), format!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(inner) = cause {
            let _ = write!(text, ": {inner}");
            cause = inner.source();
        }
        self.take(field.name(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::log::Verbosity;
    use crate::actors::log::format::Lines;
    use crate::actors::log::sink::SinkPlan;
    use std::fs;
    use std::path::PathBuf;
    use tracing_subscriber::layer::SubscriberExt;

    /// What a plan whose first handler writes to a file logs of the events in `act`.
    fn logged(change: impl FnOnce(&mut LogPlan), act: impl FnOnce()) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("log");
        let mut plan = LogPlan::to_file(&path, Verbosity::Normal);
        plan.handlers[0].format = Format::parse("%(levelname)s %(name)s: %(message)s", None, Lines::Repeated).unwrap();
        change(&mut plan);
        assert!(matches!(plan.handlers[0].sink, SinkPlan::WatchedFile(_)));
        let layer = PythonLayer::new(Routing::open(plan).unwrap());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), act);
        fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn ids_come_first_and_other_fields_last() {
        let text = logged(
            |_| {},
            || {
                let span = tracing::info_span!("request", event_id = "e1", node_request_id = %"200-0000000001");
                let _entered = span.enter();
                tracing::warn!(target: "nodepool.PoolWorker", node_id = "0000000007", attempt = 2, "launch failed");
            },
        );
        let expected = "[e: e1] [node_request: 200-0000000001] [node: 0000000007] launch failed attempt=2";
        assert_eq!(text, format!("WARNING nodepool.PoolWorker: {expected}\n"));
    }

    #[test]
    fn each_pool_has_a_logger_of_its_own_and_an_unknown_event_is_left_out() {
        let text = logged(
            |_| {},
            || {
                tracing::info!(target: "nodepool.PoolWorker", pool = "lab-main", event_id = "", "hand-out");
                tracing::info!(target: "nodepool.Component", pool = "lab-main", "registered");
            },
        );
        let lines = "INFO nodepool.PoolWorker.lab-main: hand-out\nINFO nodepool.Component: registered pool=lab-main\n";
        assert_eq!(text, lines);
    }

    #[test]
    fn the_default_shows_our_info_and_the_warnings_of_libraries() {
        let text = logged(
            |_| {},
            || {
                tracing::debug!(target: "nodepool.NodePool", "hidden");
                tracing::info!(target: "nodepool.NodePool", "ours");
                tracing::info!(target: "reqwest::connect", "hidden");
                tracing::warn!(target: "reqwest::connect", "theirs");
                tracing::warn!(target: "zookeeper_client::session", "our session says it better");
                tracing::error!(target: "somebody", "discarded by the root");
            },
        );
        assert_eq!(text, "INFO nodepool.NodePool: ours\nWARNING reqwest.connect: theirs\n");
    }

    #[test]
    fn the_nearest_logger_decides_the_level_and_may_stop_the_way_up() {
        let text = logged(
            |plan| {
                let quiet = LoggerPlan { level: Some(Level::ERROR), handlers: vec![], propagate: Propagate::Up };
                let stopped = LoggerPlan { level: None, handlers: vec![], propagate: Propagate::Stop };
                plan.loggers.insert("nodepool.zk".to_owned(), quiet);
                plan.loggers.insert("nodepool.WebApp".to_owned(), stopped);
            },
            || {
                tracing::warn!(target: "nodepool.zk.ZooKeeper", "below the level");
                tracing::error!(target: "nodepool.zk.ZooKeeper", "above it");
                tracing::error!(target: "nodepool.WebApp", "goes nowhere");
            },
        );
        assert_eq!(text, "ERROR nodepool.zk.ZooKeeper: above it\n");
    }
}
