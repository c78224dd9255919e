//! The target of a call, told by its path. Names in paths are compared without regard to case, as in Azure.

/// A kind of resource with its own type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Vm,
    Nic,
    Ip,
    Disk,
    Image,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Vm, Self::Nic, Self::Ip, Self::Disk, Self::Image];

    pub fn provider(self) -> &'static str {
        match self {
            Self::Vm | Self::Disk | Self::Image => "Microsoft.Compute",
            Self::Nic | Self::Ip => "Microsoft.Network",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Self::Vm => "virtualMachines",
            Self::Nic => "networkInterfaces",
            Self::Ip => "publicIPAddresses",
            Self::Disk => "disks",
            Self::Image => "images",
        }
    }

    /// The name in actions of faults, counters and the history.
    pub fn label(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Nic => "nic",
            Self::Ip => "ip",
            Self::Disk => "disk",
            Self::Image => "image",
        }
    }

    pub fn type_name(self) -> String {
        format!("{}/{}", self.provider(), self.plural())
    }
}

/// A provider that reports usages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Compute,
    Network,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Token { tenant: String, version: TokenVersion },
    Groups,
    Group { group: String },
    List { kind: Kind, group: Option<String> },
    Item { kind: Kind, group: String, name: String, action: Option<String> },
    Subnet { group: String, network: String, subnet: String },
    Subnets { group: String, network: String },
    Usages { provider: Provider, location: String },
    Skus,
    Operation { id: String },
    Pages { account: String, container: String },
    Control,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenVersion {
    V1,
    V2,
}

impl Target {
    /// The target of these parts of a path, and its subscription.
    pub fn of(parts: &[&str]) -> (Self, Option<String>) {
        let lower: Vec<String> = parts.iter().map(|part| part.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        let own = |index: usize| parts[index].to_owned();
        match lower[..] {
            ["sim", ..] => (Self::Control, None),
            [_, "oauth2", "token"] => (Self::Token { tenant: own(0), version: TokenVersion::V1 }, None),
            [_, "oauth2", "v2.0", "token"] => (Self::Token { tenant: own(0), version: TokenVersion::V2 }, None),
            ["subscriptions", _, ..] => (Self::within_subscription(&parts[2..], &lower[2..]), Some(own(1))),
            [account, _, "abcd"] if account.starts_with("md-impexp-") => {
                (Self::Pages { account: own(0), container: own(1) }, None)
            }
            _ => (Self::Unknown, None),
        }
    }

    fn within_subscription(parts: &[&str], lower: &[&str]) -> Self {
        let own = |index: usize| parts[index].to_owned();
        match *lower {
            ["resourcegroups"] => Self::Groups,
            ["resourcegroups", _] => Self::Group { group: own(1) },
            ["resourcegroups", _, "providers", "microsoft.network", "virtualnetworks", _, "subnets"] => {
                Self::Subnets { group: own(1), network: own(5) }
            }
            ["resourcegroups", _, "providers", "microsoft.network", "virtualnetworks", _, "subnets", _] => {
                Self::Subnet { group: own(1), network: own(5), subnet: own(7) }
            }
            ["resourcegroups", _, "providers", provider, plural, ref rest @ ..] => match kind(provider, plural) {
                Some(kind) if rest.is_empty() => Self::List { kind, group: Some(own(1)) },
                Some(kind) if rest.len() <= 2 => {
                    let action = parts.get(6).map(|action| (*action).to_owned());
                    Self::Item { kind, group: own(1), name: own(5), action }
                }
                _ => Self::Unknown,
            },
            ["providers", "microsoft.compute", "skus"] => Self::Skus,
            ["providers", "microsoft.compute", "locations", _, "usages"] => {
                Self::Usages { provider: Provider::Compute, location: own(3) }
            }
            ["providers", "microsoft.network", "locations", _, "usages"] => {
                Self::Usages { provider: Provider::Network, location: own(3) }
            }
            ["providers", _, "locations", _, "operations" | "diskoperations" | "operationresults", _] => {
                Self::Operation { id: own(5) }
            }
            ["providers", provider, plural] => match kind(provider, plural) {
                Some(kind) => Self::List { kind, group: None },
                None => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }

    /// The action of a call in faults, counters and the history, such as `vm.create`.
    pub fn action(&self, method: &str) -> String {
        let verb = match method {
            "GET" | "HEAD" => "get",
            "PUT" => "create",
            "PATCH" => "update",
            "DELETE" => "delete",
            _ => "post",
        };
        match self {
            Self::Token { .. } => "token".to_owned(),
            Self::Groups => "group.list".to_owned(),
            Self::Group { .. } => format!("group.{verb}"),
            Self::List { kind, .. } => format!("{}.list", kind.label()),
            Self::Item { kind, action: Some(action), .. } => format!("{}.{action}", kind.label()),
            Self::Item { kind, action: None, .. } => format!("{}.{verb}", kind.label()),
            Self::Subnet { .. } => format!("subnet.{verb}"),
            Self::Subnets { .. } => "subnet.list".to_owned(),
            Self::Usages { provider: Provider::Compute, .. } => "usages".to_owned(),
            Self::Usages { provider: Provider::Network, .. } => "network-usages".to_owned(),
            Self::Skus => "skus".to_owned(),
            Self::Operation { .. } => "operation".to_owned(),
            Self::Pages { .. } => format!("pages.{verb}"),
            Self::Control => "control".to_owned(),
            Self::Unknown => "unknown".to_owned(),
        }
    }

    /// The resource group of the target.
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::List { group, .. } => group.as_deref(),
            Self::Group { group }
            | Self::Item { group, .. }
            | Self::Subnet { group, .. }
            | Self::Subnets { group, .. } => Some(group),
            _ => None,
        }
    }
}

fn kind(provider: &str, plural: &str) -> Option<Kind> {
    let is_it =
        |kind: &Kind| kind.provider().eq_ignore_ascii_case(provider) && kind.plural().eq_ignore_ascii_case(plural);
    Kind::ALL.into_iter().find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(method: &str, path: &str) -> String {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        Target::of(&parts).0.action(method)
    }

    #[test]
    fn paths_tell_the_action_without_regard_to_case() {
        let group = "/subscriptions/s/resourcegroups/G/providers";
        for (method, path, expected) in [
            ("GET", format!("{group}/microsoft.compute/VirtualMachines/"), "vm.list"),
            ("PUT", format!("{group}/Microsoft.Compute/disks/a"), "disk.create"),
            ("POST", format!("{group}/Microsoft.Compute/disks/a/beginGetAccess"), "disk.beginGetAccess"),
            ("GET", format!("{group}/Microsoft.Network/virtualNetworks/v/subnets/s"), "subnet.get"),
            ("GET", "/subscriptions/s/providers/Microsoft.Compute/skus/".to_owned(), "skus"),
            (
                "GET",
                "/subscriptions/s/providers/Microsoft.Compute/locations/l/DiskOperations/1".to_owned(),
                "operation",
            ),
            ("POST", "/tenant/oauth2/v2.0/token".to_owned(), "token"),
            ("PUT", "/md-impexp-1/c/abcd".to_owned(), "pages.create"),
            ("GET", format!("{group}/Microsoft.Storage/storageAccounts"), "unknown"),
        ] {
            assert_eq!(action(method, &path), expected, "{path}");
        }
    }
}
