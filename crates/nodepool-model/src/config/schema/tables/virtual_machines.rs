//! Schema tables of the drivers whose nodes are virtual machines: openstack and fake, aws, gce.

use super::common::{CONNECTION, COUNTS, POOL, PROVIDER, SHELL, TEXTS};
use crate::config::schema::dsl::Shape::*;
use crate::config::schema::dsl::{Key, RequiredKeys, Section, exclusive, key, required, section};

/// Timeouts and retries of launches.
pub const LAUNCH: &[Key] =
    &[key("boot-timeout", Integer), key("launch-timeout", Integer), key("launch-retries", Integer)];

pub static OPENSTACK: Section = section("an openstack provider", &[PROVIDER, LAUNCH, SERVERS]);

/// The keys of openstack, and the settings of the fake cloud.
pub static FAKE: Section = section("a fake provider", &[PROVIDER, LAUNCH, SERVERS, &[key("fake", Map(&FAKE_CLOUD))]]);

static FAKE_CLOUD: Section = section(
    "a fake cloud",
    &[&[
        key("boot-time", Convertible),
        key("delete-time", Convertible),
        key("latency", Convertible),
        key("create-fails-every", Integer),
        key("create-answer-lost-every", Integer),
        key("boot-fails-every", Integer),
        key("boot-quota-every", Integer),
        key("boot-hangs-every", Integer),
        key("delete-fails-every", Integer),
        key("upload-time", Convertible),
        key("upload-fails-every", Integer),
        key("image-delete-fails-every", Integer),
        key("image-format", Text),
        key("throttle-every", Integer),
        key("retry-after", Convertible),
        key("zones", TEXTS),
        key("images", TEXTS),
        key("address", Text),
        key("console", Text),
        key("max-cores", Integer),
        key("max-instances", Integer),
        key("max-ram", Integer),
        key("max-volumes", Integer),
        key("max-volume-gb", Integer),
    ]],
);

static SERVERS: &[Key] = &[
    key("region-name", Text),
    required("cloud", Text),
    key("image-upload-timeout", Integer),
    key("nodepool-id", Text),
    key("rate", Convertible),
    key("image-name-format", Text),
    key("clean-floating-ips", Boolean),
    key("port-cleanup-interval", Integer),
    key("pools", List(&Map(&OPENSTACK_POOL))),
    key("diskimages", List(&Map(&OPENSTACK_DISKIMAGE))),
    key("cloud-images", List(&Map(&OPENSTACK_IMAGE))),
    key("post-upload-hook", Text),
];

static OPENSTACK_DISKIMAGE: Section = section(
    "a diskimage of an openstack provider",
    &[CONNECTION, &[key("name", Text), key("pause", Boolean), key("meta", AnyMap), key("config-drive", Boolean)]],
);

static OPENSTACK_IMAGE: Section = section(
    "an openstack cloud image",
    &[
        CONNECTION,
        SHELL,
        &[
            key("name", Text),
            key("config-drive", Boolean),
            exclusive("image-id", "cloud-image-name-or-id", Text),
            exclusive("image-name", "cloud-image-name-or-id", Text),
            key("username", Text),
        ],
    ],
);

static OPENSTACK_POOL: Section = section(
    "an openstack pool",
    &[
        POOL,
        &[
            key("name", Text),
            key("networks", TEXTS),
            key("auto-floating-ip", Boolean),
            key("host-key-checking", Boolean),
            key("ignore-provider-quota", Boolean),
            key("max-cores", Integer),
            key("max-ram", Integer),
            key("max-volumes", Integer),
            key("max-volume-gb", Integer),
            key("labels", List(&Map(&OPENSTACK_LABEL))),
            key("availability-zones", TEXTS),
            key("security-groups", TEXTS),
        ],
    ],
);

static OPENSTACK_LABEL: Section = Section {
    required_keys: &[
        RequiredKeys { keys: &["min-ram", "flavor-name"], message: None },
        RequiredKeys { keys: &["diskimage", "cloud-image"], message: None },
    ],
    ..section(
        "a label of an openstack pool",
        &[&[
            required("name", Text),
            exclusive("diskimage", "label-image", Text),
            exclusive("cloud-image", "label-image", Text),
            key("min-ram", Integer),
            key("flavor-name", Text),
            key("key-name", Text),
            key("console-log", Boolean),
            key("boot-from-volume", Boolean),
            key("volume-size", Integer),
            key("instance-properties", AnyMap),
            key("dynamic-instance-properties", AnyMap),
            key("userdata", Text),
            key("networks", TEXTS),
            key("host-key-checking", Boolean),
        ]],
    )
};

pub static AWS: Section = section(
    "an aws provider",
    &[
        PROVIDER,
        LAUNCH,
        &[
            required("pools", List(&Map(&AWS_POOL))),
            required("region-name", Text),
            key("rate", Either(&[Integer, Float])),
            key("profile-name", Text),
            key("cloud-images", List(&Map(&AWS_IMAGE))),
            key("diskimages", List(&Map(&AWS_DISKIMAGE))),
            key("object-storage", Map(&AWS_STORAGE)),
            key("image-format", OneOf(&["ova", "vhd", "vhdx", "vmdk", "raw"])),
            key("image-import-timeout", Integer),
            key("max-servers", Integer),
            key("max-cores", Integer),
            key("max-ram", Integer),
            key("max-resources", COUNTS),
            key("post-upload-hook", Text),
        ],
    ],
);

static AWS_STORAGE: Section = section("object-storage", &[&[required("bucket-name", Text)]]);

static AWS_IMAGE: Section = Section {
    required_keys: &[RequiredKeys {
        keys: &["image-id", "image-filters"],
        message: Some(r#"Provide either "image-filters", or "image-id" keys"#),
    }],
    ..section(
        "an aws cloud image",
        &[
            CONNECTION,
            SHELL,
            &[
                required("name", Text),
                required("username", Text),
                exclusive("image-id", "spec", Text),
                exclusive("image-filters", "spec", List(&Map(&AWS_IMAGE_FILTER))),
            ],
        ],
    )
};

static AWS_IMAGE_FILTER: Section =
    section("an image filter", &[&[key("name", Text), key("Name", Text), key("values", TEXTS), key("Values", TEXTS)]]);

static AWS_DISKIMAGE: Section = section(
    "a diskimage of an aws provider",
    &[
        CONNECTION,
        SHELL,
        &[
            required("name", Text),
            key("username", Text),
            key("pause", Boolean),
            key("architecture", Text),
            key("ena-support", Boolean),
            key("volume-size", Integer),
            key("volume-type", Text),
            key("import-method", OneOf(&["snapshot", "ebs-direct", "image"])),
            key("imds-support", OneOfOrNull(&["v2.0"])),
            key("iops", Integer),
            key("throughput", Integer),
            key("tags", AnyMap),
        ],
    ],
);

static AWS_POOL: Section = section(
    "an aws pool",
    &[
        POOL,
        &[
            required("name", Text),
            required("labels", List(&Map(&AWS_LABEL))),
            key("security-group-id", Text),
            key("subnet-id", Text),
            key("subnet-ids", TEXTS),
            key("public-ip-address", Boolean),
            key("public-ipv4", Boolean),
            key("public-ipv6", Boolean),
            key("host-key-checking", Boolean),
            key("max-cores", Integer),
            key("max-ram", Integer),
            key("max-resources", COUNTS),
            key("availability-zone", Text),
            key("availability-zones", TEXTS),
        ],
    ],
);

static AWS_LABEL: Section = section(
    "a label of an aws pool",
    &[&[
        required("name", Text),
        exclusive("cloud-image", "image", Text),
        exclusive("diskimage", "image", Text),
        exclusive("instance-type", "instance", Text),
        exclusive("instance-types", "instance", TEXTS),
        exclusive("fleet", "instance", Map(&AWS_FLEET)),
        required("key-name", Text),
        key("ebs-optimized", Boolean),
        key("volume-type", Text),
        key("volume-size", Integer),
        key("iops", Integer),
        key("throughput", Integer),
        key("userdata", Text),
        key("iam-instance-profile", Map(&AWS_INSTANCE_PROFILE)),
        key("tags", AnyMap),
        key("dynamic-tags", AnyMap),
        key("use-spot", Boolean),
        key("spot-fallback", OneOf(&["on-demand"])),
        key("imdsv2", OneOfOrNull(&["required", "optional"])),
        key("dedicated-host", Boolean),
    ]],
);

static AWS_FLEET: Section = section(
    "a fleet",
    &[&[
        required("instance-types", AnyList),
        required(
            "allocation-strategy",
            OneOf(&["prioritized", "price-capacity-optimized", "capacity-optimized", "diversified", "lowest-price"]),
        ),
    ]],
);

static AWS_INSTANCE_PROFILE: Section = section(
    "an instance profile",
    &[&[exclusive("name", "iam_instance_profile_id", Text), exclusive("arn", "iam_instance_profile_id", Text)]],
);

pub static GCE: Section = Section {
    required_keys: &[RequiredKeys { keys: &["zone", "zones"], message: None }],
    ..section(
        "a gce provider",
        &[
            PROVIDER,
            LAUNCH,
            &[
                required("pools", List(&Map(&GCE_POOL))),
                required("region", Text),
                required("project", Text),
                exclusive("zone", "zone", Text),
                exclusive("zones", "zone", TEXTS),
                key("cloud-images", List(&Map(&GCE_IMAGE))),
                key("rate-limit", Integer),
            ],
        ],
    )
};

static GCE_POOL: Section = section(
    "a gce pool",
    &[
        POOL,
        &[
            required("name", Text),
            required("labels", List(&Map(&GCE_LABEL))),
            key("use-internal-ip", Boolean),
            key("subnetwork", Text),
        ],
    ],
);

static GCE_LABEL: Section = section(
    "a label of a gce pool",
    &[&[
        required("name", Text),
        required("cloud-image", Text),
        required("instance-type", Text),
        key("volume-type", Text),
        key("volume-size", Integer),
        key("tags", TEXTS),
        key("service-account", Text),
        key("provisioning-model", OneOf(&["standard", "spot"])),
    ]],
);

static GCE_IMAGE: Section = section(
    "a gce cloud image",
    &[
        CONNECTION,
        SHELL,
        &[
            key("name", Text),
            key("image-id", Text),
            key("image-project", Text),
            key("image-family", Text),
            key("username", Text),
            key("key", Text),
        ],
    ],
);
