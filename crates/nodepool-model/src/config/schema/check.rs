//! Schema validator: every key must be known and every value must have its type. Messages are those of Nodepool 11.

use super::dsl::{Key, RequiredKeys, Section, Shape};
use super::tables::azure::{AZURE, IBMVPC};
use super::tables::common::{EXAMPLE, METASTATIC, STATIC, TEST, TOP_LEVEL};
use super::tables::pods::{KUBERNETES, OPENSHIFT, OPENSHIFTPODS};
use super::tables::virtual_machines::{AWS, FAKE, GCE, OPENSTACK};
use crate::config::driver_limits::{self, driver_name};
use python_yaml::diagnostics::{Diagnostic, nearest};
use python_yaml::tree::{KeyKind, YamlKey, YamlNode, YamlValue, python_quoted};

/// An error for everything that the schema does not allow. A driver of this program that Nodepool 11 does not know
/// checks its own section.
pub fn check(root: &YamlNode, available_drivers: &[&str]) -> Vec<Diagnostic> {
    let mut check = Checker::default();
    check.value(&Shape::Map(&TOP_LEVEL), root, ValuePosition::Root);
    let mut problems = check.problems;
    for (index, provider) in root.get("providers").map(YamlNode::items).unwrap_or_default().iter().enumerate() {
        check_provider(index, provider, available_drivers, &mut problems);
    }
    problems
}

/// The schema of a driver's provider sections.
pub fn driver_schema(driver: &str) -> Option<&'static Section> {
    Some(match driver {
        "aws" => &AWS,
        "azure" => &AZURE,
        "example" => &EXAMPLE,
        "fake" => &FAKE,
        "openstack" => &OPENSTACK,
        "gce" => &GCE,
        "ibmvpc" => &IBMVPC,
        "kubernetes" => &KUBERNETES,
        "metastatic" => &METASTATIC,
        "openshift" => &OPENSHIFT,
        "openshiftpods" => &OPENSHIFTPODS,
        "static" => &STATIC,
        "test" => &TEST,
        _ => return None,
    })
}

fn check_provider(index: usize, provider: &YamlNode, available_drivers: &[&str], problems: &mut Vec<Diagnostic>) {
    if !matches!(provider.value, YamlValue::Map(_)) {
        let path = format!("data['providers'][{index}]");
        let help = format!("a provider must be a mapping, not {}", provider.value.type_name());
        problems.push(Diagnostic::error(provider.at, format!("expected a dictionary @ {path}")).path(path).help(help));
        return;
    }
    let driver = driver_name(provider);
    let Some(schema) = driver_schema(&driver) else {
        if !available_drivers.contains(&driver.as_str()) {
            problems.push(driver_limits::unknown_driver(provider, &driver, available_drivers));
        }
        return;
    };
    let mut check = Checker::default();
    check.value(&Shape::Map(schema), provider, ValuePosition::Root);
    let name = provider.get("name").and_then(YamlNode::scalar_text);
    let provider_label = name.map_or(format!("provider {}", index + 1), |name| format!("provider {name}"));
    problems.extend(check.problems.into_iter().map(|mut problem| {
        problem.help = format!("{provider_label}: {}", problem.help);
        problem
    }));
}

/// Position of a value; the texts depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValuePosition {
    Root,
    Value,
    Item,
}

#[derive(Default)]
struct Checker {
    /// Path of the current value: `['pools']`, `[0]`, `['name']`.
    path: Vec<String>,
    problems: Vec<Diagnostic>,
    /// Depth of the deepest problem, for the choice between alternatives.
    deepest: usize,
}

impl Checker {
    fn report(&mut self, node: &YamlNode, message: &str, position: ValuePosition, help: String) {
        let path = if self.path.is_empty() { String::new() } else { format!("data{}", self.path.concat()) };
        let suffix = if position == ValuePosition::Value { " for dictionary value" } else { "" };
        let location = if path.is_empty() { String::new() } else { format!(" @ {path}") };
        self.problems.push(Diagnostic::error(node.at, format!("{message}{suffix}{location}")).path(path).help(help));
        self.deepest = self.deepest.max(self.path.len());
    }

    fn wrong_type(&mut self, shape: &Shape, node: &YamlNode, position: ValuePosition) {
        let help = format!("expected {}, found {}", shape.meaning(), node.value.type_name());
        self.report(node, &format!("expected {}", shape.name()), position, help);
    }

    /// Runs a check one step further down the path.
    fn descend(&mut self, step: String, work: impl FnOnce(&mut Self)) {
        self.path.push(step);
        work(self);
        self.path.pop();
    }

    fn value(&mut self, shape: &Shape, node: &YamlNode, position: ValuePosition) {
        use YamlValue::*;
        match (shape, &node.value) {
            (Shape::Text, Text(_))
            | (Shape::Integer, Int(_) | Bool(_))
            | (Shape::Float, Float(_))
            | (Shape::Boolean, Bool(_))
            | (Shape::AnyMap, Map(_))
            | (Shape::AnyList, List(_))
            | (Shape::OneOfOrNull(_), Null) => {}
            (Shape::Convertible, _) if node.scalar_number().is_some() => {}
            // Python's `float()` accepts NaN.
            (Shape::Convertible, Float(_)) => {}
            (Shape::List(inner), List(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.descend(format!("[{index}]"), |check| check.value(inner, item, ValuePosition::Item));
                }
            }
            (Shape::TextMap(inner), Map(entries)) => {
                for (key, node) in entries {
                    self.descend(format!("[{}]", key.in_path()), |check| check.free_entry(inner, key, node));
                }
            }
            (Shape::Map(section), Map(_)) => self.section(section, node),
            (Shape::Either(shapes), _) => self.either(shapes, shape, node, position),
            (Shape::OneOf(words) | Shape::OneOfOrNull(words), Text(word)) if words.contains(&word.as_str()) => {}
            (Shape::OneOf(words) | Shape::OneOfOrNull(words), _) => {
                let close = node.as_text().and_then(|word| nearest(word, words.iter().copied()));
                let suggestion = close.map(|close| format!("; did you mean {close}?")).unwrap_or_default();
                self.report(node, "not a valid value", position, format!("expected {}{suggestion}", shape.meaning()));
            }
            (Shape::Pattern(pattern), Text(text)) if (pattern.matches)(text) => {}
            (Shape::Pattern(pattern), Text(_)) => {
                let message = format!("does not match regular expression {}", pattern.expression);
                self.report(node, &message, position, format!("expected {}", pattern.meaning));
            }
            (Shape::Pattern(pattern), other) => {
                let help = format!("expected {}, found {}", pattern.meaning, other.type_name());
                self.report(node, "expected string or buffer", position, help);
            }
            _ => self.wrong_type(shape, node, position),
        }
    }

    /// Checks an entry whose key is the operator's choice; the key must be text.
    fn free_entry(&mut self, shape: &Shape, key: &YamlKey, node: &YamlNode) {
        if key.kind == KeyKind::Text {
            self.value(shape, node, ValuePosition::Value);
        } else {
            let at = YamlNode::new(key.at, YamlValue::Null);
            self.report(&at, "expected str", ValuePosition::Item, "write the key in quotes".to_owned());
        }
    }

    fn either(&mut self, shapes: &[Shape], all: &Shape, node: &YamlNode, position: ValuePosition) {
        let mut best: Option<Checker> = None;
        for shape in shapes {
            let mut attempt = Checker { path: self.path.clone(), ..Checker::default() };
            attempt.value(shape, node, position);
            if attempt.problems.is_empty() {
                return;
            }
            if best.as_ref().is_none_or(|best| attempt.deepest > best.deepest) {
                best = Some(attempt);
            }
        }
        let Some(mut best) = best else { return };
        // The type of the value itself is wrong: name all accepted types.
        if best.deepest == self.path.len()
            && let [problem] = &mut best.problems[..]
        {
            problem.help = format!("expected {}, found {}", all.meaning(), node.value.type_name());
        }
        self.deepest = self.deepest.max(best.deepest);
        self.problems.extend(best.problems);
    }

    fn section(&mut self, section: &'static Section, node: &YamlNode) {
        for (key, value) in node.entries() {
            let known = section.key(&key.text).filter(|_| key.kind == KeyKind::Text);
            self.descend(format!("[{}]", key.in_path()), |check| match (known, &section.additional) {
                (Some(known), _) => check.value(&known.shape, value, ValuePosition::Value),
                (None, Some(rest)) => check.free_entry(rest, key, value),
                (None, None) => check.extra_key(section, key),
            });
        }
        for key in section.all_keys().filter(|key| key.required && node.get(key.name).is_none()) {
            self.missing_key(section, key.name, node);
        }
        self.groups(section, node);
        for need in section.required_keys {
            self.required_keys(section, need, node);
        }
    }

    fn extra_key(&mut self, section: &Section, key: &YamlKey) {
        let names = || section.all_keys().map(|key| key.name);
        let hint = match nearest(&key.text, names()) {
            Some(close) => format!("did you mean {close}?"),
            None => format!("the keys are {}", names().collect::<Vec<_>>().join(", ")),
        };
        let at = YamlNode::new(key.at, YamlValue::Null);
        let help = format!("{} has no key {}; {hint}", section.title, key.in_path());
        self.report(&at, "extra keys not allowed", ValuePosition::Item, help);
    }

    fn missing_key(&mut self, section: &Section, name: &str, node: &YamlNode) {
        let help = format!("{} needs `{name}`", section.title);
        self.descend(format!("[{}]", python_quoted(name)), |check| {
            check.report(node, "required key not provided", ValuePosition::Item, help);
        });
    }

    fn groups(&mut self, section: &Section, node: &YamlNode) {
        let mut done: Vec<&str> = Vec::new();
        for group in section.all_keys().filter_map(|key| key.group) {
            if done.contains(&group) {
                continue;
            }
            done.push(group);
            let member = |key: &&Key| key.group == Some(group) && node.get(key.name).is_some();
            let given: Vec<&str> = section.all_keys().filter(member).map(|key| key.name).collect();
            if given.len() > 1 {
                let message = format!("two or more values in the same group of exclusion '{group}'");
                let help = format!("{} can have only one of {}", section.title, given.join(", "));
                self.descend(format!("[<{group}>]"), |check| check.report(node, &message, ValuePosition::Item, help));
            }
        }
    }

    fn required_keys(&mut self, section: &Section, need: &RequiredKeys, node: &YamlNode) {
        if need.keys.iter().any(|key| node.get(key).is_some()) {
            return;
        }
        let keys = need.keys.join(", ");
        let (message, step) = match need.message {
            Some(message) => {
                let quoted: Vec<String> = need.keys.iter().map(|key| python_quoted(key)).collect();
                (message, format!("[Any({}, msg=None)]", quoted.join(", ")))
            }
            None => ("required key not provided", format!("[{}]", python_quoted(need.keys[0]))),
        };
        let help = format!("{} needs at least one of {keys}", section.title);
        self.descend(step, |check| check.report(node, message, ValuePosition::Item, help));
    }
}
