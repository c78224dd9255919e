//! The `tracing_subscriber::Layer` that turns events into log records: logger, ids, text.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::Attributes;
use tracing::subscriber::Interest;
use tracing::{Event, Id, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::Level;
use crate::format::{Record, RecordFields};
use crate::logger_names::LoggerNames;
use crate::routing::Routing;
use python_yaml::text::printable;

pub struct PythonLayer {
    routing: Routing,
}

impl PythonLayer {
    pub fn new(routing: Routing) -> Self {
        Self { routing }
    }

    fn is_enabled(&self, metadata: &Metadata<'_>) -> bool {
        let names = self.routing.names();
        if metadata.is_span() {
            // Spans of the program carry ids for the events inside them; nothing of other spans is shown.
            return metadata.target().starts_with(names.root);
        }
        let name = names.logger(metadata.target());
        let may_differ =
            || names.distinguishing_field(&name).is_some() && self.routing.has_entries_for_members_of(&name);
        self.routing.is_enabled(&name, level_of(metadata, names)) || may_differ()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for PythonLayer {
    /// The plan does not change, so each callsite is evaluated once.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.is_enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.is_enabled(metadata)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = CollectedFields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = CollectedFields::default();
        event.record(&mut fields);
        let own = fields.others.len();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<CollectedFields>() {
                fields.inherit_from(outer);
            }
        }
        let metadata = event.metadata();
        let names = self.routing.names();
        let level = level_of(metadata, names);
        let (logger, part_of_name) = fields.logger(metadata.target(), names);
        if !self.routing.is_enabled(&logger, level) {
            return;
        }
        let thread = std::thread::current();
        let record = Record {
            // For readers, in the local time zone; no decision depends on it.
            time: chrono::Local::now(),
            level,
            logger: &logger,
            message: &fields.text(own, part_of_name),
            plain: &fields.message,
            fields: fields.record_fields(),
            file: metadata.file().unwrap_or(""),
            line: metadata.line().unwrap_or(0),
            thread: thread.name().unwrap_or("unnamed"),
        };
        self.routing.write(&record);
    }
}

fn level_of(metadata: &Metadata<'_>, names: &LoggerNames) -> Level {
    let level = Level::of(metadata.level());
    let is_demoted = names.demoted_targets.iter().any(|prefix| metadata.target().starts_with(prefix));
    if is_demoted { level.min(Level::INFO) } else { level }
}

/// Fields of an event or a span. The ids that operators search for are kept apart.
#[derive(Default)]
struct CollectedFields {
    event: Option<String>,
    request: Option<String>,
    node: Option<String>,
    message: String,
    /// Names, values, and whether a value is a number or a boolean.
    others: Vec<(&'static str, String, bool)>,
}

impl CollectedFields {
    fn inherit_from(&mut self, outer: &CollectedFields) {
        for (own, outer) in
            [(&mut self.event, &outer.event), (&mut self.request, &outer.request), (&mut self.node, &outer.node)]
        {
            if own.is_none() {
                own.clone_from(outer);
            }
        }
        for other in &outer.others {
            if !self.others.iter().any(|(name, ..)| *name == other.0) {
                self.others.push(other.clone());
            }
        }
    }

    /// The logger, and the field that its name already contains.
    fn logger<'a>(&self, target: &'a str, names: &LoggerNames) -> (Cow<'a, str>, Option<&'static str>) {
        let family = names.logger(target);
        let Some(field) = names.distinguishing_field(&family) else { return (family, None) };
        match self.others.iter().find(|(name, ..)| *name == field) {
            Some((_, value, _)) => (Cow::Owned(names.member_name(&family, value)), Some(field)),
            None => (family, None),
        }
    }

    /// `[e: EVENT] [node_request: ID] [node: ID] text name=value …`, without fields that only surrounding spans have.
    fn text(&self, own: usize, part_of_name: Option<&str>) -> String {
        let mut text = String::with_capacity(96 + self.message.len());
        for (name, value) in [("e", &self.event), ("node_request", &self.request), ("node", &self.node)] {
            if let Some(value) = value {
                // Writing to a String cannot fail.
                let _ = write!(text, "[{name}: {value}] ");
            }
        }
        text.push_str(&self.message);
        for (name, value, _) in self.others[..own].iter().filter(|(name, ..)| Some(*name) != part_of_name) {
            let _ = write!(text, " {name}={value}");
        }
        text
    }

    fn record_fields(&self) -> RecordFields<'_> {
        RecordFields {
            event: self.event.as_deref(),
            request: self.request.as_deref(),
            node: self.node.as_deref(),
            others: &self.others,
        }
    }

    fn set_field(&mut self, name: &'static str, value: String, is_unquoted: bool) {
        // Values come from records of other programs, and a log may be read on a terminal.
        let value = printable(value);
        match name {
            "message" => self.message = value,
            // Only requests of Zuul belong to an event.
            "event_id" | "node_request_id" | "node_id" if value.is_empty() => {}
            "event_id" => self.event = Some(value),
            "node_request_id" => self.request = Some(value),
            "node_id" => self.node = Some(value),
            _ => self.others.push((name, value, is_unquoted)),
        }
    }
}

impl Visit for CollectedFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set_field(field.name(), value.to_owned(), false);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set_field(field.name(), value.to_string(), true);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set_field(field.name(), value.to_string(), true);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set_field(field.name(), value.to_string(), value.is_finite());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set_field(field.name(), value.to_string(), true);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set_field(field.name(), format!("{value:?}"), false);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(inner) = cause {
            let _ = write!(text, ": {inner}");
            cause = inner.source();
        }
        self.set_field(field.name(), text, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::pattern::Style;
    use crate::format::{Format, Lines};
    use crate::logger_names::EXAMPLE;
    use crate::sinks::sink::SinkPlan;
    use crate::{LogPlan, LoggerPlan, Propagate, Verbosity};
    use std::fs;
    use std::path::PathBuf;
    use tracing_subscriber::layer::SubscriberExt;

    /// The lines that a plan whose first handler writes to a file logs for the events in `act`.
    fn logged(change: impl FnOnce(&mut LogPlan), act: impl FnOnce()) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("log");
        let mut plan = LogPlan::to_file(&path, Verbosity::Normal, &EXAMPLE);
        plan.handlers[0].format =
            Format::parse("%(levelname)s %(name)s: %(message)s", Style::Percent, None, Lines::Repeated).unwrap();
        change(&mut plan);
        assert!(matches!(plan.handlers[0].sink, SinkPlan::File(_)));
        let layer = PythonLayer::new(Routing::open(plan).unwrap());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), act);
        fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn ids_come_first_and_other_fields_last() {
        let text = logged(
            |_| {},
            || {
                let span = tracing::info_span!(target: "nodepool.test", "request", event_id = "e1", node_request_id = %"200-0000000001");
                let _entered = span.enter();
                tracing::warn!(target: "nodepool.PoolWorker", node_id = "0000000007", attempt = 2, "launch failed");
            },
        );
        let expected = "[e: e1] [node_request: 200-0000000001] [node: 0000000007] launch failed attempt=2";
        assert_eq!(text, format!("WARNING nodepool.PoolWorker: {expected}\n"));
    }

    #[test]
    fn each_pool_has_its_own_logger_and_an_empty_event_id_is_omitted() {
        let text = logged(
            |_| {},
            || {
                tracing::info!(target: "nodepool.PoolWorker", pool = "lab-main", event_id = "", "fulfill");
                tracing::info!(target: "nodepool.Component", pool = "lab-main", "registered");
            },
        );
        let lines = "INFO nodepool.PoolWorker.lab-main: fulfill\nINFO nodepool.Component: registered pool=lab-main\n";
        assert_eq!(text, lines);
    }

    #[test]
    fn the_default_shows_info_of_the_program_and_warnings_of_libraries() {
        let text = logged(
            |_| {},
            || {
                tracing::debug!(target: "nodepool.NodePool", "hidden");
                tracing::info!(target: "nodepool.NodePool", "own");
                tracing::info!(target: "reqwest::connect", "hidden");
                tracing::warn!(target: "reqwest::connect", "library");
                tracing::warn!(target: "zookeeper_client::session", "demoted to INFO");
                tracing::error!(target: "other", "discarded by the root");
            },
        );
        assert_eq!(text, "INFO nodepool.NodePool: own\nWARNING reqwest.connect: library\n");
    }

    #[test]
    fn the_nearest_logger_decides_the_level_and_may_stop_propagation() {
        let text = logged(
            |plan| {
                let quiet = LoggerPlan::new(Some(Level::ERROR), vec![]);
                let stopped = LoggerPlan { propagate: Propagate::Stop, ..LoggerPlan::new(Some(Level::NEVER), vec![]) };
                plan.loggers.insert("nodepool.zk".to_owned(), quiet);
                plan.loggers.insert("nodepool.WebApp".to_owned(), stopped);
            },
            || {
                tracing::warn!(target: "nodepool.zk.ZooKeeper", "below the level");
                tracing::error!(target: "nodepool.zk.ZooKeeper", "above it");
                tracing::error!(target: "nodepool.WebApp", "not propagated");
            },
        );
        assert_eq!(text, "ERROR nodepool.zk.ZooKeeper: above it\n");
    }

    #[test]
    fn one_member_of_a_family_may_log_more_than_the_others() {
        let text = logged(
            |plan| {
                plan.handlers[0].level = Level::DEBUG;
                let verbose = LoggerPlan::new(Some(Level::DEBUG), vec![]);
                plan.loggers.insert("nodepool.builder.BuildWorker.1".to_owned(), verbose);
            },
            || {
                for worker in 0..3 {
                    // The number may be a field of a span around the event.
                    let _entered =
                        tracing::info_span!(target: "nodepool.test", "build", worker, image = "debian").entered();
                    tracing::debug!(target: "nodepool.builder.BuildWorker", "shown");
                }
            },
        );
        assert_eq!(text, "DEBUG nodepool.builder.BuildWorker.1: shown\n");
    }
}
