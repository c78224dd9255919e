//! Rendering of one log record: a line by a Python format string, or a JSON object.

pub mod json;
pub mod pattern;

use std::fmt::Write as _;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local};

use crate::Level;
use crate::format::json::Layout;
use crate::format::pattern::{Field, FieldValue, FormatError, Segment, Style};

/// One log record with its origin.
pub struct Record<'a> {
    pub time: DateTime<Local>,
    pub level: Level,
    pub logger: &'a str,
    /// The message with ids before and other fields after it, for lines of text.
    pub message: &'a str,
    /// The message alone, for JSON, where each id and field has a key.
    pub plain: &'a str,
    pub fields: RecordFields<'a>,
    pub file: &'a str,
    pub line: u32,
    pub thread: &'a str,
}

/// Ids and other fields of a record.
#[derive(Clone, Copy, Default)]
pub struct RecordFields<'a> {
    pub event: Option<&'a str>,
    pub request: Option<&'a str>,
    pub node: Option<&'a str>,
    /// Names, values, and whether a value is a number or a boolean.
    pub others: &'a [(&'static str, String, bool)],
}

/// A compiled format.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    layout: Layout,
    date: Date,
}

/// Format of the time. The default is Python's: date, time, a comma and milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Date(Option<String>);

/// Treatment of a message of several lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Every line gets the prefix of the message; lines after the first are indented by two blanks.
    Repeated,
    /// Written as it is.
    Verbatim,
}

impl Default for Format {
    fn default() -> Self {
        Format::parse("%(asctime)s %(levelname)s %(name)s: %(message)s", Style::Percent, None, Lines::Repeated)
            .expect("the default format is well formed")
    }
}

impl Date {
    pub fn parse(format: Option<&str>) -> Result<Self, FormatError> {
        let Some(format) = format else { return Ok(Date(None)) };
        let format = without_fractions(format);
        match StrftimeItems::new(&format).any(|item| item == Item::Error) {
            true => Err(FormatError::Date(format)),
            false => Ok(Date(Some(format))),
        }
    }

    pub fn text(&self, time: &DateTime<Local>) -> String {
        let mut text = String::new();
        // A format that cannot be rendered was refused when it was parsed.
        let _ = match &self.0 {
            Some(format) => write!(text, "{}", time.format(format)),
            None => write!(text, "{}", time.format("%Y-%m-%d %H:%M:%S,%3f")),
        };
        text
    }
}

impl Format {
    pub fn parse(text: &str, style: Style, date: Option<&str>, lines: Lines) -> Result<Self, FormatError> {
        let date = Date::parse(date)?;
        Ok(Self { layout: Layout::Text { segments: style.segments(text)?, lines }, date })
    }

    /// The message alone.
    pub fn message() -> Self {
        Format::parse("%(message)s", Style::Percent, None, Lines::Verbatim).expect("a plain message is a format")
    }

    pub fn json(layout: Layout, date: Date) -> Self {
        Self { layout, date }
    }

    /// The record with its line feed at the end.
    pub fn render(&self, record: &Record<'_>) -> String {
        let mut text = String::with_capacity(128 + record.message.len());
        match &self.layout {
            Layout::Text { segments, lines } => self.render_text(segments, *lines, record, &mut text),
            Layout::Object(object) => object.render(record, &self.date, &mut text),
        }
        text.push('\n');
        text
    }

    fn render_text(&self, segments: &[Segment], lines: Lines, record: &Record<'_>, text: &mut String) {
        self.render_line(segments, record, record.message, text);
        if lines == Lines::Verbatim || !text.contains('\n') {
            return;
        }
        let full_text = std::mem::take(text);
        for (index, line) in full_text.split('\n').enumerate() {
            if index == 0 {
                text.push_str(line);
            } else {
                text.push('\n');
                self.render_line(segments, record, &format!("  {line}"), text);
            }
        }
    }

    fn render_line(&self, segments: &[Segment], record: &Record<'_>, message: &str, text: &mut String) {
        for segment in segments {
            match segment {
                Segment::Text(literal) => text.push_str(literal),
                Segment::Value(field, format) => format.write(field_value(*field, record, message, &self.date), text),
            }
        }
    }
}

/// Escapes `%f`: strftime has no directive for fractions of a second, and Python prints the letter.
fn without_fractions(format: &str) -> String {
    let mut text = String::with_capacity(format.len() + 1);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        text.push(character);
        if character == '%' {
            match characters.next() {
                Some('f') => text.push_str("%f"),
                other => text.extend(other),
            }
        }
    }
    text
}

/// A field of a record, as Python formats it.
pub fn field_value(field: Field, record: &Record<'_>, message: &str, date: &Date) -> FieldValue {
    let text = |text: &str| FieldValue::Text(text.to_owned());
    match field {
        Field::Time => FieldValue::Text(date.text(&record.time)),
        Field::Created => FieldValue::Float(record.time.timestamp_micros() as f64 / 1e6),
        Field::Milliseconds => FieldValue::Float(f64::from(record.time.timestamp_subsec_millis())),
        Field::SinceStart => FieldValue::Float(super::since_start(record.time)),
        Field::LevelName => text(record.level.name()),
        Field::LevelNumber => FieldValue::Integer(i64::from(record.level.0)),
        Field::Logger => text(record.logger),
        Field::Message => text(message),
        Field::File => text(record.file),
        Field::FileName => text(file_name(record.file)),
        Field::Module => text(file_name(record.file).trim_end_matches(".rs")),
        Field::Line => FieldValue::Integer(i64::from(record.line)),
        Field::Process => FieldValue::Integer(i64::from(std::process::id())),
        Field::ProcessName => text("MainProcess"),
        Field::ThreadNumber => FieldValue::Integer(thread_number()),
        // Python's name of the main thread.
        Field::ThreadName if record.thread == "main" => text("MainThread"),
        Field::ThreadName => text(record.thread),
        Field::TaskName => text("None"),
    }
}

/// The number of the thread, which the standard library offers only as text.
fn thread_number() -> i64 {
    let text = format!("{:?}", std::thread::current().id());
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone;

    fn render(format: &Format, message: &str) -> String {
        let time = Local.with_ymd_and_hms(2024, 2, 3, 4, 5, 6).unwrap() + chrono::TimeDelta::milliseconds(7);
        format.render(&Record {
            time,
            level: Level::INFO,
            logger: "nodepool.NodePool",
            message,
            plain: message,
            fields: RecordFields::default(),
            file: "src/launcher.rs",
            line: 12,
            thread: "main",
        })
    }

    #[test]
    fn the_default_format_is_pythons() {
        assert_eq!(render(&Format::default(), "hello"), "2024-02-03 04:05:06,007 INFO nodepool.NodePool: hello\n");
    }

    #[test]
    fn lines_after_the_first_repeat_the_prefix_and_are_indented() {
        let expected = "2024-02-03 04:05:06,007 INFO nodepool.NodePool: one\n\
                        2024-02-03 04:05:06,007 INFO nodepool.NodePool:   two\n";
        assert_eq!(render(&Format::default(), "one\ntwo"), expected);
    }

    #[test]
    fn widths_dates_and_escapes_are_honoured_in_every_style() {
        use Style::*;
        let cases = [
            (Percent, "%(levelname)-8s|%(message)s", None, "INFO    |hello\n"),
            (Percent, "%(levelname)8s|%(lineno)04d", None, "    INFO|0012\n"),
            (Percent, "100%% %(message).2s", None, "100% he\n"),
            (Percent, "%(asctime)s %(module)s", Some("%d.%m.%Y"), "03.02.2024 launcher\n"),
            (Percent, "%(asctime)s.%(msecs)03d", Some("%H:%M:%S%%f%f"), "04:05:06%f%f.007\n"),
            (Percent, "%(levelno)+d %(msecs)s %(msecs).1f", None, "+20 7.0 7.0\n"),
            (Brace, "{levelname:<8}|{name:>20}|{lineno:05d}", None, "INFO    |   nodepool.NodePool|00012\n"),
            (Brace, "{{{message:*^9.3}}} {msecs:03.0f}", None, "{***hel***} 007\n"),
            (Dollar, "$asctime ${levelname}_$$ $message", Some("%Y"), "2024 INFO_$ hello\n"),
        ];
        for (style, text, date, expected) in cases {
            let format = Format::parse(text, style, date, Lines::Verbatim).unwrap();
            assert_eq!(render(&format, "hello"), expected, "{text}");
        }
    }

    #[test]
    fn a_broken_time_format_is_refused() {
        let broken = Format::parse("%(asctime)s", Style::Percent, Some("%Q!"), Lines::Verbatim);
        assert_eq!(broken, Err(FormatError::Date("%Q!".to_owned())));
    }
}
