//! The knob `document_links`: the links of version documents, which real clouds behind proxies often get wrong.

use std::fmt::{self, Display};
use std::str::FromStr;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::call::Service;
use crate::faults::per_service::PerService;

pub type DocumentLinks = PerService<LinkForm>;

/// Form of a link to a version of a service.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LinkForm {
    /// The address that the client uses.
    Own,
    OtherHost,
    /// `http` instead of `https`, and vice versa.
    OtherScheme,
    /// The path without the service: `/v2.1/`.
    NoPrefix,
    /// The whole path: `/compute/v2.1/`.
    Path,
    /// The path below the root of the service: `v2.1/`.
    Relative,
    Empty,
    /// The document has no links.
    Missing,
}

impl DocumentLinks {
    /// The `links` of one version in a version document; `base` is the root URL of the cloud.
    pub fn links(&self, base: &str, service: Service, version: &str) -> Value {
        let path = format!("/{}/{version}/", service.name());
        let href = match self.get(service).copied().unwrap_or(LinkForm::Own) {
            LinkForm::Own => format!("{base}{path}"),
            LinkForm::OtherHost => format!("http://cloud.invalid:1{path}"),
            LinkForm::OtherScheme => match base.strip_prefix("http://") {
                Some(address) => format!("https://{address}{path}"),
                None => format!("{}{path}", base.replacen("https://", "http://", 1)),
            },
            LinkForm::NoPrefix => format!("/{version}/"),
            LinkForm::Path => path,
            LinkForm::Relative => format!("{version}/"),
            LinkForm::Empty => String::new(),
            LinkForm::Missing => return json!([]),
        };
        json!([{"rel": "self", "href": href}])
    }
}

impl FromStr for LinkForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || Self::value_variants().iter().map(Self::to_string).collect::<Vec<_>>().join(", ");
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("{text} is not a form of links: expected one of {}", expected()))
    }
}

impl Display for LinkForm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.to_possible_value().expect("every form has a name").get_name())
    }
}
