//! Top-level diskimages that are not abstract, with inherited values and the variables of the secure file.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::DiskImage;
use crate::config::diagnostics::{Diagnostics, Source};
use crate::records::ids::ImageName;
use crate::records::time::Seconds;
use python_yaml::diagnostics::nearest;
use python_yaml::tree::YamlNode;

/// Every image that can be built.
pub(crate) fn resolve(root: &YamlNode, diagnostics: &mut Diagnostics) -> BTreeMap<ImageName, DiskImage> {
    let mut sections: BTreeMap<String, &YamlNode> = BTreeMap::new();
    let mut concrete: Vec<(String, &YamlNode)> = Vec::new();
    for section in diagnostics.mappings(root, "diskimages", "a diskimage") {
        let Some(name) = diagnostics.required(section, "name", "a diskimage") else { continue };
        if sections.insert(name.clone(), section).is_some() {
            diagnostics.warning(section.at, format!("diskimage {name} already defined"), "the last definition counts");
        }
        if !section.boolean("abstract").unwrap_or(false) {
            concrete.push((name, section));
        }
    }
    let mut images = BTreeMap::new();
    for (name, section) in concrete {
        let mut image = DiskImage::new(&name);
        for layer in lineage(&name, section, &sections, diagnostics).into_iter().rev() {
            apply(&mut image, layer, diagnostics);
        }
        images.insert(image.name.clone(), image);
    }
    images
}

/// Adds the variables of a secure file. They are not inherited, because inheritance is resolved earlier.
pub(crate) fn apply_secure(
    secure: Source<'_>,
    images: &mut BTreeMap<ImageName, DiskImage>,
    diagnostics: &mut Diagnostics,
) {
    for section in diagnostics.mappings(secure.root, "diskimages", "a diskimage") {
        let Some(name) = diagnostics.required(section, "name", "a diskimage of the secure file") else { continue };
        let variables = variables(section, diagnostics);
        if section.get("env-vars").is_none() {
            diagnostics.missing_key(section.at, "env-vars", "a diskimage of the secure file needs `env-vars`");
        }
        match images.get_mut(name.as_str()) {
            Some(image) => image.env_vars.extend(variables),
            None => {
                let known = images.keys().map(ImageName::as_str);
                let help = match nearest(&name, known) {
                    Some(other) => format!("did you mean {other}?"),
                    None => "it must be a diskimage of the main file that is not abstract".to_owned(),
                };
                diagnostics.error(section.at, format!("{}: unknown diskimage {name}", secure.file), help);
            }
        }
    }
}

/// An image and its ancestors, the most distant one last.
fn lineage<'a>(
    name: &str,
    section: &'a YamlNode,
    sections: &BTreeMap<String, &'a YamlNode>,
    diagnostics: &mut Diagnostics,
) -> Vec<&'a YamlNode> {
    let mut line = vec![section];
    let mut visited = BTreeSet::from([name.to_owned()]);
    let (mut current, mut child) = (section, name.to_owned());
    while let Some(node) = current.get("parent").filter(|parent| parent.is_truthy()) {
        let Some(parent) = diagnostics.or_default(current.text("parent")) else { break };
        let Some(found) = sections.get(&parent) else {
            let close = nearest(&parent, sections.keys().map(String::as_str));
            let suggestion = close.map(|close| format!(", did you mean {close}?")).unwrap_or_default();
            diagnostics.missing_key(
                node.at,
                &parent,
                format!("diskimage {child} has a parent that does not exist{suggestion}"),
            );
            break;
        };
        if !visited.insert(parent.clone()) {
            let help = format!("the chain of parents contains {parent} twice");
            diagnostics.error(node.at, format!("diskimage {name} is its own ancestor"), help);
            break;
        }
        line.push(found);
        (current, child) = (found, parent);
    }
    line
}

/// Applies one section over inherited values. Most keys count only with a truthy value: no child can unset `pause`.
fn apply(image: &mut DiskImage, section: &YamlNode, diagnostics: &mut Diagnostics) {
    let truthy = |key: &str| section.get(key).is_some_and(YamlNode::is_truthy);
    let mut text = |key: &str| if truthy(key) { diagnostics.or_default(section.text(key)) } else { None };
    if let Some(command) = text("dib-cmd") {
        image.dib_cmd = command;
    }
    if let Some(path) = text("python-path") {
        image.python_path = path;
    }
    if let Some(release) = text("release") {
        image.release = release;
    }
    if let Some(username) = text("username") {
        image.username = username;
    }
    image.shell_type = text("shell-type").or(image.shell_type.take());
    let mut seconds =
        |key: &str| if truthy(key) { diagnostics.or_default(section.number(key)).map(Seconds) } else { None };
    image.build_timeout = seconds("build-timeout").unwrap_or(image.build_timeout);
    image.rebuild_age = seconds("rebuild-age").unwrap_or(image.rebuild_age);
    image.pause |= truthy("pause");
    image.elements.extend(diagnostics.or_default(section.texts("elements")));
    image.env_vars.extend(variables(section, diagnostics));
    if truthy("formats") {
        image.formats = diagnostics.or_default(section.texts("formats")).into_iter().collect();
    }
    if truthy("keep-formats") {
        image.keep_formats = diagnostics.or_default(section.texts("keep-formats")).into_iter().collect();
    }
    if section.given("delete-after-upload").is_some() {
        image.delete_after_upload = truthy("delete-after-upload");
    }
    let metadata = diagnostics.or_default(section.map("metadata").map(<[_]>::to_vec));
    image.metadata = metadata.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect();
}

/// Environment variables. No message contains their values.
fn variables(section: &YamlNode, diagnostics: &mut Diagnostics) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (key, node) in diagnostics.or_default(section.map("env-vars").map(<[_]>::to_vec)) {
        match node.scalar_text() {
            Some(value) => variables.push((key.text, value)),
            None if node.is_null() => variables.push((key.text, String::new())),
            None => {
                let help = format!("the variable {} must be text, not {}", key.text, node.value.type_name());
                diagnostics.error(node.at, "expected str for dictionary value", help);
            }
        }
    }
    variables
}
