//! Reference checks of the validator: images and labels that a section names must be defined, and defined once.

use std::collections::BTreeSet;

use super::driver_limits::driver_name;
use python_yaml::diagnostics::{Diagnostic, nearest};
use python_yaml::tree::YamlNode;

/// An error for every dangling reference and every duplicate diskimage.
pub fn check(root: &YamlNode) -> Vec<Diagnostic> {
    let diskimages = names(root, "diskimages");
    let labels = names(root, "labels");
    let mut problems = Vec::new();
    for provider in items(root, "providers").filter(|provider| driver_name(provider) == "openstack") {
        check_openstack(provider, &diskimages, &labels, &mut problems);
    }
    let mut seen = BTreeSet::new();
    for image in items(root, "diskimages") {
        if let Some(name) = image.get("name").and_then(YamlNode::scalar_text)
            && !seen.insert(name.clone())
        {
            let problem = Diagnostic::error(image.at, format!("diskimage {name} already defined"));
            problems.push(problem.help("the last definition counts; rename or remove one"));
        }
    }
    for image in items(root, "diskimages") {
        let Some(parent) = image.get("parent").filter(|parent| parent.is_truthy()) else { continue };
        let (name, text) = (name_of(image), parent.scalar_text().unwrap_or_default());
        if !diskimages.contains(&text) {
            let message = format!("diskimage {name} has non-existant parent: {text}");
            problems.push(Diagnostic::error(parent.at, message).help(suggestion(&text, &diskimages)));
        }
    }
    problems
}

fn check_openstack(
    provider: &YamlNode,
    diskimages: &BTreeSet<String>,
    labels: &BTreeSet<String>,
    problems: &mut Vec<Diagnostic>,
) {
    let provider_name = name_of(provider);
    for image in items(provider, "diskimages") {
        let name = name_of(image);
        if !diskimages.contains(&name) {
            let message =
                format!("diskimage {name} in provider {provider_name} is not defined in the main diskimages list");
            let at = image.get("name").map_or(image.at, |node| node.at);
            problems.push(Diagnostic::error(at, message).help(suggestion(&name, diskimages)));
        }
    }
    for label in items(provider, "pools").flat_map(|pool| items(pool, "labels")) {
        let name = name_of(label);
        if !labels.contains(&name) {
            let message = format!("label {name} in provider {provider_name} not in top-level labels");
            let at = label.get("name").map_or(label.at, |node| node.at);
            problems.push(Diagnostic::error(at, message).help(suggestion(&name, labels)));
        }
        let Some(image) = label.get("diskimage").filter(|image| image.is_truthy()) else { continue };
        let image_name = image.scalar_text().unwrap_or_default();
        if !diskimages.contains(&image_name) {
            let message = format!(
                "label {name} in provider {provider_name} uses diskimage {image_name} which is not defined in the \
                 main diskimages list"
            );
            problems.push(Diagnostic::error(image.at, message).help(suggestion(&image_name, diskimages)));
        }
    }
}

fn items<'a>(section: &'a YamlNode, key: &str) -> impl Iterator<Item = &'a YamlNode> {
    section.get(key).map(YamlNode::items).unwrap_or_default().iter()
}

fn name_of(section: &YamlNode) -> String {
    section.get("name").and_then(YamlNode::scalar_text).unwrap_or_default()
}

fn names(root: &YamlNode, key: &str) -> BTreeSet<String> {
    items(root, key).filter_map(|section| section.get("name")?.scalar_text()).collect()
}

fn suggestion(name: &str, known: &BTreeSet<String>) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(close) => format!("did you mean {close}?"),
        None => "define it, or correct the name".to_owned(),
    }
}
