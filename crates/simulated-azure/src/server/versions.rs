//! The versions of the API that each type of resource has.

use crate::server::response::{ApiError, ApiResult};
use crate::server::target::{Kind, Provider, Target};

/// From this version on, interfaces and public IPs within a virtual machine have tags.
pub const NESTED_TAGS: &str = "2025-04-01";

const COMPUTE: &[&str] = &[
    "2018-06-01",
    "2018-10-01",
    "2019-03-01",
    "2019-07-01",
    "2019-12-01",
    "2020-06-01",
    "2020-12-01",
    "2021-03-01",
    "2021-04-01",
    "2021-07-01",
    "2021-11-01",
    "2022-03-01",
    "2022-08-01",
    "2022-11-01",
    "2023-03-01",
    "2023-07-01",
    "2023-09-01",
    "2024-03-01",
    "2024-07-01",
    "2024-11-01",
    "2025-04-01",
    "2025-11-01",
    "2026-04-01",
];
const DISKS: &[&str] = &[
    "2018-06-01",
    "2018-09-30",
    "2019-03-01",
    "2019-07-01",
    "2019-11-01",
    "2020-05-01",
    "2020-06-30",
    "2020-09-30",
    "2020-12-01",
    "2021-04-01",
    "2021-08-01",
    "2021-12-01",
    "2022-03-02",
    "2022-07-02",
    "2023-01-02",
    "2023-04-02",
    "2023-10-02",
    "2024-03-02",
    "2025-01-02",
    "2026-03-02",
];
const SKUS: &[&str] = &["2017-03-30", "2017-09-01", "2019-04-01", "2021-07-01"];
const NETWORK: &[&str] = &[
    "2018-11-01",
    "2019-04-01",
    "2019-11-01",
    "2020-03-01",
    "2020-05-01",
    "2020-06-01",
    "2020-07-01",
    "2020-08-01",
    "2020-11-01",
    "2021-02-01",
    "2021-03-01",
    "2021-05-01",
    "2021-08-01",
    "2022-01-01",
    "2022-05-01",
    "2022-07-01",
    "2022-09-01",
    "2022-11-01",
    "2023-02-01",
    "2023-04-01",
    "2023-05-01",
    "2023-06-01",
    "2023-09-01",
    "2023-11-01",
    "2024-01-01",
    "2024-03-01",
    "2024-05-01",
    "2024-07-01",
    "2024-10-01",
    "2025-01-01",
    "2025-03-01",
    "2025-05-01",
    "2025-07-01",
    "2025-09-01",
    "2026-01-01",
    "2026-03-01",
];
const GROUPS: &[&str] = &[
    "2018-05-01",
    "2019-10-01",
    "2020-06-01",
    "2020-10-01",
    "2021-01-01",
    "2021-04-01",
    "2022-09-01",
    "2023-07-01",
    "2024-03-01",
    "2024-07-01",
    "2024-11-01",
    "2025-03-01",
    "2025-04-01",
];

impl Target {
    /// Versions and name of the type. Operations have those of the type that they belong to.
    fn versions(&self) -> (Vec<&'static [&'static str]>, String) {
        match self {
            Self::Groups | Self::Group { .. } => (vec![GROUPS], String::new()),
            Self::List { kind, .. } | Self::Item { kind, .. } => {
                let versions = match kind {
                    Kind::Vm | Kind::Image => COMPUTE,
                    Kind::Disk => DISKS,
                    Kind::Nic | Kind::Ip => NETWORK,
                };
                (vec![versions], kind.type_name())
            }
            Self::Subnet { .. } | Self::Subnets { .. } => {
                (vec![NETWORK], "Microsoft.Network/virtualNetworks".to_owned())
            }
            Self::Usages { provider: Provider::Compute, .. } => {
                (vec![COMPUTE], "Microsoft.Compute/locations/usages".to_owned())
            }
            Self::Usages { provider: Provider::Network, .. } => {
                (vec![NETWORK], "Microsoft.Network/locations/usages".to_owned())
            }
            Self::Skus => (vec![SKUS], "Microsoft.Compute/skus".to_owned()),
            Self::Operation { .. } => {
                (vec![COMPUTE, DISKS, NETWORK], "Microsoft.Compute/locations/operations".to_owned())
            }
            Self::Token { .. } | Self::Pages { .. } | Self::Control | Self::Unknown => (Vec::new(), String::new()),
        }
    }

    /// Refuses calls without a version, and with one that the type does not have.
    pub fn check_version(&self, version: Option<&str>, location: &str) -> ApiResult<()> {
        let (versions, type_name) = self.versions();
        let Some(version) = version.filter(|version| !version.is_empty()) else {
            let text = "The api-version query parameter (?api-version=) is required for all requests.";
            return Err(ApiError::new("MissingApiVersionParameter", text));
        };
        if versions.iter().any(|known| known.contains(&version)) {
            return Ok(());
        }
        let known: Vec<&str> = versions.into_iter().flatten().copied().collect();
        let known = known.join(", ");
        Err(match type_name.split_once('/') {
            None => {
                let text = format!("The api-version '{version}' is invalid. The supported versions are '{known}'.");
                ApiError::new("InvalidApiVersionParameter", text)
            }
            Some((provider, name)) => {
                let text = format!(
                    "No registered resource provider found for location '{location}' and API version '{version}' for \
                     type '{name}'. The supported api-versions are '{known}'. The supported locations are \
                     '{location}'. Provider: {provider}."
                );
                ApiError::new("NoRegisteredProviderFound", text)
            }
        })
    }
}
