//! Python literals in an ini file: tuples and dicts of strings, numbers and names, as arguments of handlers.

use std::collections::BTreeMap;

/// A value as in the mapping form of the file: strings without quotes, `None` as the empty string.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Text(String),
    List(Vec<Literal>),
    Map(BTreeMap<String, Literal>),
}

impl Literal {
    /// Parses one expression; an error names the text at which parsing failed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = LiteralParser { rest: text.trim_start() };
        let literal = parser.value()?;
        match parser.rest {
            "" => Ok(literal),
            rest => Err(format!("unsupported expression at `{rest}`: {EXPECTED_SYNTAX}")),
        }
    }

    /// The value on one line: items of a list are joined by commas, as lists are in ini files.
    pub fn text(&self) -> String {
        match self {
            Literal::Text(text) => text.clone(),
            Literal::List(items) => items.iter().map(Literal::text).collect::<Vec<_>>().join(","),
            Literal::Map(entries) => {
                let texts: BTreeMap<&String, String> = entries.iter().map(|(key, value)| (key, value.text())).collect();
                serde_json::to_string(&texts).unwrap_or_default()
            }
        }
    }
}

const EXPECTED_SYNTAX: &str = "expected quoted strings, numbers, names such as sys.stdout, tuples or dicts";
/// Maximum depth of nesting; no argument of a handler needs as much.
const MAX_DEPTH: usize = 16;

struct LiteralParser<'a> {
    rest: &'a str,
}

impl<'a> LiteralParser<'a> {
    fn value(&mut self) -> Result<Literal, String> {
        self.nested(MAX_DEPTH)
    }

    fn nested(&mut self, depth: usize) -> Result<Literal, String> {
        let depth = depth.checked_sub(1).ok_or("nested too deeply")?;
        let prefixed = self.rest.trim_start_matches(['u', 'U', 'r', 'R']);
        if prefixed.starts_with(['\'', '"']) {
            let raw = self.rest[..self.rest.len() - prefixed.len()].to_ascii_lowercase().contains('r');
            self.rest = prefixed;
            return self.texts(raw);
        }
        match self.rest.chars().next() {
            Some('(') => self.list(')', depth),
            Some('[') => self.list(']', depth),
            Some('{') => self.map(depth),
            Some(first) if first.is_alphanumeric() || matches!(first, '_' | '-' | '+') => {
                Ok(Literal::Text(self.name()))
            }
            _ => Err(format!("unsupported expression at `{}`: {EXPECTED_SYNTAX}", self.rest)),
        }
    }

    fn skip(&mut self, length: usize) {
        self.rest = self.rest[length..].trim_start();
    }

    /// A number, or a Python name such as `handlers.SysLogHandler.LOG_USER`.
    fn name(&mut self) -> String {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let name = &self.rest[..end];
        self.skip(end);
        match name {
            "None" => String::new(),
            number if number.starts_with(|c: char| c.is_ascii_digit()) => number.replace('_', ""),
            name => name.to_owned(),
        }
    }

    /// One string, or several adjacent ones, which are concatenated.
    fn texts(&mut self, raw: bool) -> Result<Literal, String> {
        let mut text = String::new();
        while let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
            let quoted = self.rest;
            let mut characters = quoted[1..].char_indices();
            let end = loop {
                match characters.next() {
                    Some((at, character)) if character == quote => break at + 2,
                    Some((_, '\\')) if !raw => match characters.next() {
                        Some((_, 'n')) => text.push('\n'),
                        Some((_, 't')) => text.push('\t'),
                        Some((_, other @ ('\\' | '\'' | '"'))) => text.push(other),
                        Some((_, other)) => text.extend(['\\', other]),
                        None => return Err(format!("unterminated string {quoted}")),
                    },
                    Some((_, character)) => text.push(character),
                    None => return Err(format!("unterminated string {quoted}")),
                }
            };
            self.skip(end);
        }
        Ok(Literal::Text(text))
    }

    fn list(&mut self, end: char, depth: usize) -> Result<Literal, String> {
        self.skip(1);
        let mut items = Vec::new();
        while !self.consume(end) {
            items.push(self.nested(depth)?);
            if !self.consume(',') && !self.rest.starts_with(end) {
                return Err(format!("`,` or `{end}` is expected at `{}`", self.rest));
            }
        }
        Ok(Literal::List(items))
    }

    fn map(&mut self, depth: usize) -> Result<Literal, String> {
        self.skip(1);
        let mut entries = BTreeMap::new();
        while !self.consume('}') {
            let key = self.nested(depth)?.text();
            if !self.consume(':') {
                return Err(format!("`:` is expected at `{}`", self.rest));
            }
            entries.insert(key, self.nested(depth)?);
            if !self.consume(',') && !self.rest.starts_with('}') {
                return Err(format!("`,` or `}}` is expected at `{}`", self.rest));
            }
        }
        Ok(Literal::Map(entries))
    }

    fn consume(&mut self, expected: char) -> bool {
        let is_next = self.rest.starts_with(expected);
        if is_next {
            self.skip(expected.len_utf8());
        }
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_as_python_reads_them() {
        let cases = [
            ("('/var/log/a, b.log', 'a', 1_000, 3,)", "/var/log/a, b.log,a,1000,3"),
            (r#"(r"C:\new", 'it''s', "a\tb")"#, "C:\\new,its,a\tb"),
            ("()", ""),
            (
                "( ('log.example.org', 514), handlers.SysLogHandler.LOG_DAEMON )",
                "log.example.org,514,handlers.SysLogHandler.LOG_DAEMON",
            ),
            ("{'delay': True, 'mode': None, \"address\": ('h', 1)}", r#"{"address":"h,1","delay":"True","mode":""}"#),
        ];
        for (text, expected) in cases {
            assert_eq!(Literal::parse(text).unwrap().text(), expected, "{text}");
        }
    }

    #[test]
    fn expressions_that_need_evaluation_are_refused() {
        let cases = [
            ("(os.environ['HOME'],)", "`,` or `)` is expected at `['HOME'],)`"),
            ("('a' + 'b',)", "`,` or `)` is expected at `+ 'b',)`"),
            ("('a", "unterminated string 'a"),
            ("(*x)", "unsupported expression at `*x)`"),
            ("() + ()", "unsupported expression at `+ ()`"),
            ("((((((((((((((((((1))))))))))))))))))", "nested too deeply"),
        ];
        for (text, expected) in cases {
            let error = Literal::parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
