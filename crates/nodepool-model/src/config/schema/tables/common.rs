//! Schema tables: the top level of the file, the keys of all providers and pools, and the drivers without a cloud.

use crate::config::schema::dsl::Shape::{self, *};
use crate::config::schema::dsl::{Key, Section, key, required, section};

pub const TEXTS: Shape = List(&Text);
pub const TEXT_OR_TEXTS: Shape = Either(&[Text, TEXTS]);
pub const COUNTS: Shape = TextMap(&Integer);

pub static TOP_LEVEL: Section = section(
    "the file",
    &[&[
        key("webapp", Map(&WEBAPP)),
        key("elements-dir", Text),
        key("images-dir", Text),
        key("build-log-dir", Text),
        key("build-log-retention", Integer),
        key("zookeeper-servers", List(&Map(&ZOOKEEPER_SERVER))),
        key("zookeeper-tls", Map(&ZOOKEEPER_TLS)),
        key("zookeeper-timeout", Float),
        key("providers", AnyList),
        key("labels", List(&Map(&LABEL))),
        key("diskimages", List(&Map(&DISKIMAGE))),
        key("max-hold-age", Integer),
        key("tenant-resource-limits", List(&Map(&TENANT_LIMIT))),
    ]],
);

static WEBAPP: Section = section("webapp", &[&[key("port", Integer), key("listen_address", Text)]]);

static ZOOKEEPER_SERVER: Section =
    section("a ZooKeeper server", &[&[key("host", Text), key("port", Integer), key("chroot", Text)]]);

static ZOOKEEPER_TLS: Section = section(
    "zookeeper-tls",
    &[&[key("cert", Text), key("key", Text), key("ca", Text), key("check-hostname", Boolean)]],
);

static LABEL: Section =
    section("a label", &[&[key("name", Text), key("min-ready", Integer), key("max-ready-age", Integer)]]);

static DISKIMAGE: Section = section(
    "a diskimage",
    &[&[
        required("name", Text),
        key("abstract", Boolean),
        key("dib-cmd", Text),
        key("pause", Boolean),
        key("elements", TEXTS),
        key("formats", TEXTS),
        key("keep-formats", TEXTS),
        key("delete-after-upload", Boolean),
        key("parent", Text),
        key("release", Either(&[Text, Integer])),
        key("rebuild-age", Integer),
        key("env-vars", TextMap(&Text)),
        key("username", Text),
        key("python-path", Text),
        // The loader and the manual of Nodepool 11 know this key; only its validator does not.
        key("shell-type", Text),
        key("build-timeout", Integer),
        key("metadata", AnyMap),
    ]],
);

static TENANT_LIMIT: Section = Section {
    additional: Some(Integer),
    ..section(
        "a tenant's limits",
        &[&[
            key("tenant-name", Text),
            key("max-cores", Integer),
            key("max-ram", Integer),
            key("max-servers", Integer),
            key("max-volumes", Integer),
            key("max-volume-gb", Integer),
        ]],
    )
};

/// Keys of every provider.
pub const PROVIDER: &[Key] =
    &[required("name", Text), key("driver", Text), key("max-concurrency", Integer), key("priority", Integer)];

/// Keys of every pool.
pub const POOL: &[Key] = &[key("max-servers", Integer), key("node-attributes", AnyMap), key("priority", Integer)];

pub const CONNECTION: &[Key] = &[key("connection-type", Text), key("connection-port", Integer)];

/// Keys for running commands on a node.
pub const SHELL: &[Key] = &[key("python-path", Text), key("shell-type", Text)];

pub static STATIC: Section = section("a static provider", &[PROVIDER, &[key("pools", List(&Map(&STATIC_POOL)))]]);

static STATIC_POOL: Section =
    section("a static pool", &[POOL, &[key("name", Text), key("nodes", List(&Map(&STATIC_NODE)))]]);

static STATIC_NODE: Section = section(
    "a static node",
    &[
        CONNECTION,
        SHELL,
        &[
            required("name", Text),
            required("labels", TEXT_OR_TEXTS),
            key("username", Text),
            key("timeout", Integer),
            key("host-key-checking", Boolean),
            key("host-key", TEXT_OR_TEXTS),
            key("max-parallel-jobs", Integer),
        ],
    ],
);

pub static TEST: Section = section("a test provider", &[PROVIDER, &[key("pools", List(&Map(&TEST_POOL)))]]);

static TEST_POOL: Section = section("a test pool", &[POOL, &[key("name", Text), key("labels", TEXTS)]]);

pub static EXAMPLE: Section = section(
    "an example provider",
    &[
        PROVIDER,
        &[
            required("pools", List(&Map(&EXAMPLE_POOL))),
            required("region", Text),
            required("project", Text),
            key("cloud-images", List(&Map(&EXAMPLE_IMAGE))),
            key("boot-timeout", Integer),
            key("launch-retries", Integer),
            key("rate-limit", Integer),
        ],
    ],
);

static EXAMPLE_POOL: Section = section(
    "an example pool",
    &[POOL, &[required("name", Text), required("labels", List(&Map(&EXAMPLE_LABEL))), key("use-internal-ip", Boolean)]],
);

static EXAMPLE_LABEL: Section = section(
    "a label of an example pool",
    &[&[required("name", Text), required("cloud-image", Text), required("instance-type", Text)]],
);

static EXAMPLE_IMAGE: Section = section(
    "an example cloud image",
    &[
        CONNECTION,
        &[key("name", Text), key("image-id", Text), key("username", Text), key("key", Text), key("python-path", Text)],
    ],
);

pub static METASTATIC: Section = section(
    "a metastatic provider",
    &[
        PROVIDER,
        &[
            key("boot-timeout", Integer),
            key("launch-timeout", Integer),
            key("launch-retries", Integer),
            required("pools", List(&Map(&METASTATIC_POOL))),
        ],
    ],
);

static METASTATIC_POOL: Section = section(
    "a metastatic pool",
    &[
        POOL,
        &[required("name", Text), required("labels", List(&Map(&METASTATIC_LABEL))), key("host-key-checking", Boolean)],
    ],
);

static METASTATIC_LABEL: Section = section(
    "a label of a metastatic pool",
    &[&[
        required("name", Text),
        required("backing-label", Text),
        key("max-parallel-jobs", Integer),
        key("grace-time", Integer),
        key("min-retention-time", Integer),
        key("max-age", Integer),
        key("max-failures", Integer),
        key("host-key-checking", Boolean),
    ]],
);
