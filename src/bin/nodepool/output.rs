//! Output of a command: tables and sentences for people or one JSON document for programs, and notes on another stream.

use std::io::{self, Write};

use nodepool_model::report::list::{self, Column, Object};
use nodepool_model::report::table::Table;
use nodepool_zk::tools::scan::Unreadable;
use python_yaml::text::printable;
use serde_json::Value;

use crate::args::OutputFormat;

/// The result on one stream and notes on another, so that a result can be piped.
pub struct Output<'a> {
    pub format: OutputFormat,
    out: &'a mut dyn Write,
    diagnostics: &'a mut dyn Write,
    has_outcome: bool,
}

/// A list under construction: each row is formatted when it is added, so that no record is kept in memory.
pub struct TablePrinter<R: 'static> {
    columns: &'static [Column<R>],
    body: Body,
}

enum Body {
    Table(Table),
    /// Objects, with commas between them.
    Json(String),
}

impl<R> TablePrinter<R> {
    pub fn new(format: OutputFormat, columns: &'static [Column<R>]) -> Self {
        let body = match format {
            OutputFormat::Table => Body::Table(list::empty_table(columns)),
            OutputFormat::Json => Body::Json(String::new()),
        };
        Self { columns, body }
    }

    pub fn push(&mut self, row: &R) {
        match &mut self.body {
            Body::Table(table) => table.push(list::cells(self.columns, row)),
            Body::Json(rows) => {
                rows.push_str(if rows.is_empty() { "" } else { "," });
                let object = serde_json::to_string(&Object(self.columns, row));
                rows.push_str(&object.expect("cells are texts and whole numbers"));
            }
        }
    }
}

impl<'a> Output<'a> {
    pub fn new(format: OutputFormat, out: &'a mut dyn Write, diagnostics: &'a mut dyn Write) -> Self {
        Self { format, out, diagnostics, has_outcome: false }
    }

    /// Prints a list, which is an array in JSON.
    pub fn list<R>(&mut self, columns: &'static [Column<R>], rows: &[R]) -> io::Result<()> {
        let mut printer = TablePrinter::new(self.format, columns);
        rows.iter().for_each(|row| printer.push(row));
        self.print_table(printer)
    }

    pub fn print_table<R>(&mut self, printer: TablePrinter<R>) -> io::Result<()> {
        match printer.body {
            Body::Table(table) => writeln!(self.out, "{table}"),
            Body::Json(rows) => writeln!(self.out, "[{rows}]"),
        }
    }

    /// Prints a text for people only; programs receive everything by [`Output::outcome`].
    pub fn print(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        match self.format {
            OutputFormat::Table => writeln!(self.out, "{}", printable(text.to_string())),
            OutputFormat::Json => Ok(()),
        }
    }

    /// Prints a text for people only, without escaping: a script, a document.
    pub fn print_raw(&mut self, text: &str) -> io::Result<()> {
        match self.format {
            OutputFormat::Table => self.out.write_all(text.as_bytes()),
            OutputFormat::Json => Ok(()),
        }
    }

    /// Prints a question; the answer is expected on the same line.
    pub fn prompt(&mut self, question: &str) -> io::Result<()> {
        // The JSON result must not contain a question.
        let stream: &mut dyn Write = match self.format {
            OutputFormat::Table => self.out,
            OutputFormat::Json => self.diagnostics,
        };
        write!(stream, "{question}")?;
        stream.flush()
    }

    /// Prints, for programs only, the outcome of a command that changes something or may find nothing.
    pub fn outcome(&mut self, document: Value) -> io::Result<()> {
        match self.format {
            OutputFormat::Table => Ok(()),
            OutputFormat::Json => {
                self.has_outcome = true;
                writeln!(self.out, "{document}")
            }
        }
    }

    /// Prints one document of many, in every format.
    pub fn json_line(&mut self, document: &Value) -> io::Result<()> {
        writeln!(self.out, "{document}")
    }

    /// Prints the outcome of a failed command, unless the command has already printed one.
    pub fn failure(&mut self, document: Value) -> io::Result<()> {
        if self.has_outcome { Ok(()) } else { self.outcome(document) }
    }

    /// Prints a note, on the stream beside the result.
    pub fn note(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        // A note stays one line, even if a record contains line feeds.
        writeln!(self.diagnostics, "{}", printable(text.to_string()).replace('\n', "\\n"))
    }

    pub fn note_unreadable(&mut self, unreadable: &[Unreadable]) -> io::Result<()> {
        for Unreadable { path, reason } in unreadable {
            self.note(format_args!("WARNING {path} is skipped, it cannot be read: {reason}"))?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
