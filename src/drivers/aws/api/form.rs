//! Parameters of a call in EC2's query protocol: names with numbered parts, such as `TagSpecification.1.Tag.2.Key`.

use std::collections::BTreeMap;
use std::fmt;

/// The version of EC2's API.
const VERSION: &str = "2016-11-15";

/// The parameters of one call. User data may contain secrets, so values are not shown.
#[derive(Clone, PartialEq)]
pub struct Form {
    pub action: &'static str,
    parameters: Vec<(String, String)>,
}

impl Form {
    pub fn new(action: &'static str) -> Self {
        let fixed = [("Action", action), ("Version", VERSION)].map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { action, parameters: fixed.into() }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.add(name, value);
        self
    }

    pub fn add(&mut self, name: &str, value: impl ToString) {
        self.parameters.push((name.to_owned(), value.to_string()));
    }

    pub fn add_given(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    /// A list of values: `name.1`, `name.2` and so on.
    pub fn with_list(mut self, name: &str, values: impl IntoIterator<Item = impl ToString>) -> Self {
        for (index, value) in values.into_iter().enumerate() {
            self.add(&format!("{name}.{}", index + 1), value);
        }
        self
    }

    /// Tags of the objects that the call creates, by their type.
    pub fn add_tags(&mut self, types: &[&str], tags: &BTreeMap<String, String>) {
        for (index, kind) in types.iter().enumerate() {
            let prefix = format!("TagSpecification.{}", index + 1);
            self.add(&format!("{prefix}.ResourceType"), kind);
            for (index, (key, value)) in tags.iter().enumerate() {
                self.add(&format!("{prefix}.Tag.{}.Key", index + 1), key);
                self.add(&format!("{prefix}.Tag.{}.Value", index + 1), value);
            }
        }
    }

    pub fn encoded(&self) -> String {
        let mut encoder = form_urlencoded::Serializer::new(String::new());
        encoder.extend_pairs(&self.parameters);
        encoder.finish()
    }
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Form").field("action", &self.action).finish_non_exhaustive()
    }
}
