//! Clouds files, variables and selections, each with the expected outcome.

/// Set-up and selection of a case. `@` stands for the directory of the case; its current directory is `@/work`.
pub struct Case<'a> {
    pub name: &'a str,
    pub files: &'a [(&'a str, &'a str)],
    pub variables: &'a [(&'a str, &'a str)],
    pub cloud: Option<&'a str>,
    pub region: Option<&'a str>,
    pub outcome: Outcome,
}

#[derive(Debug)]
// The reasons document the case, and are part of the message if it fails.
#[allow(dead_code)]
pub enum Outcome {
    Same,
    SameExcept(&'static [Exception]),
    /// Each text is a part of the message.
    BothReject {
        ours: &'static str,
        theirs: &'static str,
    },
    OnlyOursRejects {
        ours: &'static str,
        why: &'static str,
    },
    OnlySdkRejects {
        theirs: &'static str,
        why: &'static str,
    },
}

/// A setting that differs on purpose.
#[derive(Debug)]
pub struct Exception {
    pub at: &'static str,
    /// Our value, in JSON.
    pub ours: &'static str,
    pub why: &'static str,
}

/// A case that selects cloud `c` of a clouds.yaml in the current directory.
const fn plain(name: &'static str, files: &'static [(&'static str, &'static str)], outcome: Outcome) -> Case<'static> {
    Case { name, files, variables: &[], cloud: Some("c"), region: None, outcome }
}

pub const OTC_SWISS: &[Exception] = &[Exception {
    at: "/login/auth_url",
    ours: "\"https://iam-pub.eu-ch2.sc.otc.t-systems.com/v3\"",
    why: "the URL of the SDK has no scheme, so that no request can be sent",
}];

const OLD_NETWORKS: &[Exception] = &[Exception {
    at: "/networks",
    ours: r#"[{"name": "out", "routes_externally": true, "routes_ipv4_externally": true,
                   "routes_ipv6_externally": true, "nat_source": false, "nat_destination": false, "default_interface": true},
                  {"name": "in", "routes_externally": false, "routes_ipv4_externally": false,
                   "routes_ipv6_externally": false, "nat_source": false, "nat_destination": true, "default_interface": false}]"#,
    why: "the SDK omits three keys and fails when it reads them",
}];

const UNSCOPED: &[Exception] = &[Exception {
    at: "/services/identity/endpoint",
    ours: "null",
    why: "the SDK falls back to the login URL here; ours is in `login`",
}];

const QUOTED_NO: &[Exception] = &[Exception {
    at: "/private",
    ours: "false",
    why: "some flags of the SDK read any text as true, even 'false'; we accept only 'true', as its other flags do",
}];

pub const CASES: &[Case<'static>] = &[
    plain("a password", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: 'https://k', username: u, password: p, project_name: ci,
        user_domain_name: Default, project_domain_name: Default}}}")], Outcome::Same),
    plain("ids and numbers", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: 'https://k/v3', user_id: 007, password: 1234,
        project_id: 42}, auth_type: v3password}}")], Outcome::Same),
    plain("a password of version 2", &[("work/clouds.yaml", "clouds: {c: {auth_type: v2password, auth: {auth_url: 'https://k/v2.0',
        username: u, password: p, project_name: ci}}}")], Outcome::SameExcept(UNSCOPED)),
    plain("a service that is not used", &[("work/clouds.yaml", "clouds: {c: {has_network: false, has_block_storage: false,
        auth: {auth_url: 'https://k/v3', username: u, password: p, project_name: ci}}}")], Outcome::Same),
    plain("an id and a name", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, user_id: i, username: u, password: p,
        project_id: i, project_name: n, user_domain_id: d, user_domain_name: D}}}")], Outcome::Same),
    plain("a token", &[("work/clouds.yaml", "clouds: {c: {auth_type: token, auth: {auth_url: x, auth_token: t,
        project_name: ci, project_domain_id: default}}}")], Outcome::Same),
    plain("a token of version 3", &[("work/clouds.yaml", "clouds: {c: {auth_type: v3token, token: t,
        auth: {auth_url: x, project_id: i}}}")], Outcome::Same),
    plain("a credential by id", &[("work/clouds.yaml", "clouds: {c: {auth_type: v3applicationcredential, auth: {auth_url: x,
        application_credential_id: i, application_credential_secret: s}}}")], Outcome::SameExcept(UNSCOPED)),
    plain("a credential by name", &[("work/clouds.yaml", "clouds: {c: {auth_type: v3applicationcredential, auth: {auth_url: x,
        application_credential_name: n, username: u, user_domain_name: D, application_credential_secret: s}}}")],
        Outcome::SameExcept(UNSCOPED)),
    plain("a domain's scope", &[("work/clouds.yaml", "clouds: {c: {domain_name: D, auth: {auth_url: x, username: u, password: p,
        user_domain_id: d}}}")], Outcome::Same),
    plain("the scope of the system", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p,
        user_domain_id: d, system_scope: all}}}")], Outcome::Same),
    plain("a trust", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p,
        user_domain_id: d, trust_id: t}}}")], Outcome::SameExcept(UNSCOPED)),
    plain("default domains", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_name: n,
        default_domain_id: d, user_domain_name: D}}}")], Outcome::Same),
    plain("one domain for both", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, tenant_name: n,
        domain_id: d, domain-name: D}}}")], Outcome::Same),
    plain("old names, in auth and beside it", &[("work/clouds.yaml", "clouds: {c: {project-name: outer, user_domain_name: D,
        password: outer, auth-type: v3token, auth_plugin: v3token, endpoint_type: internal, compute_endpoint_type: admin,
        auth: {auth_url: x, user_name: u, password: inner, tenant_id: old, project_domain_id: d}}}")], Outcome::Same),
    plain("secure settings", &[
        ("work/clouds.yaml", "clouds: {c: {region_name: r, auth: {auth_url: x, username: u, project_name: n}}, d: {}}"),
        ("work/secure.yml", "clouds: {c: {auth: {password: p, username: other}, image_format: raw}}"),
    ], Outcome::Same),
    plain("JSON", &[
        ("work/clouds.json", r#"{"clouds": {"c": {"auth": {"auth_url": "x", "username": "u", "password": "\u00e4\/\ud83d\ude00",
            "project_id": 5}, "verify": false, "api_timeout": 10}}}"#),
    ], Outcome::Same),
    Case {
        name: "a file named by a variable",
        files: &[
            ("work/clouds.yaml", "clouds: {c: {auth: {auth_url: wrong, username: u, password: p, project_id: i}}}"),
            ("named", "clouds: {c: {auth: {auth_url: right, username: u, project_id: i}}}"),
            ("secret", "clouds: {c: {auth: {password: p}}}"),
        ],
        variables: &[("OS_CLIENT_CONFIG_FILE", "@/named"), ("OS_CLIENT_SECURE_FILE", "@/secret")],
        cloud: Some("c"),
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "a variable that names a missing file",
        files: &[("work/clouds.yml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}")],
        variables: &[("OS_CLIENT_CONFIG_FILE", "@/gone")],
        cloud: Some("c"),
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "the user's directories, in order",
        files: &[
            ("home/.config/openstack/clouds.yaml", "clouds: {c: {auth: {auth_url: wrong}}}"),
            ("xdg/openstack/clouds.yaml", "clouds: {c: {auth: {auth_url: right, username: u, project_id: i}}}"),
            ("home/.config/openstack/secure.yaml", "clouds: {c: {auth: {password: p}}}"),
        ],
        variables: &[("XDG_CONFIG_HOME", "@/xdg")],
        cloud: Some("c"),
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "the site's directory",
        files: &[("site/openstack/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}")],
        variables: &[("XDG_CONFIG_DIRS", "@/site")],
        cloud: Some("c"),
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "several directories of the site",
        files: &[("site/openstack/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}")],
        variables: &[("XDG_CONFIG_DIRS", "@/other:@/site")],
        cloud: Some("c"),
        region: None,
        outcome: Outcome::OnlySdkRejects {
            theirs: "Cloud c was not found.",
            why: "the SDK reads the whole list as the name of one directory",
        },
    },
    Case {
        name: "the environment",
        files: &[],
        variables: &[
            ("OS_AUTH_URL", "https://k/v3"),
            ("OS_USERNAME", "u"),
            ("OS_PASSWORD", "p{x"),
            ("OS_TENANT_NAME", "t"),
            ("OS_USER_DOMAIN_NAME", "D"),
            ("OS_PROJECT_DOMAIN_NAME", "D"),
            ("OS_REGION_NAME", "r"),
            ("OS_CACERT", "~/ca.pem"),
            ("OS_INTERFACE", "internal"),
            ("OS_IMAGE_ENDPOINT_OVERRIDE", "http://{region_name}"),
            ("OS_IDENTITY_API_VERSION", "3"),
            ("OS_FORCE_IPV4", "True"),
            ("STATSD_HOST", "h"),
            ("STATSD_PORT", "99"),
        ],
        cloud: None,
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "the environment and a file",
        files: &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}")],
        variables: &[("OS_AUTH_URL", "y"), ("OS_PASSWORD", "q"), ("OS_REGION_NAME", "r"), ("OS_PREFER_IPV6", "false")],
        cloud: Some("c"),
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "a cloud selected by a variable",
        files: &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}, d: {}}")],
        variables: &[("OS_CLOUD", "c"), ("OS_AUTH_URL", "y")],
        cloud: None,
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "the only cloud",
        files: &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}")],
        variables: &[],
        cloud: None,
        region: None,
        outcome: Outcome::Same,
    },
    Case {
        name: "none of several clouds",
        files: &[("work/clouds.yaml", "clouds: {c: {}, d: {}}")],
        variables: &[],
        cloud: None,
        region: None,
        outcome: Outcome::BothReject { ours: "not given: auth_url", theirs: "not given: auth_url" },
    },
    Case {
        name: "nothing at all",
        files: &[],
        variables: &[],
        cloud: None,
        region: None,
        outcome: Outcome::BothReject { ours: "not given: auth_url", theirs: "not given: auth_url" },
    },
    Case {
        name: "a cloud with the name of the cloud from the environment",
        files: &[("work/clouds.yaml", "clouds: {envvars: {auth: {auth_url: x}}}")],
        variables: &[],
        cloud: Some("envvars"),
        region: None,
        outcome: Outcome::BothReject { ours: "envvars is the name of the cloud", theirs: "defines a cloud named" },
    },
    Case {
        name: "a region among others",
        files: &[("work/clouds.yaml", "clouds: {c: {image_format: raw, private: true, networks: [{name: all}],
            regions: [one, {name: two, values: {image-format: vhd, private: null, networks: [{name: n, nat_source: true}],
            auth: {project_id: two}, image_endpoint_override: 'http://{region_name}'}}],
            auth: {auth_url: 'https://{region_name}', username: u, password: '{p}', project_id: i}}}")],
        variables: &[],
        cloud: Some("c"),
        region: Some("two"),
        outcome: Outcome::Same,
    },
    plain("the first of several regions", &[("work/clouds.yaml", "clouds: {c: {regions: [one, two],
        auth: {auth_url: 'https://{region_name}', username: u, password: p, project_id: i}}}")], Outcome::Same),
    Case {
        name: "a region of a list in a string",
        files: &[("work/clouds.yaml", "clouds: {c: {region_name: 'one,two', auth: {auth_url: x, username: u, password: p,
            project_id: i}}}")],
        variables: &[],
        cloud: Some("c"),
        region: Some("two"),
        outcome: Outcome::Same,
    },
    Case {
        name: "an unknown region",
        files: &[("work/clouds.yaml", "clouds: {c: {region_name: one, auth: {auth_url: x, username: u, password: p}}}")],
        variables: &[],
        cloud: Some("c"),
        region: Some("two"),
        outcome: Outcome::BothReject {
            ours: "Region two is not a valid region name for cloud c.",
            theirs: "Region two is not a valid region name for cloud c.",
        },
    },
    Case {
        name: "any region where none is known",
        files: &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}")],
        variables: &[],
        cloud: Some("c"),
        region: Some("any"),
        outcome: Outcome::Same,
    },
    plain("an own profile", &[
        ("work/clouds.yaml", "clouds: {c: {profile: own, image_format: raw, auth: {username: u, password: p, project_id: i}}}"),
        ("work/clouds-public.yaml", "public-clouds: {own: {auth: {auth_url: x, username: wrong}, image_format: vhd,
            region_name: r, floating_ip_source: nova, disable_vendor_agent: {a: 1, b: true}}}"),
    ], Outcome::Same),
    plain("the old name of profiles", &[("work/clouds.yaml",
        "clouds: {c: {cloud: citycloud, region_name: Fra1, auth: {username: u, password: p, project_id: i}}}")],
        Outcome::Same),
    plain("an unknown profile", &[("work/clouds.yaml",
        "clouds: {c: {profile: unheard-of, auth: {auth_url: x, username: u, password: p, project_id: i}}}")], Outcome::Same),
    plain("networks", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i},
        use_external_network: false, private: true, requires_floating_ip: true, networks: [
        {name: a, routes_externally: true, nat_source: 'True', default_interface: true},
        {name: b, routes_externally: true, routes_ipv4_externally: false, routes_ipv6_externally: null},
        {name: c, nat_destination: true, routes_ipv6_externally: 'yes'}]}}")], Outcome::Same),
    plain("old keys of networks", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i},
        external_network: out, internal_network: in}}")], Outcome::SameExcept(OLD_NETWORKS)),
    plain("two networks for one purpose", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p},
        networks: [{name: a, default_interface: true}, {name: b, default_interface: true}]}}")],
        Outcome::BothReject { ours: "default_interface is set for two networks", theirs: "Duplicate network entries" }),
    plain("no floating addresses", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i},
        floating_ip_source: None}}")], Outcome::Same),
    plain("TLS", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i},
        cacert: ~/ca.pem, cert: /cert.pem, key: ~/key.pem}}")], Outcome::Same),
    plain("TLS without a check", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i},
        cacert: /ca.pem, insecure: 'TRUE', cert: /cert.pem}}")], Outcome::Same),
    plain("authorities in verify", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p,
        project_id: i}, verify: /ca.pem}}")], Outcome::Same),
    plain("settings of services", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i},
        region_name: r, interface: [internal, publicURL], compute-interface: admin, network_region_name: other, identity_endpoint: 'http://i',
        image_endpoint_override: 'http://{region_name}/{{', volumev3_endpoint_override: http://v3, volume_endpoint_override: http://v,
        block_storage_service_type: volumev3, compute_api_version: 2.1, image_api_version: latest, volume_api_version: 3,
        compute_default_microversion: '2.79', compute_service_name: nova, image-api-use-tasks: true, api_timeout: 9, image_timeout: 30,
        force_ipv4: true, metrics: {statsd: {prefix: own}}}}
metrics: {statsd: {host: h, port: 8126, prefix: all}}
client: {force_ipv4: false}")], Outcome::Same),
    plain("IPv4 for all", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}
client: {prefer-ipv6: false}")], Outcome::Same),
    plain("an unknown cloud", &[("work/clouds.yaml", "clouds: {d: {}}")],
        Outcome::BothReject { ours: "Cloud c was not found.", theirs: "Cloud c was not found." }),
    plain("an empty file", &[("work/clouds.yaml", "# nothing\n")],
        Outcome::BothReject { ours: "Cloud c was not found.", theirs: "Cloud c was not found." }),
    plain("a misspelt option", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, pasword: p, password: p}}}")],
        Outcome::BothReject { ours: "auth has an option pasword", theirs: "unexpected keyword argument 'pasword'" }),
    plain("names without their domain", &[("work/clouds.yaml", "clouds: {c: {auth_type: v3password,
        auth: {auth_url: x, username: u, password: p}}}")],
        Outcome::BothReject { ours: "username is given without its domain", theirs: "only unique within a domain" }),
    plain("an unknown setting in braces", &[("work/clouds.yaml", "clouds: {c: {auth: {auth_url: 'http://{nothing}', username: u,
        password: p}}}")], Outcome::BothReject { ours: "refers to a setting that does not exist", theirs: "KeyError: 'nothing'" }),
    plain("a credential without a secret", &[("work/clouds.yaml", "clouds: {c: {auth_type: v3applicationcredential,
        auth: {auth_url: x, application_credential_id: i}}}")],
        Outcome::BothReject { ours: "not given: application_credential_secret", theirs: "must provide an auth secret" }),
    plain("a quoted false", &[("work/clouds.yaml", "clouds: {c: {private: 'false', auth: {auth_url: x, username: u, password: p,
        project_id: i}}}")], Outcome::SameExcept(QUOTED_NO)),
    plain("an auth type of others", &[("work/clouds.yaml", "clouds: {c: {auth_type: v3totp, auth: {auth_url: x, username: u,
        user_domain_id: d, passcode: p, project_id: i}}}")], Outcome::OnlyOursRejects {
        ours: "the auth type v3totp is not part of this version",
        why: "one-time passwords are useless for a daemon, and federation needs libraries and a person",
    }),
    plain("an interface that no cloud has", &[("work/clouds.yaml", "clouds: {c: {interface: outer, auth: {auth_url: x, username: u,
        password: p, project_id: i}}}")], Outcome::OnlyOursRejects {
        ours: "there is no interface outer",
        why: "every request of the SDK would fail without an endpoint",
    }),
    plain("a broken file before a good one", &[
        ("work/clouds.yaml", "clouds: ["),
        ("home/.config/openstack/clouds.yaml", "clouds: {c: {auth: {auth_url: x, username: u, password: p, project_id: i}}}"),
    ], Outcome::OnlyOursRejects {
        ours: "unclosed bracket",
        why: "the SDK skips a file that it cannot parse and reads another one, which hides the error",
    }),
    plain("an empty auth", &[("work/clouds.yaml", "clouds: {c: {profile: citycloud, region_name: Fra1, auth: , username: u,
        password: p, project_id: i}}")], Outcome::OnlySdkRejects {
        theirs: "TypeError",
        why: "a null value means an absent key",
    }),
];
