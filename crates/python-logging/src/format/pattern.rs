//! Format strings in Python's three styles (`%(name)s`, `{name}`, `$name`), compiled into segments.

use std::fmt::Write as _;

/// Syntax of a format string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Percent,
    Brace,
    Dollar,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Segment {
    Text(String),
    Value(Field, FieldFormat),
}

/// Fields of a record that a format string may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Time,
    Created,
    Milliseconds,
    SinceStart,
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
    ThreadNumber,
    ThreadName,
    /// The name of an asyncio task, which only Python has.
    TaskName,
}

/// A value before it is formatted.
pub enum FieldValue {
    Text(String),
    Integer(i64),
    Float(f64),
}

/// Format of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldFormat {
    pub kind: Kind,
    pub fill: char,
    pub align: Align,
    pub width: usize,
    pub precision: Option<usize>,
    /// Written before values that are not negative.
    pub sign: Option<char>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As by `str()`.
    Text,
    Integer,
    Fixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
    Center,
    /// Filled between the sign and the digits.
    AfterSign,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FormatError {
    #[error("unknown field `{0}`")]
    UnknownField(String),
    #[error("`%` at character {0} does not start a field such as %(message)s; a percent sign is written %%")]
    Malformed(usize),
    #[error("`{{` or `}}` at character {0} does not belong to a field such as {{message}}; a brace is written twice")]
    Brace(usize),
    #[error("`$` at character {0} does not start a field such as ${{message}}; a dollar sign is written $$")]
    Dollar(usize),
    #[error("conversion `{0}` is not valid for field `{1}`")]
    Conversion(String, String),
    #[error("unknown style `{0}`, expected %, {{ or $")]
    Style(String),
    #[error("invalid time format `{0}`")]
    Date(String),
}

impl Style {
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        match text {
            "%" | "" => Ok(Style::Percent),
            "{" => Ok(Style::Brace),
            "$" => Ok(Style::Dollar),
            other => Err(FormatError::Style(other.to_owned())),
        }
    }

    pub fn segments(self, text: &str) -> Result<Vec<Segment>, FormatError> {
        match self {
            Style::Percent => percent(text),
            Style::Brace => brace(text),
            Style::Dollar => dollar(text),
        }
    }
}

/// Collects literal text and values in turn.
#[derive(Default)]
struct SegmentBuilder {
    segments: Vec<Segment>,
    literal: String,
}

impl SegmentBuilder {
    fn value(&mut self, field: Field, format: FieldFormat) {
        self.flush();
        self.segments.push(Segment::Value(field, format));
    }

    fn flush(&mut self) {
        if !self.literal.is_empty() {
            self.segments.push(Segment::Text(std::mem::take(&mut self.literal)));
        }
    }

    fn finish(mut self) -> Vec<Segment> {
        self.flush();
        self.segments
    }
}

fn percent(text: &str) -> Result<Vec<Segment>, FormatError> {
    let mut segments = SegmentBuilder::default();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        segments.literal.push_str(&rest[..at]);
        let malformed = || FormatError::Malformed(position_of(text, &rest[at..]));
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('%') {
            segments.literal.push('%');
            rest = after;
            continue;
        }
        let inner = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let (name, after) = inner.ok_or_else(malformed)?;
        let end = after.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(malformed)?;
        let letter = &after[end..=end];
        let field = field(name)?;
        let format = printf_spec(&after[..end], letter, field).ok_or_else(malformed)?;
        if !is_compatible(format.kind, field) || !"srdiufF".contains(letter) {
            return Err(FormatError::Conversion(format!("%{letter}"), name.to_owned()));
        }
        segments.value(field, format);
        rest = &after[end + 1..];
    }
    segments.literal.push_str(rest);
    Ok(segments.finish())
}

/// Flags, width and precision between the name and the conversion letter, as in `%(levelname)-8s`.
fn printf_spec(text: &str, letter: &str, field: Field) -> Option<FieldFormat> {
    let digits = text.trim_start_matches(['-', '+', ' ', '#', '0']);
    let flags = &text[..text.len() - digits.len()];
    let kind = match letter {
        "d" | "i" | "u" => Kind::Integer,
        "f" | "F" => Kind::Fixed,
        _ => Kind::Text,
    };
    // Python pads texts with blanks even if the format requests zeros.
    let zeros = flags.contains('0') && !flags.contains('-') && kind != Kind::Text;
    let (width, precision) = match digits.split_once('.') {
        Some((width, precision)) => (width, Some(precision)),
        None => (digits, None),
    };
    let sign = flags.contains('+').then_some('+').or(flags.contains(' ').then_some(' '));
    Some(FieldFormat {
        kind,
        fill: if zeros { '0' } else { ' ' },
        align: match (flags.contains('-'), zeros) {
            (true, _) => Align::Left,
            (false, true) => Align::AfterSign,
            (false, false) => Align::Right,
        },
        width: number(width)?,
        precision: precision.map(number).map_or(Some(None), |found| found.map(Some))?,
        sign: sign.filter(|_| kind != Kind::Text && is_number(field)),
    })
}

/// Limits widths to 1000, because a larger width is a mistake and would cost memory on every line.
fn number(text: &str) -> Option<usize> {
    if text.is_empty() { Some(0) } else { text.parse().ok().filter(|n| *n <= 1000) }
}

fn brace(text: &str) -> Result<Vec<Segment>, FormatError> {
    let mut segments = SegmentBuilder::default();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        segments.literal.push_str(&rest[..at]);
        let malformed = || FormatError::Brace(position_of(text, &rest[at..]));
        let (opening, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(opening) {
            segments.literal.push_str(opening);
            rest = after;
            continue;
        }
        let (inner, after) = after.split_once('}').filter(|_| opening == "{").ok_or_else(malformed)?;
        let (name, spec) = inner.split_once(':').unwrap_or((inner, ""));
        let (name, conversion) = name.split_once('!').unwrap_or((name, "s"));
        let field = field(name)?;
        let invalid_conversion = || FormatError::Conversion(inner.to_owned(), name.to_owned());
        // `!s` and `!a` convert a number to text and leave a text as it is. `!r` would add quotes.
        let as_text = name.len() < inner.len() && inner[name.len()..].starts_with('!');
        if !matches!(conversion, "s" | "a") {
            return Err(invalid_conversion());
        }
        segments.value(field, format_spec(spec, field, as_text).ok_or_else(invalid_conversion)?);
        rest = after;
    }
    segments.literal.push_str(rest);
    Ok(segments.finish())
}

/// `[[fill]align][sign][0][width][.precision][type]`
fn format_spec(spec: &str, field: Field, as_text: bool) -> Option<FieldFormat> {
    let is_number = is_number(field) && !as_text;
    let mut characters = spec.chars().peekable();
    let mut ahead = spec.chars();
    let (first, second) = (ahead.next(), ahead.next());
    let (mut fill, mut align) = (' ', None);
    if let Some(found) = second.and_then(alignment) {
        (fill, align) = (first.unwrap_or(' '), Some(found));
        characters.next();
        characters.next();
    } else if let Some(found) = first.and_then(alignment) {
        align = Some(found);
        characters.next();
    }
    let sign = characters.next_if(|c| matches!(c, '+' | '-' | ' '));
    if characters.next_if_eq(&'0').is_some() && align.is_none() {
        (fill, align) = ('0', Some(if is_number { Align::AfterSign } else { Align::Left }));
    }
    let digits = |characters: &mut std::iter::Peekable<std::str::Chars<'_>>| {
        let mut text = String::new();
        while let Some(digit) = characters.next_if(char::is_ascii_digit) {
            text.push(digit);
        }
        text
    };
    let width = number(&digits(&mut characters))?;
    let precision = match characters.next_if_eq(&'.') {
        Some(_) => Some(digits(&mut characters).parse().ok().filter(|n: &usize| *n <= 1000)?),
        None => None,
    };
    let kind = match (characters.next(), is_number) {
        (None, _) => Kind::Text,
        (Some('s'), false) => Kind::Text,
        (Some('d'), true) if !is_float(field) => Kind::Integer,
        (Some('f' | 'F'), true) => Kind::Fixed,
        _ => return None,
    };
    let misplaced = !is_number && (sign.is_some() || align == Some(Align::AfterSign));
    if characters.next().is_some() || misplaced || (is_number && kind != Kind::Fixed && precision.is_some()) {
        return None;
    }
    let align = align.unwrap_or(if is_number { Align::Right } else { Align::Left });
    Some(FieldFormat { kind, fill, align, width, precision, sign: sign.filter(|sign| *sign != '-') })
}

fn alignment(character: char) -> Option<Align> {
    match character {
        '<' => Some(Align::Left),
        '>' => Some(Align::Right),
        '^' => Some(Align::Center),
        '=' => Some(Align::AfterSign),
        _ => None,
    }
}

fn dollar(text: &str) -> Result<Vec<Segment>, FormatError> {
    let mut segments = SegmentBuilder::default();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        segments.literal.push_str(&rest[..at]);
        let malformed = || FormatError::Dollar(position_of(text, &rest[at..]));
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            segments.literal.push('$');
            rest = after;
            continue;
        }
        let (name, after) = match after.strip_prefix('{') {
            Some(inner) => inner.split_once('}').ok_or_else(malformed)?,
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()))
            }
        };
        if name.is_empty() {
            return Err(malformed());
        }
        segments.value(field(name)?, FieldFormat::PLAIN);
        rest = after;
    }
    segments.literal.push_str(rest);
    Ok(segments.finish())
}

/// Position of the remaining text in the whole, in characters from 1.
fn position_of(text: &str, rest: &str) -> usize {
    text[..text.len() - rest.len()].chars().count() + 1
}

fn field(name: &str) -> Result<Field, FormatError> {
    Ok(match name {
        "asctime" => Field::Time,
        "created" => Field::Created,
        "msecs" => Field::Milliseconds,
        "relativeCreated" => Field::SinceStart,
        "levelname" => Field::LevelName,
        "levelno" => Field::LevelNumber,
        "name" => Field::Logger,
        "message" => Field::Message,
        "pathname" => Field::File,
        "filename" => Field::FileName,
        // Rust functions have no names at run time, so the module is used instead.
        "module" | "funcName" => Field::Module,
        "lineno" => Field::Line,
        "process" => Field::Process,
        "processName" => Field::ProcessName,
        "thread" => Field::ThreadNumber,
        "threadName" => Field::ThreadName,
        "taskName" => Field::TaskName,
        other => return Err(FormatError::UnknownField(other.to_owned())),
    })
}

fn is_float(field: Field) -> bool {
    matches!(field, Field::Created | Field::Milliseconds | Field::SinceStart)
}

fn is_number(field: Field) -> bool {
    is_float(field) || matches!(field, Field::LevelNumber | Field::Line | Field::Process | Field::ThreadNumber)
}

/// A numeric conversion of a text is refused here; Python would fail at every line.
fn is_compatible(kind: Kind, field: Field) -> bool {
    kind == Kind::Text || is_number(field)
}

impl FieldFormat {
    pub const PLAIN: FieldFormat =
        FieldFormat { kind: Kind::Text, fill: ' ', align: Align::Left, width: 0, precision: None, sign: None };

    pub fn write(&self, value: FieldValue, text: &mut String) {
        let value = match (self.kind, value) {
            (Kind::Text, FieldValue::Text(value)) => match self.precision {
                Some(length) => value.chars().take(length).collect(),
                None => value,
            },
            (_, FieldValue::Text(value)) => value,
            (Kind::Fixed, FieldValue::Float(value)) => format!("{value:.*}", self.precision.unwrap_or(6)),
            (Kind::Fixed, FieldValue::Integer(value)) => format!("{:.*}", self.precision.unwrap_or(6), value as f64),
            (_, FieldValue::Integer(value)) => value.to_string(),
            (Kind::Integer, FieldValue::Float(value)) => format!("{:.0}", value.trunc()),
            // The shortest form with a decimal point, as in Python.
            (Kind::Text, FieldValue::Float(value)) => format!("{value:?}"),
        };
        let value = match self.sign {
            Some(sign) if !value.starts_with('-') => format!("{sign}{value}"),
            _ => value,
        };
        self.pad(&value, text);
    }

    fn pad(&self, value: &str, text: &mut String) {
        let padding = self.width.saturating_sub(value.chars().count());
        let fill = |text: &mut String, number: usize| text.extend(std::iter::repeat_n(self.fill, number));
        match self.align {
            Align::Left => {
                text.push_str(value);
                fill(text, padding);
            }
            Align::Right => {
                fill(text, padding);
                text.push_str(value);
            }
            Align::Center => {
                fill(text, padding / 2);
                text.push_str(value);
                fill(text, padding - padding / 2);
            }
            Align::AfterSign => {
                let digits = value.trim_start_matches(['-', '+', ' ']);
                text.push_str(&value[..value.len() - digits.len()]);
                fill(text, padding);
                // Writing to a String cannot fail.
                let _ = text.write_str(digits);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_format_is_refused_with_its_reason() {
        let cases = [
            (Style::Percent, "%(nonsense)s", FormatError::UnknownField("nonsense".to_owned())),
            (Style::Percent, "a %(message", FormatError::Malformed(3)),
            (Style::Percent, "%(message)999999999999s", FormatError::Malformed(1)),
            (Style::Percent, "%(message)d", FormatError::Conversion("%d".to_owned(), "message".to_owned())),
            (Style::Brace, "ä {message", FormatError::Brace(3)),
            (Style::Brace, "} {message}", FormatError::Brace(1)),
            (Style::Brace, "{name.x}", FormatError::UnknownField("name.x".to_owned())),
            (Style::Brace, "{message:d}", FormatError::Conversion("message:d".to_owned(), "message".to_owned())),
            (Style::Dollar, "costs $ 5", FormatError::Dollar(7)),
            (Style::Dollar, "$nonsense", FormatError::UnknownField("nonsense".to_owned())),
        ];
        for (style, text, expected) in cases {
            assert_eq!(style.segments(text), Err(expected), "{text}");
        }
        assert_eq!(Style::parse("?"), Err(FormatError::Style("?".to_owned())));
    }
}
