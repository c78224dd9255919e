//! Descriptions and defaults of configuration keys, for editors that show them during typing.
//!
//! The tables cover the drivers of this version; `doc/` has the same in more detail.

use serde_json::Value;

/// Help for one key.
#[derive(Clone, Copy, Debug)]
pub struct KeyDescription {
    pub key: &'static str,
    /// As JSON; empty if there is no fixed default.
    default: &'static str,
    pub text: &'static str,
}

impl KeyDescription {
    pub fn default(&self) -> Option<Value> {
        serde_json::from_str(self.default).ok()
    }
}

const fn describe(key: &'static str, default: &'static str, text: &'static str) -> KeyDescription {
    KeyDescription { key, default, text }
}

/// Description of a key: the section's own, else the common one.
pub fn find(section: &str, key: &str) -> Option<&'static KeyDescription> {
    let own = SECTION_KEYS.iter().filter(|(sections, _)| sections.contains(&section)).map(|(_, keys)| *keys);
    own.chain([COMMON_KEYS]).flatten().find(|description| description.key == key)
}

const COMMON_KEYS: &[KeyDescription] = &[
    describe("name", "", "Name"),
    describe("max-servers", "", "Maximum number of nodes; 0 or less disables the pool"),
    describe("max-cores", "", "Maximum number of processor cores in use"),
    describe("max-ram", "", "Maximum memory in use, in MiB"),
    describe("max-volumes", "", "Maximum number of volumes"),
    describe("max-volume-gb", "", "Size of all volumes together, in GB"),
    describe("node-attributes", "", "Copied to each node, for Zuul"),
    describe("connection-type", "\"ssh\"", "Ansible's connection type for the nodes; passed to Zuul"),
    describe("connection-port", "22", "Port of the nodes for this connection; 5986 with winrm"),
    describe("python-path", "\"auto\"", "Python interpreter on the nodes; passed to Ansible"),
    describe("shell-type", "", "Shell of the nodes; passed to Ansible"),
    describe("boot-timeout", "60", "Maximum seconds until a running server sends its host keys"),
    describe(
        "launch-timeout",
        "3600",
        "Seconds for one attempt to launch a node, from its start until the node is ready",
    ),
    describe("launch-retries", "3", "Attempts for one node"),
    describe("host-key-checking", "true", "Scan the host keys of the nodes over SSH before they are assigned"),
];

const SECTION_KEYS: &[(&[&str], &[KeyDescription])] = &[
    (&["the file"], TOP_LEVEL),
    (
        &["webapp"],
        &[
            describe("port", "8005", "Port of the launcher's web interface"),
            describe("listen_address", "\"0.0.0.0\"", "Address that the web interface listens on"),
        ],
    ),
    (
        &["a ZooKeeper server"],
        &[
            describe("host", "", "Name or address; an IPv6 address without brackets, in quotes"),
            describe("port", "2281", "Port; ZooKeeper's default without TLS is 2181"),
            describe("chroot", "", "Path prefix of all data, like /ci; the same for every server and for Zuul"),
        ],
    ),
    (
        &["zookeeper-tls"],
        &[
            describe("cert", "", "PEM file of the client's certificate"),
            describe("key", "", "PEM file of the certificate's key"),
            describe("ca", "", "PEM file of the authority that signed the server's certificate"),
            describe("check-hostname", "false", "The server's certificate must contain the configured host name"),
        ],
    ),
    (
        &["a label"],
        &[
            describe("name", "", "Name that consumers request"),
            describe("min-ready", "0", "Number of idle nodes to keep ready"),
            describe("max-ready-age", "", "Age in seconds at which an unused ready node is deleted; 0 means never"),
        ],
    ),
    (&["a diskimage"], DISKIMAGE),
    (
        &["a tenant's limits"],
        &[
            describe("tenant-name", "", "The tenant's name in Zuul"),
            describe("max-servers", "", "Maximum number of the tenant's nodes, over all providers and launchers"),
        ],
    ),
    (PROVIDERS, PROVIDER),
    (POOLS, POOL),
    (&["a static node"], STATIC_NODE),
    (&["an openstack provider", "a fake provider"], CLOUD_PROVIDER),
    (&["an openstack pool"], CLOUD_POOL),
    (&["a label of an openstack pool", "a label of an example pool"], CLOUD_LABEL),
    (&["an openstack cloud image", "an example cloud image"], CLOUD_IMAGE),
    (&["a diskimage of an openstack provider"], CLOUD_DISKIMAGE),
    (&["a fake cloud"], FAKE_CLOUD),
    (
        &["an example provider"],
        &[
            describe("region", "", "Region of the nodes"),
            describe("project", "", "Project of the cloud"),
            describe("rate-limit", "1", "API calls per second"),
            describe("cloud-images", "", "Images that exist in the cloud"),
        ],
    ),
    (&["an example pool"], &[describe("use-internal-ip", "false", "Connect to nodes at their private address")]),
];

const TOP_LEVEL: &[KeyDescription] = &[
    describe("webapp", "", "Address and port of the launcher's web interface"),
    describe("elements-dir", "", "Directories with elements for image builds, separated by colons"),
    describe("images-dir", "", "Directory of the builder's images; must not contain spaces"),
    describe("build-log-dir", "\"/var/log/nodepool/builds\"", "Directory of the logs of image builds"),
    describe("build-log-retention", "7", "Logs kept for each image; negative keeps all"),
    describe("zookeeper-servers", "", "ZooKeeper servers that launchers, builders and Zuul share"),
    describe(
        "zookeeper-tls",
        "",
        "Certificates for TLS connections to ZooKeeper; without them, connections are plain TCP",
    ),
    describe(
        "zookeeper-timeout",
        "10.0",
        "Session timeout: seconds without contact after which ZooKeeper releases a launcher's locks",
    ),
    describe("providers", "", "Clouds and hosts that provide nodes"),
    describe("labels", "", "Kinds of nodes that can be requested"),
    describe("diskimages", "", "Images that the builder builds, with settings of their nodes"),
    describe("max-hold-age", "", "Age in seconds at which a held node is deleted; 0 or less means never"),
    describe("tenant-resource-limits", "", "Limits for all nodes of a tenant together"),
];

const DISKIMAGE: &[KeyDescription] = &[
    describe("name", "", "Name of the image in labels and other images"),
    describe("abstract", "false", "Only a parent for other images; not built"),
    describe("parent", "", "The image that this one inherits from"),
    describe("elements", "", "Elements for diskimage-builder; those of the parents come first"),
    describe("formats", "", "Formats to build besides those that providers need"),
    describe("keep-formats", "", "Formats that delete-after-upload keeps"),
    describe("delete-after-upload", "false", "Delete the local files when all providers have the image"),
    describe("env-vars", "", "Environment of the build; secrets belong in the secure file"),
    describe("release", "", "Exported to the build as DIB_RELEASE"),
    describe("rebuild-age", "86400", "Age in seconds at which the image is built again"),
    describe("build-timeout", "28800", "Seconds that a build may take"),
    describe("dib-cmd", "\"disk-image-create\"", "Command that builds the image; may have arguments"),
    describe("pause", "false", "Start no builds"),
    describe("username", "\"zuul\"", "User name for logins to the nodes"),
    describe("metadata", "", "Properties of the uploaded images"),
];

const PROVIDERS: &[&str] =
    &["an openstack provider", "a fake provider", "a static provider", "an example provider", "a test provider"];

const PROVIDER: &[KeyDescription] = &[
    describe("name", "", "Unique name in nodes, logs and statistics"),
    describe("driver", "", "Driver. Without it, a name that begins with fake selects fake, and any other openstack"),
    describe("max-concurrency", "-1", "Requests that the provider's pools handle at once; negative means no limit"),
    describe("priority", "100", "Lower is preferred; a pool's own priority takes precedence"),
    describe("pools", "", "Parts of the provider with limits and labels of their own"),
];

const POOLS: &[&str] = &["an openstack pool", "a static pool", "an example pool", "a test pool"];

const POOL: &[KeyDescription] = &[
    describe("name", "", "Unique in its provider"),
    describe("priority", "", "Lower is preferred; the default is the provider's priority"),
    describe("labels", "", "Labels that the pool serves; each must be a top-level label"),
    describe("nodes", "", "Static hosts"),
];

const STATIC_NODE: &[KeyDescription] = &[
    describe("name", "", "Host name or address"),
    describe("labels", "", "Labels of the host; text is split at whitespace"),
    describe("username", "\"zuul\"", "User name for logins"),
    describe("timeout", "5", "Seconds for the connection that checks whether the host is alive"),
    describe("host-key", "", "Host keys to expect; if empty, the scanned keys are used"),
    describe("max-parallel-jobs", "1", "Number of nodes that the host provides at once"),
    describe("connection-port", "22", "Port for connections to the host"),
];

const CLOUD_PROVIDER: &[KeyDescription] = &[
    describe("cloud", "", "The cloud's name in clouds.yaml"),
    describe("region-name", "", "Region of the cloud; the default is that of clouds.yaml"),
    describe("rate", "", "Minimum seconds between the starts of two API calls"),
    describe("nodepool-id", "", "No longer has an effect"),
    describe("image-name-format", "\"{image_name}-{timestamp}\"", "Name of an uploaded image in the cloud"),
    describe("image-upload-timeout", "3600", "Maximum seconds for the import of an image by a task"),
    describe("post-upload-hook", "", "Command that runs after the upload of each image"),
    describe("clean-floating-ips", "false", "Delete floating IPs that are unassigned in two checks a minute apart"),
    describe(
        "port-cleanup-interval",
        "600",
        "Seconds between two checks for unused ports that are down; 0 means never",
    ),
    describe("diskimages", "", "Images of the builder that are uploaded to this provider"),
    describe("cloud-images", "", "Images that exist in the cloud"),
    describe("fake", "", "Settings of the fake cloud"),
];

const CLOUD_POOL: &[KeyDescription] = &[
    describe("networks", "", "Names or ids; without them, the cloud chooses"),
    describe(
        "auto-floating-ip",
        "true",
        "Assign floating IPs to servers without a public address, if the cloud has floating IPs",
    ),
    describe("ignore-provider-quota", "false", "Only the pool's own limits count"),
    describe(
        "availability-zones",
        "",
        "Zones to use in turn; all new nodes of a request share one. The default is all zones of the cloud",
    ),
    describe("security-groups", "", "Names or ids; without them, the project's default"),
];

const CLOUD_LABEL: &[KeyDescription] = &[
    describe("name", "", "Name of a top-level label"),
    describe("diskimage", "", "Image of the builder: the newest upload to this provider is booted"),
    describe("cloud-image", "", "Name of one of the provider's cloud-images"),
    describe("min-ram", "", "Minimum memory in MiB; selects the smallest such flavor whose name contains flavor-name"),
    describe("flavor-name", "", "Name or id of the flavor; with min-ram a part of the name"),
    describe("instance-type", "", "Type of the instance"),
    describe("key-name", "", "Key pair of the cloud for the first login"),
    describe("console-log", "false", "Log the server's console if its host keys cannot be scanned"),
    describe("boot-from-volume", "false", "Boot from a volume that is deleted with the server"),
    describe("volume-size", "50", "Size of that volume, in GB"),
    describe("instance-properties", "", "Metadata of the server"),
    describe(
        "dynamic-instance-properties",
        "",
        "Metadata of the server with parts of the request: {request.tenant_name}",
    ),
    describe("userdata", "", "User data of the server, for cloud-init"),
    describe("networks", "", "Names or ids, instead of the pool's"),
    describe("host-key-checking", "", "Overrides the pool's setting for this label"),
];

const CLOUD_IMAGE: &[KeyDescription] = &[
    describe("name", "", "Name of the image in labels; without image-id and image-name also its name in the cloud"),
    describe("image-id", "", "Id of the image in the cloud, used without a lookup"),
    describe("image-name", "", "Name or id of the image in the cloud"),
    describe("config-drive", "", "Attach a drive with the metadata to servers"),
    describe("username", "", "User name for logins to the nodes"),
    describe("key", "", "Public key for the first login"),
];

const CLOUD_DISKIMAGE: &[KeyDescription] = &[
    describe("name", "", "Name of a top-level diskimage"),
    describe("pause", "false", "Start no uploads to this provider"),
    describe("meta", "", "Properties of the image in the cloud; they override the metadata of the diskimage"),
    describe("config-drive", "", "Attach a drive with the metadata to servers"),
];

const FAKE_CLOUD: &[KeyDescription] = &[
    describe("boot-time", "0.1", "Seconds until a server runs"),
    describe("delete-time", "0", "Seconds until a deleted server no longer exists"),
    describe("latency", "0", "Duration of every call, in seconds"),
    describe("create-fails-every", "0", "Reject one in this many creations; 0 means never"),
    describe(
        "create-answer-lost-every",
        "0",
        "Lose the response to one in this many creations that succeed; 0 means never",
    ),
    describe("boot-fails-every", "0", "Fail the boot of one in this many servers; 0 means never"),
    describe("boot-quota-every", "0", "Fail the boot of one in this many servers with a quota error; 0 means never"),
    describe("boot-hangs-every", "0", "Never finish the boot of one in this many servers; 0 means never"),
    describe("delete-fails-every", "0", "Reject one in this many deletions; 0 means never"),
    describe("upload-time", "0", "Duration of every upload, in seconds"),
    describe("upload-fails-every", "0", "Reject one in this many uploads; 0 means never"),
    describe("image-delete-fails-every", "0", "Reject one in this many deletions of images; 0 means never"),
    describe("image-format", "\"qcow2\"", "Format of the images that the cloud accepts"),
    describe("throttle-every", "0", "Throttle one in this many calls; 0 means never"),
    describe("retry-after", "1", "Seconds after which a throttled call may be retried"),
    describe("zones", "[\"az1\", \"az2\"]", "Availability zones"),
    describe("images", "[\"Fake Precise\", \"fake-image-id\"]", "Images that exist in the cloud"),
    describe("address", "\"fake\"", "Address of every server; host keys are scanned there unless it contains fake"),
    describe("console", "", "Text that every server writes to its console"),
    describe("max-instances", "20", "Quota of servers"),
    describe("max-cores", "100", "Quota of cores"),
    describe("max-ram", "1000000", "Quota of memory, in MiB"),
    describe("max-volumes", "100", "Quota of volumes"),
    describe("max-volume-gb", "1000000", "Size of all volumes together, in GB"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::check;
    use crate::config::schema::dsl::{Section, Shape};
    use crate::config::schema::tables::common::TOP_LEVEL;

    /// Collects this section and all sections in it.
    fn sections(section: &'static Section, found: &mut Vec<&'static Section>) {
        found.push(section);
        for key in section.all_keys() {
            match key.shape {
                Shape::Map(inner) => sections(inner, found),
                Shape::List(Shape::Map(inner)) => sections(inner, found),
                _ => {}
            }
        }
    }

    fn sections_of_supported_drivers() -> Vec<&'static Section> {
        let mut found = Vec::new();
        sections(&TOP_LEVEL, &mut found);
        for driver in ["static", "fake", "openstack", "example", "test"] {
            sections(check::driver_schema(driver).unwrap(), &mut found);
        }
        found
    }

    #[test]
    fn every_key_of_a_supported_driver_has_a_description() {
        for section in sections_of_supported_drivers() {
            for key in section.all_keys() {
                assert!(find(section.title, key.name).is_some(), "{}: {} has no description", section.title, key.name);
            }
        }
    }

    #[test]
    fn every_described_key_exists() {
        let known = sections_of_supported_drivers();
        for (names, keys) in SECTION_KEYS {
            let named: Vec<_> = known.iter().filter(|section| names.contains(&section.title)).collect();
            assert!(names.iter().all(|name| named.iter().any(|section| section.title == *name)), "{names:?}");
            for description in *keys {
                assert!(
                    named.iter().any(|section| section.key(description.key).is_some()),
                    "{names:?}: {}",
                    description.key
                );
            }
        }
        for description in SECTION_KEYS.iter().flat_map(|(_, keys)| *keys).chain(COMMON_KEYS) {
            assert!(
                description.default.is_empty() || description.default().is_some(),
                "{}: {}",
                description.key,
                description.default
            );
        }
    }
}
