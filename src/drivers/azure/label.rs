//! The labels of an azure provider: size, image, addresses and what is passed to the node.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nodepool_driver::facts::{LabelImage, Login};
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::LabelName;
use python_yaml::tree::YamlNode;
use serde_json::{Value, json};

use super::config::LabelSource;
use crate::common::python_format::texts;

#[derive(Clone, Debug, PartialEq)]
pub struct AzureLabel {
    pub name: LabelName,
    pub image: LabelImage,
    pub source: ImageSource,
    pub login: Login,
    pub access: ImageAccess,
    /// Such as `Standard_D2s_v3`.
    pub size: String,
    pub tags: BTreeMap<String, String>,
    pub dynamic_tags: BTreeMap<String, String>,
    /// Encoded, as the next one.
    pub user_data: Option<Data>,
    pub custom_data: Option<Data>,
    pub volume_gb: Option<i64>,
    pub network: PoolNetwork,
    /// Why no node of this label can be launched, according to the configuration.
    pub problem: Option<String>,
}

/// Data that is passed to a node. It may contain secrets, and is not shown.
#[derive(Clone, PartialEq)]
pub struct Data(pub String);

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Data")
    }
}

/// The access for the first login.
#[derive(Clone, Default, PartialEq)]
pub struct ImageAccess {
    pub key: Option<String>,
    pub password: Option<String>,
    pub generates_password: bool,
}

impl fmt::Debug for ImageAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageAccess").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The image of a node's disk.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageSource {
    /// As Azure's API has it: an id, a platform image, or an image of a gallery.
    Reference(Value),
    /// The image of the resource group with the highest name that matches.
    Filter(ImageFilter),
    /// Uploaded by the builder.
    Uploaded,
    Missing,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageFilter {
    pub name: Option<String>,
    pub location: Option<String>,
    pub tags: BTreeMap<String, String>,
}

impl ImageSource {
    pub fn read(image: &YamlNode, diagnostics: &mut Diagnostics) -> Self {
        if let Some(reference) = image.given("image-reference") {
            return Self::Reference(reference.to_json());
        }
        if let Some(filter) = image.given("image-filter") {
            let name = diagnostics.or_default(filter.text("name"));
            let location = diagnostics.or_default(filter.text("location"));
            return Self::Filter(ImageFilter { name, location, tags: texts(filter, "tags") });
        }
        for (key, kind, property) in [
            ("community-gallery-image", "CommunityGalleries", "communityGalleryImageId"),
            ("shared-gallery-image", "SharedGalleries", "sharedGalleryImageId"),
        ] {
            if let Some(gallery) = image.given(key) {
                let owner = diagnostics.required(gallery, "gallery-name", "a gallery image").unwrap_or_default();
                let name = diagnostics.required(gallery, "name", "a gallery image").unwrap_or_default();
                let version = diagnostics.or_default(gallery.text("version")).filter(|version| !version.is_empty());
                let version = version.map(|version| format!("/Versions/{version}")).unwrap_or_default();
                return Self::Reference(json!({property: format!("/{kind}/{owner}/Images/{name}{version}")}));
            }
        }
        match diagnostics.or_default(image.text("image-id")) {
            Some(id) => Self::Reference(json!({"id": id})),
            None => Self::Missing,
        }
    }
}

/// Addresses of the nodes of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolNetwork {
    pub ipv4: bool,
    pub ipv6: bool,
    pub public_ipv4: bool,
    pub public_ipv6: bool,
    pub use_internal_ip: bool,
    pub host_key_checking: bool,
}

impl PoolNetwork {
    pub fn read(pool: &PoolConfig, provider: &ProviderConfig) -> Self {
        let flag = |key: &str, default: bool| {
            pool.section.boolean(key).or_else(|| provider.section.boolean(key)).unwrap_or(default)
        };
        let (public_ipv4, public_ipv6) = (flag("public-ipv4", true), flag("public-ipv6", false));
        let (ipv4, ipv6) = (flag("ipv4", false) || public_ipv4, flag("ipv6", false) || public_ipv6);
        Self {
            ipv4: ipv4 || !ipv6,
            ipv6,
            public_ipv4,
            public_ipv6,
            use_internal_ip: flag("use-internal-ip", false),
            host_key_checking: flag("host-key-checking", true),
        }
    }
}

pub fn read_label(
    node: &YamlNode,
    name: LabelName,
    image: Result<LabelSource, String>,
    network: &PoolNetwork,
    diagnostics: &mut Diagnostics,
) -> AzureLabel {
    let mut problem = image.as_ref().err().cloned();
    let missing = || (LabelImage::Cloud(String::new()), ImageSource::Missing, Login::default(), ImageAccess::default());
    let (image, source, login, access) = image.unwrap_or_else(|_| missing());
    let hardware = node.given("hardware-profile");
    let size = hardware.and_then(|hardware| diagnostics.or_default(hardware.text("vm-size"))).unwrap_or_default();
    if size.is_empty() {
        let text = format!("label {name} has no vm-size");
        let help = "add `hardware-profile: {vm-size: …}`; the label is out of service";
        diagnostics.warning(node.at, text.clone(), help);
        problem.get_or_insert(text);
    }
    if problem.is_none() && login.username.as_deref().is_none_or(str::is_empty) {
        let text = format!("the image of label {name} has no username");
        diagnostics.warning(node.at, text.clone(), "add `username` to the image; the label is out of service");
        problem = Some(text);
    }
    let volume_gb = diagnostics.or_default(node.integer("volume-size"));
    if let Some(size) = volume_gb.filter(|size| *size < 0) {
        let at = node.get("volume-size").map_or(node.at, |value| value.at);
        diagnostics.error(at, format!("a volume-size of {size} GB is not possible"), "give the size in GB");
    }
    let mut data = |key: &str| {
        let text = diagnostics.or_default(node.text(key)).filter(|text| !text.is_empty());
        text.map(|text| Data(STANDARD.encode(text)))
    };
    let (user_data, custom_data) = (data("user-data"), data("custom-data"));
    AzureLabel {
        name,
        image,
        source,
        login,
        access,
        size,
        tags: texts(node, "tags"),
        dynamic_tags: texts(node, "dynamic-tags"),
        user_data,
        custom_data,
        volume_gb: volume_gb.filter(|size| *size > 0),
        network: network.clone(),
        problem,
    }
}
