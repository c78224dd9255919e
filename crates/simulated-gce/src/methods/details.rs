//! Metadata, tags, labels and service accounts of a new instance.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::methods::fields::Fields;
use crate::methods::spec::is_name;
use crate::server::response::{ApiError, ApiResult};

/// Bytes of one value, and of all metadata.
const MAX_VALUE_SIZE: usize = 256 << 10;
const MAX_METADATA_SIZE: usize = 512 << 10;
const MAX_LABELS: usize = 64;
const MAX_TAGS: usize = 64;

/// The items of the metadata, checked.
pub fn metadata_items<'a>(resource: &Fields<'a>) -> ApiResult<Vec<(&'a str, &'a str)>> {
    let Some(metadata) = resource.value("metadata") else { return Ok(Vec::new()) };
    let metadata = Fields::new(metadata, "resource.metadata", &["fingerprint", "items", "kind"])?;
    let mut items: Vec<(&str, &str)> = Vec::new();
    let (mut keys, mut size) = (BTreeSet::new(), 0);
    for (index, item) in metadata.list("items")?.iter().enumerate() {
        let fields = Fields::new(item, &format!("resource.metadata.items[{index}]"), &["key", "value"])?;
        let (key, value) = (fields.text("key")?.unwrap_or_default(), fields.text("value")?.unwrap_or_default());
        let is_key = (1..=128).contains(&key.len())
            && key.chars().all(|sign| sign.is_ascii_alphanumeric() || sign == '-' || sign == '_');
        if !is_key {
            return Err(fields.invalid("key", "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'"));
        }
        if !keys.insert(key) {
            let text = format!("Metadata has duplicate key: {key}");
            return Err(ApiError::invalid("resource.metadata", "", &text));
        }
        size += key.len() + value.len();
        if value.len() > MAX_VALUE_SIZE || size > MAX_METADATA_SIZE {
            return Err(ApiError::invalid(&fields.field("value"), "", "The metadata is too large."));
        }
        items.push((key, value));
    }
    Ok(items)
}

pub fn tags<'a>(resource: &Fields<'a>) -> ApiResult<Vec<&'a str>> {
    let Some(tags) = resource.value("tags") else { return Ok(Vec::new()) };
    let tags = Fields::new(tags, "resource.tags", &["fingerprint", "items"])?;
    let mut items: Vec<&str> = Vec::new();
    for (index, item) in tags.list("items")?.iter().enumerate() {
        let field = format!("resource.tags.items[{index}]");
        let tag = item.as_str().unwrap_or_default();
        if !is_name(tag) {
            let why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'";
            return Err(ApiError::invalid(&field, tag, why));
        }
        if items.contains(&tag) || items.len() == MAX_TAGS {
            return Err(ApiError::invalid(&field, tag, "Tags must be unique, and at most 64."));
        }
        items.push(tag);
    }
    Ok(items)
}

/// The labels, checked; `None` if there are none.
pub fn labels<'a>(resource: &Fields<'a>) -> ApiResult<Option<&'a Value>> {
    let Some(labels) = resource.value("labels") else { return Ok(None) };
    let error = |key: &str, why: &str| ApiError::invalid("resource.labels", key, why);
    let Some(map) = labels.as_object() else { return Err(error("", "Labels must be an object.")) };
    if map.len() > MAX_LABELS {
        return Err(error("", "There must be at most 64 labels."));
    }
    let is_part = |text: &str| {
        text.chars().count() <= 63
            && text.chars().all(|sign| sign == '-' || sign == '_' || sign.is_alphanumeric() && !sign.is_uppercase())
    };
    for (key, value) in map {
        let is_key = is_part(key) && key.starts_with(char::is_alphabetic);
        if !is_key {
            return Err(error(key, "Label key violates format constraints."));
        }
        if !value.as_str().is_some_and(is_part) {
            return Err(error(key, "Label value violates format constraints."));
        }
    }
    Ok((!map.is_empty()).then_some(labels))
}

/// The service accounts. The name `default` stands for the project's default account.
pub fn service_accounts(resource: &Fields<'_>, default: &str) -> ApiResult<Option<Value>> {
    let list = resource.list("serviceAccounts")?;
    if list.len() > 1 {
        return Err(resource.invalid("serviceAccounts", "At most one service account is supported."));
    }
    let Some(value) = list.first() else { return Ok(None) };
    let fields = Fields::new(value, "resource.serviceAccounts[0]", &["email", "scopes"])?;
    let email = match fields.text("email")? {
        None | Some("default") => default,
        Some(email) if email.contains('@') => email,
        Some(_) => return Err(fields.invalid("email", "The email address is not valid.")),
    };
    let scopes = fields.list("scopes")?;
    if !scopes.iter().all(|scope| scope.as_str().is_some_and(|scope| scope.starts_with("https://"))) {
        return Err(fields.invalid("scopes", "The scopes are not valid."));
    }
    Ok(Some(json!([{"email": email, "scopes": scopes}])))
}
