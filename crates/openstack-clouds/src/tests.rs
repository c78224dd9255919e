//! Tests of the settings that clouds files result in.

use super::*;

const LOGIN: &str = "auth: {auth_url: 'https://keystone', username: zuul, password: hunter2, project_name: ci}";

fn file(path: &str, text: &str) -> Option<FileText> {
    Some(FileText { path: path.into(), text: text.to_owned() })
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Environment { variables: variables.collect(), home: Some("/home/zuul".into()) }
}

fn settings_of_files(files: &ConfigFiles, region: Option<&str>) -> Result<CloudSettings, CloudsError> {
    resolve(files, CloudSelector { cloud: Some("c"), region }).map(|loaded| loaded.settings)
}

/// The cloud `c` of a file.
fn settings_of_text(text: &str) -> Result<CloudSettings, CloudsError> {
    settings_of_files(
        &ConfigFiles { clouds: file("clouds.yaml", text), environment: environment(&[]), ..ConfigFiles::default() },
        None,
    )
}

/// The cloud `c` with a login and these keys.
pub fn settings_with(keys: &str) -> CloudSettings {
    settings_of_text(&cloud(keys)).unwrap()
}

fn cloud(keys: &str) -> String {
    let keys = keys.lines().map(|line| format!("    {line}\n"));
    format!("clouds:\n  c:\n    {LOGIN}\n{}", keys.collect::<String>())
}

/// The error message for this text.
fn error_of(text: &str) -> String {
    let error = settings_of_text(text).unwrap_err().to_string();
    assert!(!error.contains("hunter2"), "{error}");
    error
}

#[test]
fn a_login_is_all_that_a_cloud_needs() {
    let settings = settings_with("");
    let user = User::Name { name: "zuul".to_owned(), domain: None };
    let expected = Identity {
        auth_url: "https://keystone".to_owned(),
        api: IdentityApi::Discovered,
        auth: Auth::Password { user, password: Secret::new("hunter2") },
        scope: Scope::ProjectName { name: "ci".to_owned(), domain: None },
        domains: Domains::Absent,
    };
    assert_eq!(settings.identity, expected);
    assert_eq!(settings.cloud.as_deref(), Some("c"));
    assert_eq!((settings.region, settings.verify, settings.certificate), (None, Verify::System, None));
    assert_eq!((settings.image_format.as_str(), settings.floating_ips), ("qcow2", FloatingIps::Neutron));
    assert_eq!(settings.services.compute.interfaces, [Interface::Public]);
    assert_eq!(settings.services.network.api_version.as_deref(), Some("2"));
    assert_eq!((settings.statsd, settings.force_ipv4, settings.private), (None, false, false));
}

#[test]
fn no_secret_is_ever_shown() {
    let token = "clouds: {c: {auth_type: v3token, auth: {auth_url: x, token: hunter2}}}";
    let credential = "clouds: {c: {auth_type: v3applicationcredential, auth: {auth_url: x, application_credential_id: i, \
                      application_credential_secret: hunter2}}}";
    for text in [&cloud(""), token, credential] {
        let shown = format!("{:#?}", settings_of_text(text).unwrap());
        assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    }
    let environment = format!("{:?}", environment(&[("OS_PASSWORD", "hunter2")]));
    assert!(!environment.contains("hunter2"), "{environment}");
}

#[test]
fn an_application_credential_is_known_by_id_or_by_name_and_user() {
    let of = |options: &str| {
        let secret = "auth_url: x, application_credential_secret: s";
        settings_of_text(&format!(
            "clouds: {{c: {{auth_type: v3applicationcredential, auth: {{{secret}, {options}}}}}}}"
        ))
    };
    let auth = |credential| Auth::ApplicationCredential { credential, secret: Secret::new("s") };
    let by_id = of("application_credential_id: 12").unwrap().identity;
    assert_eq!((by_id.auth, by_id.scope), (auth(Credential::Id("12".to_owned())), Scope::Default));
    let user = User::Name { name: "zuul".to_owned(), domain: Some(Domain::Id("default".to_owned())) };
    let name = Credential::Name { name: "n".to_owned(), user };
    let options = "application_credential_name: n, username: zuul, user_domain_id: default";
    assert_eq!(of(options).unwrap().identity.auth, auth(name));
    assert!(matches!(of("application_credential_name: n"), Err(CloudsError::AuthIncomplete(_))));
}

#[test]
fn missing_options_are_named_in_the_words_of_openstacksdk() {
    let message = error_of("clouds:\n  c:\n    auth: {username: zuul, password: hunter2}\n");
    assert_eq!(
        message,
        "Auth plugin requires parameters which were not given: auth_url (clouds.yaml:3:5): add auth.auth_url to the \
         cloud c, or to its entry in secure.yaml"
    );
    assert!(error_of("clouds: {c: {}}").contains("not given: auth_url, username, password"));
    let nowhere = resolve(&ConfigFiles::default(), CloudSelector::default()).unwrap_err().to_string();
    assert!(nowhere.contains("not given: auth_url"), "{nowhere}");
}

#[test]
fn the_error_for_an_unknown_cloud_lists_the_known_ones() {
    let message = error_of("clouds: {cc: {}, production: {}}");
    assert_eq!(message, "Cloud c was not found. (clouds.yaml): did you mean cc? the clouds are: cc, production");
    let files =
        ConfigFiles { searched: vec!["/a/clouds.yaml".into(), "/a/clouds.yml".into()], ..ConfigFiles::default() };
    let message = settings_of_files(&files, None).unwrap_err().to_string();
    assert!(message.ends_with("there is no clouds.yaml, .yml or .json in /a"), "{message}");
}

#[test]
fn unknown_auth_types_and_options_are_rejected() {
    assert!(error_of(&cloud("auth_type: v3oidcpassword")).starts_with(
        "the auth type v3oidcpassword is not part of this version (clouds.yaml:4:16): the auth types are: password, token"
    ));
    let message = error_of("clouds: {c: {auth: {auth_url: x, username: zuul, pasword: hunter2}}}");
    assert!(message.contains("auth has an option pasword"), "{message}");
    assert!(message.contains("did you mean password?"), "{message}");
}

#[test]
fn version_3_requires_domains() {
    let message = error_of(&cloud("auth_type: v3password"));
    assert!(message.contains("username is given without its domain"), "{message}");
    let text = "auth_type: v3password\nuser_domain_name: Default\nproject-domain-id: default";
    let identity = settings_with(text).identity;
    assert_eq!(identity.api, IdentityApi::V3);
    let domain = Some(Domain::Id("default".to_owned()));
    assert_eq!(identity.scope, Scope::ProjectName { name: "ci".to_owned(), domain });
}

#[test]
fn version_2_has_no_domains() {
    assert_eq!(settings_with("auth_type: v2password").identity.api, IdentityApi::V2);
    let message = error_of(&cloud("auth_type: v2password\nuser_domain_name: Default"));
    assert!(message.contains("auth has an option user_domain_name"), "{message}");
    let domains = |keys: &str| settings_with(keys).identity.domains;
    assert_eq!(domains("default_domain_name: Default"), Domains::Default);
    assert_eq!(domains("project_domain_id: default\ndefault_domain_name: Default"), Domains::Given);
    assert_eq!(domains("domain_name: Default"), Domains::Given);
}

#[test]
fn the_secure_file_wins() {
    let secure = "clouds: {c: {auth: {password: real}, image_format: raw}}";
    let files = ConfigFiles {
        clouds: file("clouds.yaml", &cloud("")),
        secure: file("secure.yaml", secure),
        ..ConfigFiles::default()
    };
    let settings = settings_of_files(&files, None).unwrap();
    assert!(matches!(settings.identity.auth, Auth::Password { password, .. } if password.expose() == "real"));
    assert_eq!(settings.image_format, "raw");
}

#[test]
fn a_region_has_values_of_its_own() {
    let text =
        cloud("image_format: raw\nregions: [one, {name: two, values: {image_format: vhd, auth: {project_id: p}}}]");
    let files = ConfigFiles { clouds: file("clouds.yaml", &text), ..ConfigFiles::default() };
    let one = settings_of_files(&files, None).unwrap();
    assert_eq!((one.region.as_deref(), one.image_format.as_str()), (Some("one"), "raw"));
    let two = settings_of_files(&files, Some("two")).unwrap();
    assert_eq!((two.region.as_deref(), two.image_format.as_str()), (Some("two"), "vhd"));
    assert_eq!(two.identity.scope, Scope::ProjectId("p".to_owned()));
    assert_eq!(two.services.image.region.as_deref(), Some("two"));
    let message = settings_of_files(&files, Some("three")).unwrap_err().to_string();
    assert_eq!(
        message,
        "Region three is not a valid region name for cloud c. (clouds.yaml:3:5): the regions are: one, two (names are \
         case-sensitive)"
    );
}

#[test]
fn a_cloud_overrides_its_profile_and_own_profiles_the_built_in_ones() {
    let of = |vendors: Option<FileText>| {
        let text = "clouds: {c: {profile: citycloud, region_name: Fra1, auth: {username: u, password: p}}}";
        let files = ConfigFiles { clouds: file("clouds.yaml", text), vendors, ..ConfigFiles::default() };
        settings_of_files(&files, None).unwrap()
    };
    let built_in = of(None);
    assert_eq!(built_in.identity.auth_url, "https://Fra1.citycloud.com:5000/v3/");
    assert_eq!((built_in.image_format.as_str(), built_in.requires_floating_ip), ("raw", Some(true)));
    let own = "public-clouds: {citycloud: {auth: {auth_url: own, username: other}, image_format: vhd}}";
    let own = of(file("clouds-public.yaml", own));
    assert_eq!((own.identity.auth_url.as_str(), own.image_format.as_str()), ("own", "vhd"));
    assert!(matches!(own.identity.auth, Auth::Password { user: User::Name { name, .. }, .. } if name == "u"));
}

#[test]
fn every_built_in_profile_is_usable_or_names_the_reason() {
    let text = include_str!("built_in.yaml");
    let root = python_yaml::parse::parse(text, &mut Vec::new()).unwrap();
    let profiles = root.get("profiles").unwrap().entries();
    assert!(profiles.len() > 20);
    for (name, _) in profiles {
        let own = "auth: {auth_url: x, username: u, password: p}";
        match settings_of_text(&format!("clouds: {{c: {{profile: {}, {own}}}}}", name.text)) {
            Ok(_) => {}
            Err(CloudsError::ProfileUnusable(problem)) => assert!(problem.message.contains("no longer exists")),
            Err(other) => panic!("{}: {other}", name.text),
        }
    }
}

#[test]
fn url_profiles_are_rejected_and_unknown_ones_cause_a_warning() {
    let message = error_of(&cloud("profile: https://cloud.example.com"));
    assert!(message.contains("the profile https://cloud.example.com is a URL (clouds.yaml:4:14)"), "{message}");
    let files = ConfigFiles { clouds: file("clouds.yaml", &cloud("profile: rakspace")), ..ConfigFiles::default() };
    let warnings = resolve(&files, CloudSelector::default()).unwrap().warnings;
    assert!(warnings[0].to_string().contains("did you mean rackspace?"), "{warnings:?}");
}

#[test]
fn other_names_of_the_auth_type_have_no_effect_and_cause_a_warning() {
    let files = ConfigFiles { clouds: file("clouds.yaml", &cloud("auth-type: v3token")), ..ConfigFiles::default() };
    let loaded = resolve(&files, CloudSelector::default()).unwrap();
    assert_eq!(loaded.settings.identity.api, IdentityApi::Discovered);
    assert_eq!(loaded.warnings[0].to_string(), "auth-type has no effect (clouds.yaml:4:16): write auth_type");
}

#[test]
fn the_environment_is_a_cloud_of_its_own() {
    let login = [("OS_AUTH_URL", "https://env"), ("OS_USERNAME", "u"), ("OS_PASSWORD", "p"), ("OS_TENANT_NAME", "t")];
    let files = |more: &[(&str, &str)]| {
        let clouds = file("clouds.yaml", &cloud(""));
        ConfigFiles { clouds, environment: environment(&[&login[..], more].concat()), ..ConfigFiles::default() }
    };
    let url = |files: &ConfigFiles, cloud| {
        Ok(resolve(files, CloudSelector { cloud, region: None })?.settings.identity.auth_url)
    };
    assert_eq!(url(&files(&[]), None), Ok("https://env".to_owned()));
    assert_eq!(url(&files(&[]), Some("envvars")), Ok("https://env".to_owned()));
    assert_eq!(url(&files(&[("OS_CLOUD_NAME", "e")]), Some("e")), Ok("https://env".to_owned()));
    assert_eq!(url(&files(&[("OS_CLOUD", "c")]), None), Ok("https://keystone".to_owned()));
    let taken: Result<String, CloudsError> = url(&files(&[("OS_CLOUD_NAME", "c")]), None);
    assert!(matches!(taken, Err(CloudsError::Invalid(_))), "{taken:?}");
}

#[test]
fn a_single_cloud_need_not_be_named() {
    let files = ConfigFiles { clouds: file("clouds.yaml", &cloud("")), ..ConfigFiles::default() };
    assert_eq!(resolve(&files, CloudSelector::default()).unwrap().settings.cloud.as_deref(), Some("c"));
}

#[test]
fn certificates_are_checked_unless_verification_is_off() {
    let bundle = || Verify::Bundle("/home/zuul/ca.pem".into());
    assert_eq!(settings_with("cacert: ~/ca.pem").verify, bundle());
    assert_eq!(settings_with("verify: false\ncacert: ~/ca.pem").verify, Verify::Off);
    assert_eq!(settings_with("insecure: true").verify, Verify::Off);
    assert_eq!(settings_with("insecure: 'no'").verify, Verify::System);
    assert!(error_of(&cloud("verify: 'False'")).contains("without quotes"));
    let certificate = ClientCertificate { certificate: "/c.pem".into(), key: Some("/home/zuul/k.pem".into()) };
    assert_eq!(settings_with("cert: /c.pem\nkey: ~/k.pem").certificate, Some(certificate));
}

#[test]
fn services_have_settings_of_their_own() {
    let keys = "interface: internal\ncompute_endpoint_override: http://nova/{region_name}\nregion_name: r\n\
                image-interface: [admin, publicURL]\nvolume_endpoint: http://cinder\nnetwork_region_name: other\n\
                compute_api_version: '2.79'\nimage_api_version: latest\ncompute_default_microversion: 2.79";
    let services = settings_with(keys).services;
    assert_eq!(services.compute.endpoint.as_deref(), Some("http://nova/r"));
    assert_eq!(services.compute.interfaces, [Interface::Internal]);
    assert_eq!(services.image.interfaces, [Interface::Admin, Interface::Public]);
    assert_eq!(services.block_storage.endpoint.as_deref(), Some("http://cinder"));
    assert_eq!(services.network.region.as_deref(), Some("other"));
    assert_eq!((services.compute.api_version.as_deref(), services.image.api_version), (Some("2.79"), None));
    assert!(error_of(&cloud("interface: outer")).contains("write public, internal or admin"));
}

#[test]
fn networks_have_roles() {
    let networks =
        settings_with("networks:\n- {name: a, routes_externally: true, routes_ipv6_externally: false}\n- {name: b}")
            .networks;
    let flags = |network: &NetworkRole| {
        (network.routes_externally, network.routes_ipv4_externally, network.routes_ipv6_externally)
    };
    assert_eq!(networks.iter().map(flags).collect::<Vec<_>>(), [(true, true, false), (false, false, false)]);
    let old = settings_with("external_network: out\ninternal_network: in").networks;
    assert!(old[0].routes_ipv4_externally && old[0].default_interface && old[1].nat_destination);
    assert!(error_of(&cloud("networks: [{routes_externally: true}]")).contains("a network has no name"));
    assert!(error_of(&cloud("networks: []\nexternal_network: x")).contains("both given"));
    let two = "networks: [{name: a, nat_destination: true}, {name: b, nat_destination: true}]";
    assert!(error_of(&cloud(two)).contains("nat_destination is set for two networks, a and b"));
}

#[test]
fn floating_addresses_can_be_turned_off() {
    assert_eq!(settings_with("floating_ip_source: None").floating_ips, FloatingIps::None);
    assert_eq!(settings_with("floating_ip_source: None").requires_floating_ip, Some(false));
    assert_eq!(settings_with("floating_ip_source: null").floating_ips, FloatingIps::None);
    let files =
        ConfigFiles { clouds: file("clouds.yaml", &cloud("floating_ip_source: NOVA")), ..ConfigFiles::default() };
    let of_nova = resolve(&files, CloudSelector::default()).unwrap();
    assert_eq!(of_nova.settings.floating_ips, FloatingIps::Nova);
    assert!(of_nova.warnings[0].to_string().contains("write neutron"), "{:?}", of_nova.warnings);
    assert!(error_of(&cloud("floating_ip_source: novas")).contains("write neutron, nova or None"));
}

#[test]
fn ipv4_can_be_forced_for_one_cloud_or_for_all() {
    assert!(settings_with("force_ipv4: true").force_ipv4);
    assert!(settings_with("prefer_ipv6: false").force_ipv4);
    assert!(settings_of_text(&format!("{}client: {{force_ipv4: true}}\n", cloud(""))).unwrap().force_ipv4);
    assert!(
        !settings_of_text(&format!("{}client: {{force_ipv4: true}}\n", cloud("force_ipv4: false"))).unwrap().force_ipv4
    );
}

#[test]
fn statsd_is_configured_for_all_clouds_or_for_one() {
    let text = format!("{}metrics: {{statsd: {{host: h, port: 1}}}}\n", cloud("metrics: {statsd: {prefix: p}}"));
    let statsd = settings_of_text(&text).unwrap().statsd.unwrap();
    assert_eq!((statsd.host.as_str(), statsd.port, statsd.prefix.as_str()), ("h", 1, "p"));
    let clouds = file("clouds.yaml", &cloud(""));
    let files = ConfigFiles { clouds, environment: environment(&[("STATSD_HOST", "e")]), ..ConfigFiles::default() };
    let statsd = settings_of_files(&files, None).unwrap().statsd.unwrap();
    assert_eq!((statsd.host.as_str(), statsd.port, statsd.prefix.as_str()), ("e", 8125, "openstack.api"));
}

#[test]
fn an_invalid_port_of_statsd_is_reported_where_it_comes_from() {
    let global = format!("{}metrics: {{statsd: {{port: 1}}}}\n", cloud(""));
    let error = |text: &str, variable: &str| {
        let environment = environment(&[("STATSD_PORT", variable)]);
        let files = ConfigFiles { clouds: file("clouds.yaml", text), environment, ..ConfigFiles::default() };
        settings_of_files(&files, None).unwrap_err().to_string()
    };
    for port in ["x", "0", "65536"] {
        assert_eq!(
            error(&global, port),
            "the port of statsd is not a port (environment variable STATSD_PORT): write a number from 1 to 65535"
        );
    }
    let own = cloud("metrics: {statsd: {port: 0}}");
    assert!(error(&own, "1").starts_with("the port of statsd is not a port (clouds.yaml:4:"), "{}", error(&own, "1"));
}

#[test]
fn timeouts_are_seconds() {
    assert_eq!(settings_with("api_timeout: 2.5").api_timeout_s, Some(2.5));
    assert_eq!(settings_with("compute_timeout: 7\napi_timeout: 2").api_timeout_s, Some(7.0));
    assert!(error_of(&cloud("api_timeout: 0")).contains("seconds, more than 0"));
    assert!(error_of(&cloud("api_timeout: soon")).contains("seconds, more than 0"));
}

#[test]
fn broken_files_are_errors_with_a_position() {
    assert!(error_of("clouds: [").starts_with("unclosed bracket '[' (clouds.yaml:1:9)"), "{}", error_of("clouds: ["));
    assert!(error_of("[]").starts_with("the file is a list (clouds.yaml:1:1)"), "{}", error_of("[]"));
    assert!(error_of("clouds: {c: 5}").starts_with("c is a number (clouds.yaml:1:13)"));
    assert!(error_of("clouds: {c: {auth: hunter2}}").starts_with("auth is text (clouds.yaml:1:20)"));
    let huge = "clouds: {c: {auth: {password: 123456789012345678901234567890}}}";
    assert!(error_of(huge).contains("put it in quotes"));
    let json = ConfigFiles { clouds: file("clouds.json", "{\"clouds\":\n nonsense}"), ..ConfigFiles::default() };
    let message = settings_of_files(&json, None).unwrap_err().to_string();
    assert!(message.starts_with("file is not JSON (clouds.json:2:3)"), "{message}");
}

#[test]
fn no_clouds_file_causes_a_panic() {
    let words =
        ["c", "auth", "{", "}", "[", "]", ": ", "-", "\n", "  ", "null", "5", "é", "regions", "networks", "name", "~"];
    let mut state = 1_u64;
    for _ in 0..3000 {
        let mut text = "clouds: {c: {".to_owned();
        for _ in 0..state % 23 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(words[(state >> 33) as usize % words.len()]);
        }
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let _ = settings_of_text(&text);
        let _ = settings_of_text(&format!("{text}}}}}"));
    }
    // A value of each type at each key.
    for key in
        ["regions", "networks", "auth", "verify", "cert", "interface", "metrics", "private", "profile", "region_name"]
    {
        for value in ["null", "5", "[5]", "[{name: 5}]", "{a: {b: c}}", "[[]]", "'{'", "'~'", "true", "''"] {
            let _ = settings_of_text(&cloud(&format!("{key}: {value}")));
            let _ = settings_of_text(&format!("clouds: {{c: {{auth: {{auth_url: x, {key}: {value}}}}}}}"));
        }
    }
}

#[test]
fn settings_may_refer_to_each_other() {
    let text = "region_name: r\nimage_endpoint_override: 'http://{region_name}/{{x}}'";
    assert_eq!(settings_with(text).services.image.endpoint.as_deref(), Some("http://r/{x}"));
    assert!(
        error_of(&cloud("image_endpoint_override: 'http://{nothing}'"))
            .contains("refers to a setting that does not exist (clouds.yaml:4:30)")
    );
    assert!(error_of(&cloud("image_endpoint_override: 'http://}'")).contains("single brace"));
}
