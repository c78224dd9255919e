//! Resources that launches may leave behind: volumes, dedicated hosts, and launch templates of fleets.

use super::config::Settings;
use super::request_body::TEMPLATE_PREFIX;
use nodepool_driver::cloud_resource::ResourceKind;
use nodepool_model::records::time::Seconds;

pub const VOLUMES: &str = "volumes";
pub const HOSTS: &str = "hosts";
pub const TEMPLATES: &str = "launch_templates";
const INTERVAL: Seconds = Seconds(600.0);
/// A launch template that was not in use for this time is deleted.
const TEMPLATE_INTERVAL: Seconds = Seconds(3600.0);

/// The kinds of a provider, in the order of deletion.
pub fn kinds(settings: &Settings) -> Vec<ResourceKind> {
    let marked = |name, unused| ResourceKind { name, interval: INTERVAL, has_metadata: true, unused };
    let mut kinds = vec![marked(VOLUMES, "not attached")];
    if settings.labels().any(|label| label.dedicated_host) {
        kinds.push(marked(HOSTS, "without a node"));
    }
    if settings.labels().any(|label| label.fleet.is_some()) {
        let (interval, unused) = (TEMPLATE_INTERVAL, "not configured");
        kinds.push(ResourceKind { name: TEMPLATES, interval, has_metadata: false, unused });
    }
    kinds
}

/// Whether a launch template has a name as the driver gives it.
pub fn is_template_name(name: &str) -> bool {
    name.strip_prefix(TEMPLATE_PREFIX).is_some_and(|hash| hash.len() == 64)
}
