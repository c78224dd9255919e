//! What the keys of the configuration are for and what counts where they are absent, for editors that show it while one types.
//!
//! The tables of the drivers that this version serves; `doc/` says the same at greater length.

use serde_json::Value;

/// What an editor shows of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeyDescription {
    pub key: &'static str,
    /// As JSON; empty where nothing in particular counts.
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

/// What a key of a section is for: what only this section says of it, else what is said of it everywhere.
pub fn find(section: &str, key: &str) -> Option<&'static KeyDescription> {
    let own = SECTION_KEYS.iter().filter(|(sections, _)| sections.contains(&section)).map(|(_, keys)| *keys);
    own.chain([COMMON_KEYS]).flatten().find(|about| about.key == key)
}

const COMMON_KEYS: &[KeyDescription] = &[
    describe("name", "", "Its name"),
    describe("max-servers", "", "Nodes at once; 0 and less disable the pool"),
    describe("max-cores", "", "Processor cores at once"),
    describe("max-ram", "", "Memory at once, in MiB"),
    describe("max-volumes", "", "Volumes at once"),
    describe("max-volume-gb", "", "Size of all volumes together, in GB"),
    describe("node-attributes", "", "Copied to each node, for Zuul"),
    describe("connection-type", "\"ssh\"", "How Ansible reaches the nodes; handed to Zuul"),
    describe("connection-port", "22", "Port that the nodes are reached at; 5986 where the connection is by winrm"),
    describe("python-path", "\"auto\"", "Python interpreter on the nodes; handed to Ansible"),
    describe("shell-type", "", "Shell of the nodes; handed to Ansible"),
    describe("boot-timeout", "60", "Seconds until a server that runs has shown its host keys"),
    describe(
        "launch-timeout",
        "3600",
        "Seconds for one attempt to launch a node, from its beginning until it is ready",
    ),
    describe("launch-retries", "3", "Attempts for one node"),
    describe("host-key-checking", "true", "Gather the host keys of the nodes over ssh before they are handed out"),
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
            describe("port", "2281", "Port; without TLS ZooKeeper's usual one is 2181"),
            describe(
                "chroot",
                "",
                "Path under which everything is kept, like /ci; the same at every server, and for Zuul",
            ),
        ],
    ),
    (
        &["zookeeper-tls"],
        &[
            describe("cert", "", "PEM file of the client's certificate"),
            describe("key", "", "PEM file of the certificate's key"),
            describe("ca", "", "PEM file of the authority that the server's certificate is from"),
            describe("check-hostname", "false", "The server's certificate must name the host that it was called by"),
        ],
    ),
    (
        &["a label"],
        &[
            describe("name", "", "What consumers ask for"),
            describe("min-ready", "0", "Nodes that are kept ready without anybody asking"),
            describe(
                "max-ready-age",
                "",
                "Age in seconds at which a ready node that nobody uses is deleted; 0 is never",
            ),
        ],
    ),
    (&["a diskimage"], DISKIMAGE),
    (
        &["a tenant's limits"],
        &[
            describe("tenant-name", "", "The tenant's name in Zuul"),
            describe("max-servers", "", "Nodes of the tenant at once, over all providers and launchers"),
        ],
    ),
    (PROVIDERS, PROVIDER),
    (POOLS, POOL),
    (&["a static node"], STATIC_NODE),
    (&["an openstack provider", "a fake provider"], OF_A_CLOUD),
    (&["an openstack pool"], CLOUD_POOL),
    (&["a label of an openstack pool", "a label of an example pool"], CLOUD_LABEL),
    (&["an openstack cloud image", "an example cloud image"], CLOUD_IMAGE),
    (&["a diskimage of an openstack provider"], CLOUD_DISKIMAGE),
    (&["a fake cloud"], FAKE_CLOUD),
    (
        &["an example provider"],
        &[
            describe("region", "", "Shown by the nodes as theirs"),
            describe("project", "", "Project of the cloud"),
            describe("rate-limit", "1", "API calls per second"),
            describe("cloud-images", "", "Images that the cloud has"),
        ],
    ),
    (&["an example pool"], &[describe("use-internal-ip", "false", "Reach nodes at their private address")]),
];

const TOP_LEVEL: &[KeyDescription] = &[
    describe("webapp", "", "Where the launcher serves its web interface"),
    describe("elements-dir", "", "Directories with elements for image builds, divided by colons"),
    describe("images-dir", "", "Where the builder keeps images; no blanks in it"),
    describe("build-log-dir", "\"/var/log/nodepool/builds\"", "Where the logs of image builds go"),
    describe("build-log-retention", "7", "Logs kept for each image; negative keeps all"),
    describe("zookeeper-servers", "", "The ZooKeeper that the launchers, builders and Zuul share"),
    describe("zookeeper-tls", "", "Certificates for connections to ZooKeeper by TLS; without them they are plain TCP"),
    describe("zookeeper-timeout", "10.0", "Seconds of silence after which ZooKeeper takes a launcher's locks away"),
    describe("providers", "", "Where nodes come from"),
    describe("labels", "", "Kinds of nodes that can be asked for"),
    describe("diskimages", "", "Images that the builder makes, and what their nodes are like"),
    describe("max-hold-age", "", "Age in seconds at which a held node is deleted; 0 and less are never"),
    describe("tenant-resource-limits", "", "What all nodes of a tenant together may use"),
];

const DISKIMAGE: &[KeyDescription] = &[
    describe("name", "", "What labels and other images call it"),
    describe("abstract", "false", "Only a parent for other images; not built"),
    describe("parent", "", "The image that this one inherits from"),
    describe("elements", "", "Elements for diskimage-builder; those of the parents come first"),
    describe("formats", "", "Formats to build besides those that providers need"),
    describe("keep-formats", "", "Formats that delete-after-upload spares"),
    describe("delete-after-upload", "false", "Delete the local files when all providers have the image"),
    describe("env-vars", "", "Environment of the build; secrets belong into the secure file"),
    describe("release", "", "Exported to the build as DIB_RELEASE"),
    describe("rebuild-age", "86400", "Age in seconds at which the image is built again"),
    describe("build-timeout", "28800", "Seconds that a build may take"),
    describe("dib-cmd", "\"disk-image-create\"", "Command that builds the image; may have arguments"),
    describe("pause", "false", "Begin no builds"),
    describe("username", "\"zuul\"", "Who logs in to the nodes"),
    describe("metadata", "", "Properties of the uploaded images"),
];

const PROVIDERS: &[&str] =
    &["an openstack provider", "a fake provider", "a static provider", "an example provider", "a test provider"];

const PROVIDER: &[KeyDescription] = &[
    describe("name", "", "What nodes, logs and statistics call it; unique"),
    describe(
        "driver",
        "",
        "Which kind it is. Without it, a name that begins with fake means fake and any other openstack",
    ),
    describe("max-concurrency", "-1", "Requests that the provider's pools work on at once; negative is no limit"),
    describe("priority", "100", "Lower is preferred; that of a pool wins"),
    describe("pools", "", "Parts of the provider with limits and labels of their own"),
];

const POOLS: &[&str] = &["an openstack pool", "a static pool", "an example pool", "a test pool"];

const POOL: &[KeyDescription] = &[
    describe("name", "", "Unique in its provider"),
    describe("priority", "", "Lower is preferred; without it the provider's counts"),
    describe("labels", "", "What the pool provides; each is among the labels at the top"),
    describe("nodes", "", "Hosts that exist"),
];

const STATIC_NODE: &[KeyDescription] = &[
    describe("name", "", "Host name or address"),
    describe("labels", "", "What the host is handed out as; a text is divided at its blanks"),
    describe("username", "\"zuul\"", "Who logs in"),
    describe("timeout", "5", "Seconds for the connection that checks whether the host is alive"),
    describe("host-key", "", "Keys that the host must show; without any, those it shows are taken"),
    describe("max-parallel-jobs", "1", "Nodes that the host counts as"),
    describe("connection-port", "22", "Port that the host is reached at"),
];

const OF_A_CLOUD: &[KeyDescription] = &[
    describe("cloud", "", "The cloud's name in clouds.yaml"),
    describe("region-name", "", "Region of the cloud; without it that of clouds.yaml"),
    describe("rate", "", "Least seconds between the starts of two API calls"),
    describe("nodepool-id", "", "Has no effect any more"),
    describe("image-name-format", "\"{image_name}-{timestamp}\"", "Name of an uploaded image in the cloud"),
    describe("image-upload-timeout", "3600", "Seconds for an import by a task"),
    describe("post-upload-hook", "", "Command that is called for each image that has arrived"),
    describe("clean-floating-ips", "false", "Delete floating IPs that lead nowhere in two looks a minute apart"),
    describe(
        "port-cleanup-interval",
        "600",
        "Seconds between two looks for ports that are down and left over; 0 is never",
    ),
    describe("diskimages", "", "Images of the builder that are uploaded to this provider"),
    describe("cloud-images", "", "Images that the cloud has"),
    describe("fake", "", "What the cloud that is not there does"),
];

const CLOUD_POOL: &[KeyDescription] = &[
    describe("networks", "", "Names or ids; without them the cloud chooses"),
    describe(
        "auto-floating-ip",
        "true",
        "A server without a public address gets a floating IP, where the cloud has some",
    ),
    describe("ignore-provider-quota", "false", "Only the pool's own limits count"),
    describe(
        "availability-zones",
        "",
        "Used in turn; all new nodes of a request share one. Without them all of the cloud's",
    ),
    describe("security-groups", "", "Names or ids; without them the project's default"),
];

const CLOUD_LABEL: &[KeyDescription] = &[
    describe("name", "", "One of the labels at the top"),
    describe("diskimage", "", "Image of the builder: the newest upload to this provider is booted"),
    describe("cloud-image", "", "Name of one of the provider's cloud-images"),
    describe("min-ram", "", "The smallest flavor with so many MiB whose name contains flavor-name"),
    describe("flavor-name", "", "Name or id of the flavor; with min-ram a part of the name"),
    describe("instance-type", "", "Type of the instance"),
    describe("key-name", "", "Key pair of the cloud for the first login"),
    describe("console-log", "false", "Log the server's console when its host keys cannot be had"),
    describe("boot-from-volume", "false", "Boot from a volume, which goes with the server"),
    describe("volume-size", "50", "Size of that volume, in GB"),
    describe("instance-properties", "", "Metadata of the server"),
    describe("dynamic-instance-properties", "", "The same, with parts of the request filled in: {request.tenant_name}"),
    describe("userdata", "", "User data of the server, for cloud-init"),
    describe("networks", "", "Names or ids, instead of the pool's"),
    describe("host-key-checking", "", "As for the pool, for this label only"),
];

const CLOUD_IMAGE: &[KeyDescription] = &[
    describe("name", "", "What labels call it, and without image-id and image-name also the cloud"),
    describe("image-id", "", "Id of the image in the cloud, taken as it is"),
    describe("image-name", "", "Name or id of the image in the cloud"),
    describe("config-drive", "", "Give servers a drive with their metadata"),
    describe("username", "", "Who logs in to the nodes"),
    describe("key", "", "Public key for the first login"),
];

const CLOUD_DISKIMAGE: &[KeyDescription] = &[
    describe("name", "", "One of the diskimages at the top"),
    describe("pause", "false", "Begin no uploads to this provider"),
    describe("meta", "", "Properties of the image in the cloud, over the metadata of the diskimage"),
    describe("config-drive", "", "Give servers a drive with their metadata"),
];

const FAKE_CLOUD: &[KeyDescription] = &[
    describe("boot-time", "0.1", "Seconds until a server runs"),
    describe("delete-time", "0", "Seconds until a deleted server has gone"),
    describe("latency", "0", "Seconds of every call"),
    describe("create-fails-every", "0", "Every so many creations are refused; 0 is never"),
    describe(
        "create-answer-lost-every",
        "0",
        "Every so many creations make a server and fail nevertheless; 0 is never",
    ),
    describe("boot-fails-every", "0", "Every so many servers end in an error; 0 is never"),
    describe("boot-quota-every", "0", "Every so many servers end in an error that speaks of a quota; 0 is never"),
    describe("boot-hangs-every", "0", "Every so many servers boot for ever; 0 is never"),
    describe("delete-fails-every", "0", "Every so many deletions are refused; 0 is never"),
    describe("upload-time", "0", "Seconds of every upload"),
    describe("upload-fails-every", "0", "Every so many uploads are refused; 0 is never"),
    describe("image-delete-fails-every", "0", "Every so many deletions of images are refused; 0 is never"),
    describe("image-format", "\"qcow2\"", "Format of the images that the cloud takes"),
    describe("throttle-every", "0", "Every so many calls are told to come again later; 0 is never"),
    describe("retry-after", "1", "Seconds after which such a call may come again"),
    describe("zones", "[\"az1\", \"az2\"]", "Availability zones"),
    describe("images", "[\"Fake Precise\", \"fake-image-id\"]", "Images that the cloud has"),
    describe("address", "\"fake\"", "Address of every server; host keys are scanned there unless it contains fake"),
    describe("console", "", "What every server writes to its console"),
    describe("max-instances", "20", "Servers that the cloud has room for"),
    describe("max-cores", "100", "Cores that the cloud has"),
    describe("max-ram", "1000000", "Memory that the cloud has, in MiB"),
    describe("max-volumes", "100", "Volumes that the cloud has room for"),
    describe("max-volume-gb", "1000000", "Size of all volumes together, in GB"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::check;
    use crate::config::schema::dsl::{Section, Shape};
    use crate::config::schema::tables::common::TOP_LEVEL;

    /// All sections from this one on.
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

    fn of_served_drivers() -> Vec<&'static Section> {
        let mut found = Vec::new();
        sections(&TOP_LEVEL, &mut found);
        for driver in ["static", "fake", "openstack", "example", "test"] {
            sections(check::driver_schema(driver).unwrap(), &mut found);
        }
        found
    }

    #[test]
    fn every_key_of_the_drivers_that_are_served_is_explained() {
        for section in of_served_drivers() {
            for key in section.all_keys() {
                assert!(find(section.title, key.name).is_some(), "{}: {} is not explained", section.title, key.name);
            }
        }
    }

    #[test]
    fn every_described_key_exists() {
        let known = of_served_drivers();
        for (names, keys) in SECTION_KEYS {
            let named: Vec<_> = known.iter().filter(|section| names.contains(&section.title)).collect();
            assert!(names.iter().all(|name| named.iter().any(|section| section.title == *name)), "{names:?}");
            for about in *keys {
                assert!(named.iter().any(|section| section.key(about.key).is_some()), "{names:?}: {}", about.key);
            }
        }
        for about in SECTION_KEYS.iter().flat_map(|(_, keys)| *keys).chain(COMMON_KEYS) {
            assert!(about.default.is_empty() || about.default().is_some(), "{}: {}", about.key, about.default);
        }
    }
}
