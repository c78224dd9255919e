//! How one log record looks: Python's `%(name)s` format strings and its time format.

use std::fmt::Write as _;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local};

use super::Level;

/// What is known about one record.
pub struct Record<'a> {
    pub time: DateTime<Local>,
    pub level: Level,
    pub logger: &'a str,
    pub message: &'a str,
    pub file: &'a str,
    pub line: u32,
    pub thread: &'a str,
}

/// A compiled format string.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    pieces: Vec<Piece>,
    /// `None` is Python's own: date, time, a comma and milliseconds.
    date: Option<String>,
    lines: Lines,
}

/// What happens to a message of several lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Every line gets what stands before the message; lines after the first are indented by two blanks.
    Repeated,
    /// Written as it is.
    Verbatim,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Value { field: Field, width: usize, align: Align, precision: Option<usize> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
    Zeros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Time,
    Created,
    Milliseconds,
    LevelName,
    LevelNumber,
    Logger,
    Message,
    File,
    FileName,
    Module,
    Line,
    Process,
    ProcessName,
    Thread,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FormatError {
    #[error("unknown field `{0}`")]
    UnknownField(String),
    #[error("`%` at character {0} starts no field such as %(message)s; a percent sign is written %%")]
    Malformed(usize),
    #[error("`{0}` is no time format")]
    Date(String),
}

impl Default for Format {
    fn default() -> Self {
        Format::parse("%(asctime)s %(levelname)s %(name)s: %(message)s", None, Lines::Repeated)
            .expect("the default format is well formed")
    }
}

impl Format {
    pub fn parse(text: &str, date: Option<&str>, lines: Lines) -> Result<Self, FormatError> {
        if let Some(date) = date
            && StrftimeItems::new(date).any(|item| item == Item::Error)
        {
            return Err(FormatError::Date(date.to_owned()));
        }
        Ok(Self { pieces: pieces(text)?, date: date.map(str::to_owned), lines })
    }

    /// The record with its line feed at the end.
    pub fn render(&self, record: &Record<'_>) -> String {
        let mut text = String::with_capacity(128 + record.message.len());
        match self.lines {
            Lines::Repeated if record.message.contains('\n') => {
                for (index, line) in record.message.split('\n').enumerate() {
                    let line = if index == 0 { line.to_owned() } else { format!("  {line}") };
                    self.render_line(record, &line, &mut text);
                }
            }
            Lines::Repeated | Lines::Verbatim => self.render_line(record, record.message, &mut text),
        }
        text
    }

    fn render_line(&self, record: &Record<'_>, message: &str, text: &mut String) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(literal) => text.push_str(literal),
                Piece::Value { field, width, align, precision } => {
                    let value = self.value(*field, record, message);
                    pad(text, &cut(value, *field, *precision), *width, *align);
                }
            }
        }
        text.push('\n');
    }

    fn value(&self, field: Field, record: &Record<'_>, message: &str) -> String {
        match field {
            Field::Time => self.time(record),
            Field::Created => format!("{:.6}", record.time.timestamp_micros() as f64 / 1e6),
            Field::Milliseconds => record.time.timestamp_subsec_millis().to_string(),
            Field::LevelName => record.level.name().to_owned(),
            Field::LevelNumber => record.level.0.to_string(),
            Field::Logger => record.logger.to_owned(),
            Field::Message => message.to_owned(),
            Field::File => record.file.to_owned(),
            Field::FileName => file_name(record.file).to_owned(),
            Field::Module => file_name(record.file).trim_end_matches(".rs").to_owned(),
            Field::Line => record.line.to_string(),
            Field::Process => std::process::id().to_string(),
            Field::ProcessName => "MainProcess".to_owned(),
            Field::Thread => record.thread.to_owned(),
        }
    }

    fn time(&self, record: &Record<'_>) -> String {
        match &self.date {
            Some(date) => {
                let mut text = String::new();
                // Items that need what is not there were refused when the format was parsed.
                let _ = write!(text, "{}", record.time.format(date));
                text
            }
            None => record.time.format("%Y-%m-%d %H:%M:%S,%3f").to_string(),
        }
    }
}

fn pieces(text: &str) -> Result<Vec<Piece>, FormatError> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        literal.push_str(&rest[..at]);
        let position = text.len() - rest.len() + at + 1;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            literal.push('%');
            rest = after;
            continue;
        }
        let inner = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let (name, after) = inner.ok_or(FormatError::Malformed(position))?;
        let end = after.find(|c: char| c.is_ascii_alphabetic()).ok_or(FormatError::Malformed(position))?;
        if !literal.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut literal)));
        }
        let (width, align, precision) = modifiers(&after[..end]).ok_or(FormatError::Malformed(position))?;
        pieces.push(Piece::Value { field: field(name)?, width, align, precision });
        rest = &after[end + 1..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal));
    }
    Ok(pieces)
}

/// Flags, width and precision between the name and the conversion letter, as in `%(levelname)-8s`.
fn modifiers(text: &str) -> Option<(usize, Align, Option<usize>)> {
    let digits = text.trim_start_matches(['-', '+', ' ', '#', '0']);
    let flags = &text[..text.len() - digits.len()];
    let align = match (flags.contains('-'), flags.contains('0')) {
        (true, _) => Align::Left,
        (false, true) => Align::Zeros,
        (false, false) => Align::Right,
    };
    let (width, precision) = match digits.split_once('.') {
        Some((width, precision)) => (width, Some(precision)),
        None => (digits, None),
    };
    // A width beyond any screen is a mistake, and would cost memory on every line.
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse().ok().filter(|n| *n <= 1000) };
    Some((number(width)?, align, precision.map(number).map_or(Some(None), |found| found.map(Some))?))
}

fn field(name: &str) -> Result<Field, FormatError> {
    Ok(match name {
        "asctime" => Field::Time,
        "created" => Field::Created,
        "msecs" => Field::Milliseconds,
        "levelname" => Field::LevelName,
        "levelno" => Field::LevelNumber,
        "name" => Field::Logger,
        "message" => Field::Message,
        "pathname" => Field::File,
        "filename" => Field::FileName,
        "module" | "funcName" => Field::Module,
        "lineno" => Field::Line,
        "process" => Field::Process,
        "processName" => Field::ProcessName,
        "thread" | "threadName" => Field::Thread,
        other => return Err(FormatError::UnknownField(other.to_owned())),
    })
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A precision cuts texts; numbers are whole here and keep all their digits.
fn cut(value: String, field: Field, precision: Option<usize>) -> String {
    match (field, precision) {
        (Field::Created | Field::Milliseconds | Field::LevelNumber | Field::Line | Field::Process, _) | (_, None) => {
            value
        }
        (_, Some(length)) => value.chars().take(length).collect(),
    }
}

fn pad(text: &mut String, value: &str, width: usize, align: Align) {
    // Writing to a String cannot fail.
    let _ = match align {
        Align::Left => write!(text, "{value:<width$}"),
        Align::Right => write!(text, "{value:>width$}"),
        Align::Zeros => write!(text, "{value:0>width$}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone;

    fn render(format: Format, message: &str) -> String {
        let time = Local.with_ymd_and_hms(2024, 2, 3, 4, 5, 6).unwrap() + chrono::TimeDelta::milliseconds(7);
        format.render(&Record {
            time,
            level: Level::INFO,
            logger: "nodepool.NodePool",
            message,
            file: "src/actors/launcher.rs",
            line: 12,
            thread: "main",
        })
    }

    #[test]
    fn the_default_looks_like_pythons() {
        assert_eq!(render(Format::default(), "hello"), "2024-02-03 04:05:06,007 INFO nodepool.NodePool: hello\n");
    }

    #[test]
    fn lines_after_the_first_repeat_the_prefix_and_are_indented() {
        let expected = "2024-02-03 04:05:06,007 INFO nodepool.NodePool: one\n\
                        2024-02-03 04:05:06,007 INFO nodepool.NodePool:   two\n";
        assert_eq!(render(Format::default(), "one\ntwo"), expected);
    }

    #[test]
    fn widths_dates_and_percent_signs_are_honoured() {
        let cases = [
            ("%(levelname)-8s|%(message)s", None, "INFO    |hello\n"),
            ("%(levelname)8s|%(lineno)04d", None, "    INFO|0012\n"),
            ("100%% %(message).2s", None, "100% he\n"),
            ("%(asctime)s %(module)s", Some("%d.%m.%Y"), "03.02.2024 launcher\n"),
        ];
        for (text, date, expected) in cases {
            let format = Format::parse(text, date, Lines::Verbatim).unwrap();
            assert_eq!(render(format, "hello"), expected, "{text}");
        }
    }

    #[test]
    fn a_broken_format_is_refused_with_its_reason() {
        let parse = |text, date| Format::parse(text, date, Lines::Verbatim).unwrap_err();
        assert_eq!(parse("%(nonsense)s", None), FormatError::UnknownField("nonsense".to_owned()));
        assert_eq!(parse("a %(message", None), FormatError::Malformed(3));
        assert_eq!(parse("%(message)999999999999s", None), FormatError::Malformed(1));
        assert_eq!(parse("%(asctime)s", Some("%Q!")), FormatError::Date("%Q!".to_owned()));
    }
}
