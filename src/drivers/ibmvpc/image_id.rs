//! Ids of what an upload makes, in the order in which it is made: an object, an image.

use nodepool_model::records::ids::ExternalId;

const OBJECT: &str = "object:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageId {
    /// The key of an object in the bucket.
    Object(String),
    Image(String),
}

impl ImageId {
    pub fn of(id: &ExternalId) -> Self {
        let text = id.to_string();
        match text.strip_prefix(OBJECT) {
            Some(key) => ImageId::Object(key.to_owned()),
            None => ImageId::Image(text),
        }
    }

    pub fn to_external(&self) -> ExternalId {
        match self {
            ImageId::Object(key) => ExternalId::text(format!("{OBJECT}{key}")),
            ImageId::Image(id) => ExternalId::text(id.clone()),
        }
    }
}
