//! Schema tables of azure and ibmvpc, whose images and addresses have many forms.

use super::common::{CONNECTION, POOL, PROVIDER, SHELL, TEXTS};
use super::virtual_machines::LAUNCH;
use crate::config::schema::dsl::Shape::{self, *};
use crate::config::schema::dsl::{Key, RequiredKeys, Section, exclusive, key, required, section};

/// Addresses of an azure node.
const AZURE_ADDRESSES: &[Key] = &[
    key("ipv4", Boolean),
    key("ipv6", Boolean),
    key("public-ipv4", Boolean),
    key("public-ipv6", Boolean),
    key("use-internal-ip", Boolean),
    key("host-key-checking", Boolean),
];

pub static AZURE: Section = section(
    "an azure provider",
    &[
        PROVIDER,
        LAUNCH,
        AZURE_ADDRESSES,
        &[
            required("pools", List(&Map(&AZURE_POOL))),
            required("location", Text),
            required("resource-group", Text),
            required("resource-group-location", Text),
            key("subnet-id", Text),
            key("network", Either(&[Text, Map(&AZURE_NETWORK)])),
            key("cloud-images", List(&Map(&AZURE_IMAGE))),
            key("diskimages", List(&Map(&AZURE_DISKIMAGE))),
            required("auth-path", Text),
            key("post-upload-hook", Text),
            key("rate", Convertible),
            key("zuul-public-key", Text),
        ],
    ],
);

static AZURE_NETWORK: Section =
    section("a network", &[&[key("resource-group", Text), key("network", Text), key("subnet", Text)]]);

static AZURE_IMAGE: Section = Section {
    required_keys: &[RequiredKeys {
        keys: &["image-reference", "image-id", "image-filter", "community-gallery-image", "shared-gallery-image"],
        message: Some(concat!(
            r#"Provide one of "image-reference", "image-filter", "image-id", "community-gallery-image", "#,
            r#"or "shared-gallery-image" keys"#
        )),
    }],
    ..section(
        "an azure cloud image",
        &[
            CONNECTION,
            SHELL,
            &[
                required("name", Text),
                required("username", Text),
                key("password", Text),
                key("generate-password", Boolean),
                key("key", Text),
                exclusive("image-reference", "spec", Map(&AZURE_REFERENCE)),
                exclusive("image-id", "spec", Text),
                exclusive("image-filter", "spec", Map(&AZURE_FILTER)),
                exclusive("community-gallery-image", "spec", Map(&AZURE_GALLERY)),
                exclusive("shared-gallery-image", "spec", Map(&AZURE_GALLERY)),
            ],
        ],
    )
};

static AZURE_REFERENCE: Section = section(
    "an image reference",
    &[&[required("sku", Text), required("publisher", Text), required("version", Text), required("offer", Text)]],
);

static AZURE_FILTER: Section =
    section("an image filter", &[&[key("location", Text), key("name", Text), key("tags", AnyMap)]]);

static AZURE_GALLERY: Section =
    section("a gallery image", &[&[required("gallery-name", Text), required("name", Text), key("version", Text)]]);

static AZURE_DISKIMAGE: Section = section(
    "a diskimage of an azure provider",
    &[
        CONNECTION,
        SHELL,
        &[required("name", Text), key("username", Text), key("key", Text), key("pause", Boolean), key("tags", AnyMap)],
    ],
);

static AZURE_POOL: Section = section(
    "an azure pool",
    &[POOL, AZURE_ADDRESSES, &[required("name", Text), required("labels", List(&Map(&AZURE_LABEL)))]],
);

static AZURE_LABEL: Section = section(
    "a label of an azure pool",
    &[&[
        required("name", Text),
        key("cloud-image", Text),
        key("diskimage", Text),
        required("hardware-profile", Map(&AZURE_HARDWARE)),
        key("tags", AnyMap),
        key("dynamic-tags", AnyMap),
        key("user-data", Text),
        key("custom-data", Text),
        key("volume-size", Integer),
    ]],
);

static AZURE_HARDWARE: Section = section("a hardware profile", &[&[required("vm-size", Text)]]);

/// Addresses of an ibmvpc node.
const IBMVPC_ADDRESSES: &[Key] =
    &[key("public-ipv4", Boolean), key("use-internal-ip", Boolean), key("host-key-checking", Boolean)];

pub static IBMVPC: Section = section(
    "an ibmvpc provider",
    &[
        // Listed before the common keys, because the first entry of a key counts.
        &[required("name", Shape::Pattern(&NO_UNDERSCORE))],
        PROVIDER,
        LAUNCH,
        IBMVPC_ADDRESSES,
        &[
            required("pools", List(&Map(&IBMVPC_POOL))),
            required("vpc", Text),
            required("region", Text),
            key("zone", Text),
            key("subnet", Text),
            key("cloud-images", List(&Map(&IBMVPC_IMAGE))),
            key("diskimages", List(&Map(&IBMVPC_DISKIMAGE))),
            key("quota", Map(&IBMVPC_QUOTA)),
            key("post-upload-hook", Text),
            key("rate", Convertible),
            key("credentials-file", Text),
            key("object-storage", Map(&IBMVPC_STORAGE)),
        ],
    ],
);

static NO_UNDERSCORE: crate::config::schema::dsl::Pattern = crate::config::schema::dsl::Pattern {
    expression: "^[^_]+$",
    meaning: "text without underscores",
    matches: |text| !text.is_empty() && !text.contains('_'),
};

static STARTS_WITHOUT_UNDERSCORE: crate::config::schema::dsl::Pattern = crate::config::schema::dsl::Pattern {
    expression: "[^_]+",
    meaning: "text that does not start with an underscore",
    matches: |text| !text.is_empty() && !text.starts_with('_'),
};

static IBMVPC_QUOTA: Section =
    section("a quota", &[&[key("instances", Integer), key("cores", Integer), key("ram", Integer)]]);

static IBMVPC_STORAGE: Section = section(
    "object-storage",
    &[&[required("instance-name", Text), required("endpoint", Text), required("bucket-name", Text)]],
);

static IBMVPC_IMAGE: Section = Section {
    required_keys: &[RequiredKeys {
        keys: &["image-href", "image-id", "image-name", "image-filter"],
        message: Some(r#"Provide either "image-filter", "image-href", "image-id", or "image-name" keys"#),
    }],
    ..section(
        "an ibmvpc cloud image",
        &[
            CONNECTION,
            SHELL,
            &[
                required("name", Text),
                required("username", Text),
                key("keys", TEXTS),
                exclusive("image-href", "spec", Text),
                exclusive("image-id", "spec", Text),
                exclusive("image-name", "spec", Text),
                exclusive("image-filter", "spec", Map(&IBMVPC_FILTER)),
            ],
        ],
    )
};

static IBMVPC_FILTER: Section = section(
    "an image filter",
    &[&[key("operating-system", Map(&IBMVPC_SYSTEM)), key("owner-type", Text), key("status", Text)]],
);

static IBMVPC_SYSTEM: Section = section(
    "an operating system",
    &[&[
        key("architecture", Text),
        key("dedicated-host-only", Boolean),
        key("display-name", Text),
        key("family", Text),
        key("href", Text),
        key("name", Text),
        key("vendor", Text),
        key("version", Text),
    ]],
);

static IBMVPC_DISKIMAGE: Section = section(
    "a diskimage of an ibmvpc provider",
    &[CONNECTION, SHELL, &[required("name", Text), required("operating-system", Text), key("pause", Boolean)]],
);

static IBMVPC_POOL: Section = section(
    "an ibmvpc pool",
    &[
        POOL,
        IBMVPC_ADDRESSES,
        &[
            required("name", Shape::Pattern(&STARTS_WITHOUT_UNDERSCORE)),
            required("labels", List(&Map(&IBMVPC_LABEL))),
            key("zone", Text),
            key("subnet", Text),
        ],
    ],
);

static IBMVPC_LABEL: Section = section(
    "a label of an ibmvpc pool",
    &[&[
        required("name", Text),
        key("cloud-image", Text),
        key("diskimage", Text),
        required("profile", Text),
        key("user-data", Text),
    ]],
);
