//! Log records as JSON: one object per line, each id under a key of its own.

use std::fmt::Write as _;

use chrono::SecondsFormat;

use super::pattern::{Field, FieldValue, Segment, Style};
use super::{Date, Lines, Record, field_value};

/// Output of a formatter: text, or a JSON object.
#[derive(Clone, Debug, PartialEq)]
pub enum Layout {
    Text { segments: Vec<Segment>, lines: Lines },
    Object(Object),
}

/// Keys of an object, in addition to those of the record's ids and fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    keys: Vec<(String, KeySource)>,
    event: &'static str,
    /// Keys with the same value in every record.
    static_fields: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
enum KeySource {
    /// The time with its offset, in the format of RFC 3339.
    Instant,
    Field(Field),
}

impl Default for Object {
    fn default() -> Self {
        let field = |key: &str, field| (key.to_owned(), KeySource::Field(field));
        Self {
            keys: vec![
                ("time".to_owned(), KeySource::Instant),
                field("level", Field::LevelName),
                field("logger", Field::Logger),
                field("message", Field::Message),
            ],
            event: "event",
            static_fields: Vec::new(),
        }
    }
}

impl Object {
    /// As in python-json-logger: the fields that a format string names are the keys; literal text is ignored.
    pub fn with_keys_of(segments: &[Segment]) -> Self {
        let fields = segments.iter().filter_map(|segment| match segment {
            Segment::Value(field, _) => Some((name(*field).to_owned(), KeySource::Field(*field))),
            Segment::Text(_) => None,
        });
        // The original's records use this name for the event.
        Self { keys: fields.collect(), event: "event_id", static_fields: Vec::new() }
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        self.keys.iter_mut().filter(|(key, _)| key == from).for_each(|(key, _)| to.clone_into(key));
    }

    /// Adds a machine-readable time to the fields of the format.
    pub fn add_timestamp(&mut self) {
        self.keys.push(("timestamp".to_owned(), KeySource::Instant));
    }

    pub fn add_static_field(&mut self, key: &str, value: &str) {
        self.static_fields.push((key.to_owned(), value.to_owned()));
    }

    pub fn render(&self, record: &Record<'_>, date: &Date, text: &mut String) {
        let mut line = ObjectWriter { text, used_keys: Vec::new() };
        for (key, source) in &self.keys {
            match source {
                KeySource::Instant => {
                    line.string(key, &record.time.to_rfc3339_opts(SecondsFormat::Millis, false));
                }
                KeySource::Field(field) => match field_value(*field, record, record.plain, date) {
                    FieldValue::Text(value) => line.string(key, &value),
                    FieldValue::Integer(value) => line.unquoted(key, &value.to_string()),
                    FieldValue::Float(value) => line.unquoted(key, &value.to_string()),
                },
            }
        }
        let fields = &record.fields;
        for (key, id) in [(self.event, fields.event), ("node_request", fields.request), ("node", fields.node)] {
            if let Some(id) = id {
                line.string(key, id);
            }
        }
        for (key, value, is_unquoted) in fields.others {
            if *is_unquoted { line.unquoted(key, value) } else { line.string(key, value) }
        }
        for (key, value) in &self.static_fields {
            line.string(key, value);
        }
        let text = line.text;
        text.push_str(if text.is_empty() { "{}" } else { "}" });
    }
}

/// An object under construction. Keys are unique: the second `name` is `name_`.
struct ObjectWriter<'a> {
    text: &'a mut String,
    used_keys: Vec<String>,
}

impl ObjectWriter<'_> {
    fn string(&mut self, key: &str, value: &str) {
        // Every string can be serialised.
        let value = serde_json::to_string(value).unwrap_or_default();
        self.unquoted(key, &value);
    }

    fn unquoted(&mut self, key: &str, value: &str) {
        let separator = if self.used_keys.is_empty() { '{' } else { ',' };
        let mut key = key.to_owned();
        while self.used_keys.contains(&key) {
            key.push('_');
        }
        let quoted = serde_json::to_string(&key).unwrap_or_default();
        self.used_keys.push(key);
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{separator}{quoted}:{value}");
    }
}

fn name(field: Field) -> &'static str {
    match field {
        Field::Time => "asctime",
        Field::Created => "created",
        Field::Milliseconds => "msecs",
        Field::SinceStart => "relativeCreated",
        Field::LevelName => "levelname",
        Field::LevelNumber => "levelno",
        Field::Logger => "name",
        Field::Message => "message",
        Field::File => "pathname",
        Field::FileName => "filename",
        Field::Module => "module",
        Field::Line => "lineno",
        Field::Process => "process",
        Field::ProcessName => "processName",
        Field::ThreadNumber => "thread",
        Field::ThreadName => "threadName",
        Field::TaskName => "taskName",
    }
}

/// The fields of a format string, which python-json-logger also takes as a list: `asctime,levelname,message`.
pub fn segments(format: &str, style: Style) -> Result<Vec<Segment>, super::pattern::FormatError> {
    let is_list = !format.contains(['%', '{', '$']);
    if !is_list {
        return style.segments(format);
    }
    let names = format.split(',').map(str::trim).filter(|name| !name.is_empty());
    Style::Brace.segments(&names.map(|name| format!("{{{name}}}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::format::{Format, RecordFields};
    use chrono::{Local, TimeZone};

    fn render(object: Object) -> serde_json::Value {
        let others = [("pool", "lab-main".to_owned(), false), ("attempt", "2".to_owned(), true)];
        let record = Record {
            time: Local.with_ymd_and_hms(2024, 2, 3, 4, 5, 6).unwrap(),
            level: Level::WARNING,
            logger: "nodepool.NodePool",
            message: "[e: e1] [node: 7] two\n\"lines\" pool=lab-main",
            plain: "two\n\"lines\"",
            fields: RecordFields { event: Some("e1"), request: None, node: Some("7"), others: &others },
            file: "src/launcher.rs",
            line: 12,
            thread: "main",
        };
        let text = Format::json(Layout::Object(object), Date::default()).render(&record);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_record_is_an_object_on_one_line() {
        let found = render(Object::default());
        let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["time", "level", "logger", "message", "event", "node", "pool", "attempt"]);
        assert!(found["time"].as_str().unwrap().starts_with("2024-02-03T04:05:06.000"), "{found}");
        assert_eq!((&found["message"], &found["attempt"]), (&"two\n\"lines\"".into(), &2.into()));
    }

    #[test]
    fn a_format_string_names_the_keys() {
        for format in ["%(asctime)s %(levelname)s %(message)s", "asctime, levelname,message"] {
            let mut object = Object::with_keys_of(&segments(format, Style::Percent).unwrap());
            object.rename("levelname", "severity");
            object.add_static_field("service", "nodepool");
            let found = render(object);
            let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
            let expected = ["asctime", "severity", "message", "event_id", "node", "pool", "attempt", "service"];
            assert_eq!(keys, expected, "{format}");
        }
    }
}
