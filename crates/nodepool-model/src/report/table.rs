//! Table printer for lists, and Python's notation of the values in them.

use std::fmt::{self, Write};

use python_yaml::text::{escape, is_unsafe, printable};
use serde_json::{Map, Value};
use unicode_width::UnicodeWidthChar;

/// Headers and rows of text, shown as a grid with rules around the header and at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<'a>(headers: impl IntoIterator<Item = &'a str>) -> Self {
        Self { headers: headers.into_iter().map(str::to_owned).collect(), rows: Vec::new() }
    }

    pub fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().map(printable).collect();
        assert_eq!(row.len(), self.headers.len(), "a row has a cell for every header");
        self.rows.push(row);
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.headers.iter().map(|header| text_width(header)).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(text_width(cell));
            }
        }
        widths
    }
}

/// The grid ends without a newline.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let mut rule = String::from("+");
        for width in &widths {
            rule.extend(std::iter::repeat_n('-', width + 2));
            rule.push('+');
        }
        if widths.is_empty() {
            rule.push('+');
        }
        writeln!(f, "{rule}")?;
        write_row(f, &self.headers, &widths)?;
        writeln!(f, "{rule}")?;
        for row in &self.rows {
            match row.is_empty() {
                // A row without cells is an empty line.
                true => writeln!(f)?,
                false => write_row(f, row, &widths)?,
            }
        }
        f.write_str(&rule)
    }
}

/// Writes a row, which has as many lines as its tallest cell.
fn write_row(f: &mut fmt::Formatter<'_>, cells: &[String], widths: &[usize]) -> fmt::Result {
    let height = cells.iter().map(|cell| 1 + cell.matches('\n').count()).max().unwrap_or(1);
    for line in 0..height {
        f.write_char('|')?;
        for (cell, width) in cells.iter().zip(widths) {
            let text = if height == 1 { cell } else { cell.split('\n').nth(line).unwrap_or("") };
            f.write_char(' ')?;
            f.write_str(text)?;
            write_spaces(f, width - display_width(text) + 1)?;
            f.write_char('|')?;
        }
        if cells.is_empty() {
            f.write_char('|')?;
        }
        f.write_char('\n')?;
    }
    Ok(())
}

/// Writes spaces. Rust's own padding is limited to 65,535 columns; texts of records are not.
fn write_spaces(f: &mut fmt::Formatter<'_>, mut count: usize) -> fmt::Result {
    const CHUNK: &str = "                                                                ";
    while count > CHUNK.len() {
        f.write_str(CHUNK)?;
        count -= CHUNK.len();
    }
    f.write_str(&CHUNK[..count])
}

/// Width of the widest line, in columns.
fn text_width(text: &str) -> usize {
    text.split('\n').map(display_width).max().unwrap_or(0)
}

fn display_width(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.chars().map(|character| character.width().unwrap_or(0)).sum()
}

/// Python's `str()` for a value of a record.
pub fn python_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => {
            let mut text = String::new();
            write_repr(&mut text, other);
            text
        }
    }
}

/// Python's `str()` for a mapping.
pub fn python_mapping(map: &Map<String, Value>) -> String {
    let mut text = String::new();
    write_mapping(&mut text, map);
    text
}

/// Python's `repr()`: text in quotes, mappings and lists in Python's notation.
fn write_repr(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_quoted(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_repr(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => write_mapping(out, map),
    }
}

fn write_mapping(out: &mut String, map: &Map<String, Value>) {
    out.push('{');
    for (index, (key, value)) in map.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { ", " });
        write_quoted(out, key);
        out.push_str(": ");
        write_repr(out, value);
    }
    out.push('}');
}

fn write_number(out: &mut String, number: &serde_json::Number) {
    let text = number.to_string();
    match text.split_once('e') {
        // Python writes the exponent with a sign and at least two digits, and no `.0` before it.
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent.trim_start_matches('+')),
            };
            let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
            out.push_str(&format!("{mantissa}e{sign}{digits:0>2}"));
        }
        None => out.push_str(&text),
    }
}

/// Writes a text in single quotes, or in double quotes if it contains a single quote and no double quote.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => {
                out.push('\\');
                out.push(same);
            }
            other if is_unsafe(other) => escape(out, other),
            other => out.push(other),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn grid(headers: &[&str], rows: &[&[&str]]) -> String {
        let mut table = Table::new(headers.iter().copied());
        for row in rows {
            table.push(row.iter().map(|cell| (*cell).to_owned()));
        }
        table.to_string()
    }

    #[test]
    fn without_rows_there_are_the_header_and_three_rules() {
        assert_eq!(grid(&["ID", "Age"], &[]), "+----+-----+\n| ID | Age |\n+----+-----+\n+----+-----+");
    }

    #[test]
    fn without_columns_the_grid_is_empty() {
        assert_eq!(grid(&[], &[]), "++\n||\n++\n++");
    }

    #[test]
    fn wide_combining_and_multi_line_cells_keep_the_grid_straight() {
        let expected = "\
+------+-----+
| ID   | Age |
+------+-----+
| 节点 | e\u{301}   |
| a    | 1   |
|      | 22  |
+------+-----+";
        assert_eq!(grid(&["ID", "Age"], &[&["节点", "e\u{301}"], &["a", "1\n22"]]), expected);
    }

    #[test]
    fn a_cell_may_be_wider_than_any_screen() {
        let wide = "x".repeat(100_000);
        let text = grid(&["ID"], &[&[&wide], &["1"]]);
        assert!(text.lines().all(|line| line.len() == 100_004), "every line is as wide as the widest");
    }

    #[test]
    fn a_record_cannot_steer_the_terminal() {
        let text = grid(&["ID"], &[&["\u{1b}[2Jx\u{202e}\r"]]);
        assert!(text.contains("| \\x1b[2Jx\\u202e\\x0d |"), "{text}");
    }

    #[test]
    fn values_read_as_python_shows_them() {
        let cases = [
            (json!(null), "None"),
            (json!(true), "True"),
            (json!("plain 'text'"), "plain 'text'"),
            (json!(1.5), "1.5"),
            (json!(1e30), "1e+30"),
            (json!(2.5e-7), "2.5e-07"),
            (json!({"a": [1, null, "x"], "b": {"it's": false}}), "{'a': [1, None, 'x'], 'b': {\"it's\": False}}"),
            (json!(["\\ \n ' \" \u{7}é"]), "['\\\\ \\n \\' \" \\x07é']"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_text(&value), expected, "{value}");
        }
    }
}
