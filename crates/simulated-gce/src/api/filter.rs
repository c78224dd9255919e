//! Filters of lists: comparisons of AIP-160, and regular expressions with `eq` and `ne`.

use std::iter::Peekable;
use std::str::Chars;

use regex_lite::Regex;
use serde_json::Value;

use crate::server::response::{ApiError, ApiResult};

#[derive(Clone, Debug)]
pub enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Compare {
        field: String,
        operator: Operator,
        value: String,
    },
    /// The whole field has to match.
    Matches {
        field: String,
        pattern: Regex,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// `:`, which is true if the value is in a field with several, and `:*` if the field exists.
    Has,
}

impl Filter {
    pub fn parse(text: &str) -> ApiResult<Self> {
        let error = || ApiError::invalid("filter", text, "Invalid list filter expression.");
        let mut parser = Parser { tokens: tokens(text).ok_or_else(error)?, at: 0 };
        match parser.all().filter(|_| parser.at == parser.tokens.len()) {
            Some(filter) => Ok(filter),
            None => Err(error()),
        }
    }

    /// The name, if the filter admits only one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Compare { field, operator: Operator::Equal, value } if field == "name" => Some(value),
            Self::And(parts) => parts.iter().find_map(Self::name),
            Self::Or(parts) if parts.len() == 1 => parts[0].name(),
            Self::Compare { .. } | Self::Matches { .. } | Self::Or(_) | Self::Not(_) => None,
        }
    }

    pub fn admits(&self, resource: &Value) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.admits(resource)),
            Self::Or(parts) => parts.iter().any(|part| part.admits(resource)),
            Self::Not(part) => !part.admits(resource),
            Self::Matches { field, pattern } => values(resource, field).iter().any(|found| pattern.is_match(found)),
            Self::Compare { field, operator, value } => {
                let found = values(resource, field);
                let is = |accepted: fn(std::cmp::Ordering) -> bool| {
                    found.iter().any(|found| accepted(ordering(found, value)))
                };
                match operator {
                    Operator::Equal => is(|order| order.is_eq()),
                    Operator::Unequal => !is(|order| order.is_eq()),
                    Operator::Less => is(|order| order.is_lt()),
                    Operator::LessOrEqual => is(|order| order.is_le()),
                    Operator::Greater => is(|order| order.is_gt()),
                    Operator::GreaterOrEqual => is(|order| order.is_ge()),
                    Operator::Has if value == "*" => !found.is_empty(),
                    Operator::Has => found.iter().any(|found| found.contains(value.as_str())),
                }
            }
        }
    }
}

fn ordering(found: &str, wanted: &str) -> std::cmp::Ordering {
    match (found.parse::<f64>(), wanted.parse::<f64>()) {
        (Ok(found), Ok(wanted)) => found.total_cmp(&wanted),
        _ => found.cmp(wanted),
    }
}

/// The values of a field as text: each element of lists on the way.
fn values(resource: &Value, field: &str) -> Vec<String> {
    let mut found = vec![resource];
    for name in field.split('.') {
        let below = found.into_iter().flat_map(|value| match value {
            Value::Array(items) => items.iter().collect(),
            other => vec![other],
        });
        found = below.filter_map(|value| value.get(name)).collect();
    }
    let texts = found.into_iter().flat_map(|value| match value {
        Value::Array(items) => items.iter().collect(),
        other => vec![other],
    });
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    texts.map(text).collect()
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Open,
    Close,
    Operator(Operator),
    /// A word, or a quoted text.
    Text(String),
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(sign) = rest.peek().copied() {
        let token = match sign {
            ' ' => {
                rest.next();
                continue;
            }
            '(' => single(&mut rest, Token::Open),
            ')' => single(&mut rest, Token::Close),
            ':' => single(&mut rest, Token::Operator(Operator::Has)),
            '=' => single(&mut rest, Token::Operator(Operator::Equal)),
            '<' => either(&mut rest, Operator::LessOrEqual, Operator::Less),
            '>' => either(&mut rest, Operator::GreaterOrEqual, Operator::Greater),
            '!' => {
                rest.next();
                rest.next_if_eq(&'=')?;
                Token::Operator(Operator::Unequal)
            }
            '"' | '\'' => quoted(&mut rest)?,
            _ => {
                let mut word = String::new();
                while let Some(sign) = rest.next_if(|sign| !" ()=<>!:\"".contains(*sign)) {
                    word.push(sign);
                }
                Token::Text(word)
            }
        };
        tokens.push(token);
    }
    Some(tokens)
}

fn single(rest: &mut Peekable<Chars<'_>>, token: Token) -> Token {
    rest.next();
    token
}

/// A sign that `=` may follow.
fn either(rest: &mut Peekable<Chars<'_>>, with_equal: Operator, without: Operator) -> Token {
    rest.next();
    Token::Operator(if rest.next_if_eq(&'=').is_some() { with_equal } else { without })
}

fn quoted(rest: &mut Peekable<Chars<'_>>) -> Option<Token> {
    let quote = rest.next()?;
    let mut text = String::new();
    loop {
        match rest.next()? {
            sign if sign == quote => return Some(Token::Text(text)),
            '\\' => text.push(rest.next()?),
            sign => text.push(sign),
        }
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn word(&self) -> Option<&str> {
        match self.tokens.get(self.at)? {
            Token::Text(text) => Some(text),
            Token::Open | Token::Close | Token::Operator(_) => None,
        }
    }

    fn next_is(&mut self, token: &Token) -> bool {
        let is_next = self.tokens.get(self.at) == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    /// Expressions with AND between them, or nothing. OR binds its neighbours more closely.
    fn all(&mut self) -> Option<Filter> {
        let mut parts = vec![self.any()?];
        while self.at < self.tokens.len() && self.tokens[self.at] != Token::Close {
            if self.word() == Some("AND") {
                self.at += 1;
            }
            parts.push(self.any()?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Filter::And(parts) })
    }

    fn any(&mut self) -> Option<Filter> {
        let mut parts = vec![self.one()?];
        while self.word() == Some("OR") {
            self.at += 1;
            parts.push(self.one()?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Filter::Or(parts) })
    }

    fn one(&mut self) -> Option<Filter> {
        if self.word() == Some("NOT") {
            self.at += 1;
            return Some(Filter::Not(Box::new(self.one()?)));
        }
        if self.next_is(&Token::Open) {
            let inner = self.all()?;
            return self.next_is(&Token::Close).then_some(inner);
        }
        let field = self.word()?.to_owned();
        let operator = self.tokens.get(self.at + 1)?.clone();
        self.at += 2;
        let value = self.word()?.to_owned();
        self.at += 1;
        match operator {
            Token::Operator(operator) => Some(Filter::Compare { field, operator, value }),
            Token::Text(word) if word == "eq" || word == "ne" => {
                let pattern = Regex::new(&format!("^(?:{value})$")).ok()?;
                let matches = Filter::Matches { field, pattern };
                Some(if word == "eq" { matches } else { Filter::Not(Box::new(matches)) })
            }
            Token::Text(_) | Token::Open | Token::Close => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn filters_compare_fields_and_match_patterns() {
        let resource = json!({
            "name": "np-1", "status": "RUNNING", "id": "12", "labels": {"team": "ci"}, "tags": {"items": ["a", "b"]},
            "scheduling": {"automaticRestart": false},
        });
        for (text, expected) in [
            ("name=np-1", true),
            ("name = \"np-2\"", false),
            ("name eq np-.*", true),
            ("name eq np", false),
            ("name ne 'np-.*'", false),
            ("status != RUNNING", false),
            ("(status = RUNNING) (id > 9)", true),
            ("status=RUNNING AND id<9", false),
            ("status=STAGING OR id>=12", true),
            ("NOT (status=RUNNING)", false),
            ("labels.team:*", true),
            ("labels.owner:*", false),
            ("tags.items=b", true),
            ("scheduling.automaticRestart = false", true),
        ] {
            assert_eq!(Filter::parse(text).unwrap().admits(&resource), expected, "{text}");
        }
        for wrong in ["name", "name=", "(name=a", "name=a)", "name like a", "name eq (", "!", "name='a"] {
            assert!(Filter::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Filter::parse("(status=RUNNING) (name=np-1)").unwrap().name(), Some("np-1"));
    }
}
