//! Tags of an object, and their rules.

use std::collections::BTreeMap;

use crate::api::xml::Xml;
use crate::server::form::{Form, Scope};
use crate::server::response::{ApiError, ApiResult};

pub type Tags = BTreeMap<String, String>;

/// Maximum number of tags of an object.
const MAX_TAGS: usize = 50;

/// The pairs of `Tag.1.Key`, `Tag.1.Value` and so on.
pub fn of_scope(scope: &Scope<'_>) -> ApiResult<Tags> {
    let mut tags = Tags::new();
    for tag in scope.items("Tag") {
        let key = tag.get("Key").unwrap_or_default();
        check_key(key)?;
        let value = tag.get("Value").unwrap_or_default();
        if value.chars().count() > 256 {
            let text = format!("Tag value exceeds the maximum length of 256 characters: {value}");
            return Err(ApiError::invalid(text));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(ApiError::invalid(format!("Duplicate tag key '{key}' specified.")));
        }
    }
    check_count(&tags)?;
    Ok(tags)
}

fn check_key(key: &str) -> ApiResult<()> {
    if key.is_empty() || key.chars().count() > 127 {
        return Err(ApiError::invalid("Tag key must be between 1 and 127 characters long."));
    }
    if key.starts_with("aws:") {
        return Err(ApiError::invalid("Tag keys starting with 'aws:' are reserved for internal use"));
    }
    Ok(())
}

pub fn check_count(tags: &Tags) -> ApiResult<()> {
    let own = tags.keys().filter(|key| !key.starts_with("aws:")).count();
    if own > MAX_TAGS {
        return Err(ApiError::new("TagLimitExceeded", format!("More than {MAX_TAGS} tags specified")));
    }
    Ok(())
}

/// The tags of `TagSpecification.N`, by resource type. Other resource types than the allowed ones are refused.
pub fn specified(form: &Form, allowed: &[&str]) -> ApiResult<BTreeMap<String, Tags>> {
    let mut specified = BTreeMap::new();
    for specification in form.items("TagSpecification") {
        let resource = specification.get("ResourceType").unwrap_or_default();
        if !allowed.contains(&resource) {
            let text = format!("'{resource}' is not a valid taggable resource type for this operation.");
            return Err(ApiError::invalid(text));
        }
        if specified.insert(resource.to_owned(), of_scope(&specification)?).is_some() {
            let text = format!("Duplicate tag specifications found for resource type '{resource}'.");
            return Err(ApiError::invalid(text));
        }
    }
    Ok(specified)
}

/// The tags of `TagSpecification.N` for the only resource type of a call.
pub fn specified_for(form: &Form, resource: &str) -> ApiResult<Tags> {
    Ok(specified(form, &[resource])?.remove(resource).unwrap_or_default())
}

pub fn write(xml: &mut Xml, tags: &Tags) {
    if !tags.is_empty() {
        xml.items("tagSet", tags, |xml, (key, value)| {
            xml.text("key", key).text("value", value);
        });
    }
}
