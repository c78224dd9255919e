//! Schema tables of the drivers whose nodes are pods or namespaces: kubernetes, openshift, openshiftpods.

use super::common::{COUNTS, POOL, PROVIDER, SHELL};
use crate::config::schema::dsl::Shape::*;
use crate::config::schema::dsl::{Key, Section, key, required, section};

const LIMITS: &[Key] = &[key("max-cores", Integer), key("max-ram", Integer), key("max-resources", COUNTS)];

const POOL_DEFAULTS: &[Key] = &[
    key("default-label-cpu", Integer),
    key("default-label-memory", Integer),
    key("default-label-storage", Integer),
    key("default-label-cpu-limit", Integer),
    key("default-label-memory-limit", Integer),
    key("default-label-storage-limit", Integer),
    key("default-label-extra-resources", COUNTS),
    // The loader of Nodepool 11 reads only this spelling, so files that rely on it exist.
    key("default-label-extra_resources", COUNTS),
];

/// A pod described key by key.
const POD: &[Key] = &[
    key("image-pull", Text),
    key("cpu", Integer),
    key("memory", Integer),
    key("storage", Integer),
    key("cpu-limit", Integer),
    key("memory-limit", Integer),
    key("storage-limit", Integer),
    key("gpu", Float),
    key("gpu-resource", Text),
    key("node-selector", AnyMap),
    key("privileged", Boolean),
    key("scheduler-name", Text),
    key("volumes", AnyList),
    key("volume-mounts", AnyList),
    key("extra-resources", COUNTS),
];

/// Metadata of a pod, which is described key by key or by `spec`.
const METADATA: &[Key] = &[key("labels", AnyMap), key("dynamic-labels", AnyMap), key("annotations", AnyMap)];

const NAME: &[Key] = &[required("name", Text)];
const TYPE: &[Key] = &[required("type", Text)];
const SPEC: &[Key] = &[required("spec", AnyMap)];
const PULL_SECRETS: &[Key] = &[key("image-pull-secrets", AnyList)];

static ENVIRONMENT: Section = section("an environment variable", &[&[required("name", Text), required("value", Text)]]);

pub static KUBERNETES: Section = section(
    "a kubernetes provider",
    &[
        PROVIDER,
        LIMITS,
        &[
            required("pools", List(&Map(&KUBERNETES_POOL))),
            key("context", Text),
            key("launch-retries", Integer),
            key("max-servers", Integer),
        ],
    ],
);

static KUBERNETES_POOL: Section = section(
    "a kubernetes pool",
    &[
        POOL,
        LIMITS,
        POOL_DEFAULTS,
        &[required("name", Text), required("labels", List(&Either(&[Map(&KUBERNETES_LABEL), Map(&LABEL_WITH_SPEC)])))],
    ],
);

static KUBERNETES_LABEL: Section = section(
    "a label of a kubernetes pool",
    &[NAME, TYPE, POD, SHELL, METADATA, &[key("image", Text), key("env", List(&Map(&ENVIRONMENT)))]],
);

static LABEL_WITH_SPEC: Section = section("a label with `spec`", &[NAME, TYPE, SPEC, METADATA]);

pub static OPENSHIFT: Section = section(
    "an openshift provider",
    &[
        PROVIDER,
        LIMITS,
        &[
            required("pools", List(&Map(&OPENSHIFT_POOL))),
            required("context", Text),
            key("launch-retries", Integer),
            key("max-projects", Integer),
        ],
    ],
);

static OPENSHIFT_POOL: Section = section(
    "an openshift pool",
    &[
        POOL,
        LIMITS,
        POOL_DEFAULTS,
        &[required("name", Text), required("labels", List(&Either(&[Map(&OPENSHIFT_LABEL), Map(&LABEL_WITH_SPEC)])))],
    ],
);

static OPENSHIFT_LABEL: Section = section(
    "a label of an openshift pool",
    &[NAME, TYPE, POD, SHELL, METADATA, PULL_SECRETS, &[key("image", Text), key("env", List(&Map(&ENVIRONMENT)))]],
);

pub static OPENSHIFTPODS: Section = section(
    "an openshiftpods provider",
    &[
        PROVIDER,
        LIMITS,
        &[
            required("pools", List(&Map(&OPENSHIFTPODS_POOL))),
            required("context", Text),
            key("launch-retries", Integer),
            // The validator of Nodepool 11 knows the first of these and its loader the other two.
            key("max-pods", Integer),
            key("max-projects", Integer),
            key("max-servers", Integer),
        ],
    ],
);

static OPENSHIFTPODS_POOL: Section = section(
    "an openshiftpods pool",
    &[
        POOL,
        LIMITS,
        POOL_DEFAULTS,
        &[required("name", Text), required("labels", List(&Either(&[Map(&OPENSHIFTPODS_LABEL), Map(&POD_WITH_SPEC)])))],
    ],
);

static OPENSHIFTPODS_LABEL: Section = section(
    "a label of an openshiftpods pool",
    &[NAME, POD, SHELL, METADATA, PULL_SECRETS, &[required("image", Text), key("env", List(&Map(&ENVIRONMENT)))]],
);

static POD_WITH_SPEC: Section = section("a label with `spec`", &[NAME, SPEC, METADATA]);
