//! What the keys of the configuration are for and what counts where they are absent, for editors that show it while one types.
//!
//! The tables of the drivers that this version serves; `doc/` says the same at greater length.

use serde_json::Value;

/// What an editor shows of a key.
#[derive(Clone, Copy, Debug)]
pub struct About {
    pub key: &'static str,
    /// As JSON; empty where nothing in particular counts.
    default: &'static str,
    pub text: &'static str,
}

impl About {
    pub fn default(&self) -> Option<Value> {
        serde_json::from_str(self.default).ok()
    }
}

const fn about(key: &'static str, default: &'static str, text: &'static str) -> About {
    About { key, default, text }
}

/// What a key of a section is for: what only this section says of it, else what is said of it everywhere.
pub fn find(section: &str, key: &str) -> Option<&'static About> {
    let own = OF_SECTIONS.iter().filter(|(sections, _)| sections.contains(&section)).map(|(_, keys)| *keys);
    own.chain([EVERYWHERE]).flatten().find(|about| about.key == key)
}

const EVERYWHERE: &[About] = &[
    about("name", "", "Its name"),
    about("max-servers", "", "Nodes at once; 0 and less disable the pool"),
    about("max-cores", "", "Processor cores at once"),
    about("max-ram", "", "Memory at once, in MiB"),
    about("max-volumes", "", "Volumes at once"),
    about("max-volume-gb", "", "Size of all volumes together, in GB"),
    about("node-attributes", "", "Copied to each node, for Zuul"),
    about("connection-type", "\"ssh\"", "How Ansible reaches the nodes; handed to Zuul"),
    about("connection-port", "22", "Port that the nodes are reached at; 5986 where the connection is by winrm"),
    about("python-path", "\"auto\"", "Python interpreter on the nodes; handed to Ansible"),
    about("shell-type", "", "Shell of the nodes; handed to Ansible"),
    about("boot-timeout", "60", "Seconds until a server that runs has shown its host keys"),
    about("launch-timeout", "3600", "Seconds for one attempt to launch a node, from its beginning until it is ready"),
    about("launch-retries", "3", "Attempts for one node"),
    about("host-key-checking", "true", "Gather the host keys of the nodes over ssh before they are handed out"),
];

const OF_SECTIONS: &[(&[&str], &[About])] = &[
    (&["the file"], TOP_LEVEL),
    (
        &["webapp"],
        &[
            about("port", "8005", "Port of the launcher's web interface"),
            about("listen_address", "\"0.0.0.0\"", "Address that the web interface listens on"),
        ],
    ),
    (
        &["a ZooKeeper server"],
        &[
            about("host", "", "Name or address; an IPv6 address without brackets, in quotes"),
            about("port", "2281", "Port; without TLS ZooKeeper's usual one is 2181"),
            about(
                "chroot",
                "",
                "Path under which everything is kept, like /ci; the same at every server, and for Zuul",
            ),
        ],
    ),
    (
        &["zookeeper-tls"],
        &[
            about("cert", "", "PEM file of the client's certificate"),
            about("key", "", "PEM file of the certificate's key"),
            about("ca", "", "PEM file of the authority that the server's certificate is from"),
            about("check-hostname", "false", "The server's certificate must name the host that it was called by"),
        ],
    ),
    (
        &["a label"],
        &[
            about("name", "", "What consumers ask for"),
            about("min-ready", "0", "Nodes that are kept ready without anybody asking"),
            about("max-ready-age", "", "Age in seconds at which a ready node that nobody uses is deleted; 0 is never"),
        ],
    ),
    (&["a diskimage"], DISKIMAGE),
    (
        &["a tenant's limits"],
        &[
            about("tenant-name", "", "The tenant's name in Zuul"),
            about("max-servers", "", "Nodes of the tenant at once, over all providers and launchers"),
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
            about("region", "", "Shown by the nodes as theirs"),
            about("project", "", "Project of the cloud"),
            about("rate-limit", "1", "API calls per second"),
            about("cloud-images", "", "Images that the cloud has"),
        ],
    ),
    (&["an example pool"], &[about("use-internal-ip", "false", "Reach nodes at their private address")]),
];

const TOP_LEVEL: &[About] = &[
    about("webapp", "", "Where the launcher serves its web interface"),
    about("elements-dir", "", "Directories with elements for image builds, divided by colons"),
    about("images-dir", "", "Where the builder keeps images; no blanks in it"),
    about("build-log-dir", "\"/var/log/nodepool/builds\"", "Where the logs of image builds go"),
    about("build-log-retention", "7", "Logs kept for each image; negative keeps all"),
    about("zookeeper-servers", "", "The ZooKeeper that the launchers, builders and Zuul share"),
    about("zookeeper-tls", "", "Certificates for connections to ZooKeeper by TLS; without them they are plain TCP"),
    about("zookeeper-timeout", "10.0", "Seconds of silence after which ZooKeeper takes a launcher's locks away"),
    about("providers", "", "Where nodes come from"),
    about("labels", "", "Kinds of nodes that can be asked for"),
    about("diskimages", "", "Images that the builder makes, and what their nodes are like"),
    about("max-hold-age", "", "Age in seconds at which a held node is deleted; 0 and less are never"),
    about("tenant-resource-limits", "", "What all nodes of a tenant together may use"),
];

const DISKIMAGE: &[About] = &[
    about("name", "", "What labels and other images call it"),
    about("abstract", "false", "Only a parent for other images; not built"),
    about("parent", "", "The image that this one inherits from"),
    about("elements", "", "Elements for diskimage-builder; those of the parents come first"),
    about("formats", "", "Formats to build besides those that providers need"),
    about("keep-formats", "", "Formats that delete-after-upload spares"),
    about("delete-after-upload", "false", "Delete the local files when all providers have the image"),
    about("env-vars", "", "Environment of the build; secrets belong into the secure file"),
    about("release", "", "Exported to the build as DIB_RELEASE"),
    about("rebuild-age", "86400", "Age in seconds at which the image is built again"),
    about("build-timeout", "28800", "Seconds that a build may take"),
    about("dib-cmd", "\"disk-image-create\"", "Command that builds the image; may have arguments"),
    about("pause", "false", "Begin no builds"),
    about("username", "\"zuul\"", "Who logs in to the nodes"),
    about("metadata", "", "Properties of the uploaded images"),
];

const PROVIDERS: &[&str] =
    &["an openstack provider", "a fake provider", "a static provider", "an example provider", "a test provider"];

const PROVIDER: &[About] = &[
    about("name", "", "What nodes, logs and statistics call it; unique"),
    about(
        "driver",
        "",
        "Which kind it is. Without it, a name that begins with fake means fake and any other openstack",
    ),
    about("max-concurrency", "-1", "Requests that the provider's pools work on at once; negative is no limit"),
    about("priority", "100", "Lower is preferred; that of a pool wins"),
    about("pools", "", "Parts of the provider with limits and labels of their own"),
];

const POOLS: &[&str] = &["an openstack pool", "a static pool", "an example pool", "a test pool"];

const POOL: &[About] = &[
    about("name", "", "Unique in its provider"),
    about("priority", "", "Lower is preferred; without it the provider's counts"),
    about("labels", "", "What the pool provides; each is among the labels at the top"),
    about("nodes", "", "Hosts that exist"),
];

const STATIC_NODE: &[About] = &[
    about("name", "", "Host name or address"),
    about("labels", "", "What the host is handed out as; a text is divided at its blanks"),
    about("username", "\"zuul\"", "Who logs in"),
    about("timeout", "5", "Seconds for the connection that checks whether the host is alive"),
    about("host-key", "", "Keys that the host must show; without any, those it shows are taken"),
    about("max-parallel-jobs", "1", "Nodes that the host counts as"),
    about("connection-port", "22", "Port that the host is reached at"),
];

const OF_A_CLOUD: &[About] = &[
    about("cloud", "", "The cloud's name in clouds.yaml"),
    about("region-name", "", "Region of the cloud; without it that of clouds.yaml"),
    about("rate", "", "Least seconds between the starts of two API calls"),
    about("nodepool-id", "", "Has no effect any more"),
    about("image-name-format", "\"{image_name}-{timestamp}\"", "Name of an uploaded image in the cloud"),
    about("image-upload-timeout", "3600", "Seconds for an import by a task"),
    about("post-upload-hook", "", "Command that is called for each image that has arrived"),
    about("clean-floating-ips", "false", "Delete floating IPs that lead nowhere in two looks a minute apart"),
    about(
        "port-cleanup-interval",
        "600",
        "Seconds between two looks for ports that are down and left over; 0 is never",
    ),
    about("diskimages", "", "Images of the builder that are uploaded to this provider"),
    about("cloud-images", "", "Images that the cloud has"),
    about("fake", "", "What the cloud that is not there does"),
];

const CLOUD_POOL: &[About] = &[
    about("networks", "", "Names or ids; without them the cloud chooses"),
    about("auto-floating-ip", "true", "A server without a public address gets a floating IP, where the cloud has some"),
    about("ignore-provider-quota", "false", "Only the pool's own limits count"),
    about(
        "availability-zones",
        "",
        "Used in turn; all new nodes of a request share one. Without them all of the cloud's",
    ),
    about("security-groups", "", "Names or ids; without them the project's default"),
];

const CLOUD_LABEL: &[About] = &[
    about("name", "", "One of the labels at the top"),
    about("diskimage", "", "Image of the builder: the newest upload to this provider is booted"),
    about("cloud-image", "", "Name of one of the provider's cloud-images"),
    about("min-ram", "", "The smallest flavor with so many MiB whose name contains flavor-name"),
    about("flavor-name", "", "Name or id of the flavor; with min-ram a part of the name"),
    about("instance-type", "", "Type of the instance"),
    about("key-name", "", "Key pair of the cloud for the first login"),
    about("console-log", "false", "Log the server's console when its host keys cannot be had"),
    about("boot-from-volume", "false", "Boot from a volume, which goes with the server"),
    about("volume-size", "50", "Size of that volume, in GB"),
    about("instance-properties", "", "Metadata of the server"),
    about("dynamic-instance-properties", "", "The same, with parts of the request filled in: {request.tenant_name}"),
    about("userdata", "", "User data of the server, for cloud-init"),
    about("networks", "", "Names or ids, instead of the pool's"),
    about("host-key-checking", "", "As for the pool, for this label only"),
];

const CLOUD_IMAGE: &[About] = &[
    about("name", "", "What labels call it, and without image-id and image-name also the cloud"),
    about("image-id", "", "Id of the image in the cloud, taken as it is"),
    about("image-name", "", "Name or id of the image in the cloud"),
    about("config-drive", "", "Give servers a drive with their metadata"),
    about("username", "", "Who logs in to the nodes"),
    about("key", "", "Public key for the first login"),
];

const CLOUD_DISKIMAGE: &[About] = &[
    about("name", "", "One of the diskimages at the top"),
    about("pause", "false", "Begin no uploads to this provider"),
    about("meta", "", "Properties of the image in the cloud, over the metadata of the diskimage"),
    about("config-drive", "", "Give servers a drive with their metadata"),
];

const FAKE_CLOUD: &[About] = &[
    about("boot-time", "0.1", "Seconds until a server runs"),
    about("delete-time", "0", "Seconds until a deleted server has gone"),
    about("latency", "0", "Seconds of every call"),
    about("create-fails-every", "0", "Every so many creations are refused; 0 is never"),
    about("create-answer-lost-every", "0", "Every so many creations make a server and fail nevertheless; 0 is never"),
    about("boot-fails-every", "0", "Every so many servers end in an error; 0 is never"),
    about("boot-quota-every", "0", "Every so many servers end in an error that speaks of a quota; 0 is never"),
    about("boot-hangs-every", "0", "Every so many servers boot for ever; 0 is never"),
    about("delete-fails-every", "0", "Every so many deletions are refused; 0 is never"),
    about("upload-time", "0", "Seconds of every upload"),
    about("upload-fails-every", "0", "Every so many uploads are refused; 0 is never"),
    about("image-delete-fails-every", "0", "Every so many deletions of images are refused; 0 is never"),
    about("image-format", "\"qcow2\"", "Format of the images that the cloud takes"),
    about("throttle-every", "0", "Every so many calls are told to come again later; 0 is never"),
    about("retry-after", "1", "Seconds after which such a call may come again"),
    about("zones", "[\"az1\", \"az2\"]", "Availability zones"),
    about("images", "[\"Fake Precise\", \"fake-image-id\"]", "Images that the cloud has"),
    about("address", "\"fake\"", "Address of every server; host keys are scanned there unless it contains fake"),
    about("console", "", "What every server writes to its console"),
    about("max-instances", "20", "Servers that the cloud has room for"),
    about("max-cores", "100", "Cores that the cloud has"),
    about("max-ram", "1000000", "Memory that the cloud has, in MiB"),
    about("max-volumes", "100", "Volumes that the cloud has room for"),
    about("max-volume-gb", "1000000", "Size of all volumes together, in GB"),
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
            sections(check::of_driver(driver).unwrap(), &mut found);
        }
        found
    }

    #[test]
    fn every_key_of_the_drivers_that_are_served_is_explained() {
        for section in of_served_drivers() {
            for key in section.all_keys() {
                assert!(find(section.what, key.name).is_some(), "{}: {} is not explained", section.what, key.name);
            }
        }
    }

    #[test]
    fn nothing_is_explained_that_is_not_there() {
        let known = of_served_drivers();
        for (names, keys) in OF_SECTIONS {
            let named: Vec<_> = known.iter().filter(|section| names.contains(&section.what)).collect();
            assert!(names.iter().all(|name| named.iter().any(|section| section.what == *name)), "{names:?}");
            for about in *keys {
                assert!(named.iter().any(|section| section.key(about.key).is_some()), "{names:?}: {}", about.key);
            }
        }
        for about in OF_SECTIONS.iter().flat_map(|(_, keys)| *keys).chain(EVERYWHERE) {
            assert!(about.default.is_empty() || about.default().is_some(), "{}: {}", about.key, about.default);
        }
    }
}
