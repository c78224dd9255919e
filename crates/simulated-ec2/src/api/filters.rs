//! Filters of the Describe calls.

use crate::region::tags::Tags;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

/// An object that Describe calls list.
pub trait Resource {
    fn id(&self) -> &str;

    fn tags(&self) -> &Tags;

    /// The values of a filter of this object; `None` if the filter is unknown.
    fn field(&self, name: &str) -> Option<Vec<String>>;
}

/// Filters that an object has to match all; of a filter's values it has to match one.
pub struct Filters(Vec<(String, Vec<String>)>);

impl Filters {
    pub fn new(form: &Form, name: &str) -> Self {
        let filter = |filter: &crate::server::form::Scope<'_>| {
            let values = filter.list("Value").into_iter().map(str::to_owned).collect();
            (filter.get("Name").unwrap_or_default().to_owned(), values)
        };
        Self(form.items(name).iter().map(filter).collect())
    }

    pub fn match_one<T: Resource>(&self, row: &T) -> ApiResult<bool> {
        for (name, patterns) in &self.0 {
            let is_matched = |value: &str| patterns.iter().any(|pattern| matches(pattern.as_bytes(), value.as_bytes()));
            let matched = if let Some(key) = name.strip_prefix("tag:") {
                row.tags().get(key).is_some_and(|value| is_matched(value))
            } else if name == "tag-key" {
                row.tags().keys().any(|key| is_matched(key))
            } else {
                let unknown = || ApiError::invalid(format!("The filter '{name}' is invalid"));
                row.field(name).ok_or_else(unknown)?.iter().any(|value| is_matched(value))
            };
            if !matched {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a text matches a pattern with `*` and `?`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The last `*`, and the text that it has matched so far.
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(b'?') => (at, from) = (at + 1, from + 1),
            Some(sign) if *sign == text[from] => (at, from) = (at + 1, from + 1),
            _ => {
                let Some((star_at, matched)) = star else { return false };
                star = Some((star_at, matched + 1));
                (at, from) = (star_at + 1, matched + 1);
            }
        }
    }
    pattern[at..].iter().all(|sign| *sign == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_have_wildcards() {
        for (pattern, text) in [("a*c", "abbc"), ("*", ""), ("a?c*", "abc"), ("*x*y", "1x2x3y"), ("abc", "abc")] {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [("a*c", "abb"), ("?", ""), ("abc", "abcd"), ("", "a")] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }
}
