//! Loading of a configuration: defaults, inheritance, references, secure file, equality.
//!
//! The tests call the loader in process.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodepool_model::config::resolve::{Resolved, Source, resolve};
use nodepool_model::config::{Config, DiskImage, HostNames, PoolConfig, ProviderConfig};
use python_yaml::diagnostics::{Diagnostic, Severity};
use python_yaml::parse::parse;

const BUILT: &[&str] = &["fake", "static", "test", "aws", "openshift", "openshiftpods"];

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("tests/fixtures/config/{name}.yaml")).unwrap()
}

fn resolve_texts(main: &str, secure: Option<&str>) -> Resolved {
    let parse = |text: &str| parse(text, &mut Vec::new()).unwrap();
    let (main, secure) = (parse(main), secure.map(parse));
    let secure = secure.as_ref().map(|root| Source { file: "secure.yaml", root });
    resolve(Source { file: "np.yaml", root: &main }, secure, BUILT)
}

fn load(text: &str) -> Arc<Config> {
    load_with(text, None)
}

fn load_with(main: &str, secure: Option<&str>) -> Arc<Config> {
    let resolved = resolve_texts(main, secure);
    resolved.config.unwrap_or_else(|| panic!("{main}\n{:#?}", resolved.diagnostics))
}

/// The errors of a file that does not load.
fn errors(main: &str, secure: Option<&str>) -> Vec<String> {
    let resolved = resolve_texts(main, secure);
    assert!(resolved.config.is_none(), "{main} loads");
    resolved.diagnostics.iter().filter(|problem| problem.is_error()).map(ToString::to_string).collect()
}

/// Asserts exactly one error, by the beginning of its text.
fn check_error(main: &str, start: &str) {
    let errors = errors(main, None);
    assert!(errors.len() == 1 && errors[0].starts_with(start), "{main}\nexpected {start}\nfound {errors:#?}");
}

fn warnings(main: &str) -> Vec<String> {
    let resolved = resolve_texts(main, None);
    assert!(resolved.config.is_some(), "{main}\n{:#?}", resolved.diagnostics);
    let warning = |problem: &&Diagnostic| problem.severity == Severity::Warning;
    resolved.diagnostics.iter().filter(warning).map(ToString::to_string).collect()
}

fn image<'a>(config: &'a Config, name: &str) -> &'a DiskImage {
    &config.diskimages[name]
}

fn pool<'a>(config: &'a Config, provider: &str, pool: &str) -> &'a PoolConfig {
    &config.providers[provider].pools[pool]
}

fn names<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    names.into_iter().map(|name| name.as_ref().to_owned()).collect()
}

#[test]
fn a_child_adds_elements_and_variables_and_overrides_what_is_truthy() {
    let config = load(
        "diskimages:
- {name: parent, elements: [a, b], env-vars: {A: foo, B: bar}, release: 21, dib-cmd: p, pause: true, rebuild-age: 5,
   metadata: {a: 1}, delete-after-upload: true, formats: [raw]}
- {name: child, parent: parent, elements: [c], env-vars: {A: x, C: moo}, dib-cmd: o, pause: false, rebuild-age: 0,
   delete-after-upload: false, formats: []}
",
    );
    let child = image(&config, "child");
    assert_eq!(child.elements, ["a", "b", "c"]);
    let variables: Vec<(&str, &str)> =
        child.env_vars.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(variables, [("A", "x"), ("B", "bar"), ("C", "moo")]);
    assert_eq!((child.release.as_str(), child.dib_cmd.as_str()), ("21", "o"));
    assert!(child.pause, "a child cannot undo the pause of its parent");
    assert_eq!(child.rebuild_age.0, 5.0);
    assert!(child.metadata.is_empty(), "metadata is not inherited");
    assert!(!child.delete_after_upload);
    assert_eq!(child.formats, names(["raw"]));
}

#[test]
fn abstract_images_are_not_built() {
    let config = load(
        "diskimages:
- {name: top, parent: middle, elements: [d]}
- {name: middle, parent: bottom, abstract: true, elements: [b, c], env-vars: {A: middle}}
- {name: bottom, abstract: true, elements: [a], env-vars: {A: bottom, B: bottom}}
",
    );
    assert_eq!(config.diskimages.len(), 1);
    assert_eq!(image(&config, "top").elements, ["a", "b", "c", "d"]);
    assert_eq!(image(&config, "top").env_vars["A"], "middle");
    assert_eq!(image(&config, "top").env_vars["B"], "bottom");
}

#[test]
fn an_image_has_the_defaults_of_the_reference() {
    let config = load("diskimages: [{name: a}]");
    let image = image(&config, "a");
    assert_eq!((image.rebuild_age.0, image.build_timeout.0), (86_400.0, 28_800.0));
    assert_eq!((image.dib_cmd.as_str(), image.username.as_str()), ("disk-image-create", "zuul"));
    assert_eq!((image.python_path.as_str(), image.release.as_str()), ("auto", ""));
    assert!(image.formats.is_empty() && !image.pause && image.shell_type.is_none());
}

#[test]
fn missing_and_cyclic_parents_are_errors() {
    check_error(
        "diskimages: [{name: a, parent: bse}, {name: base}]",
        "KeyError: 'bse' (np.yaml:1:32): diskimage a has a parent that does not exist, did you mean base?",
    );
    check_error(
        "diskimages: [{name: a, parent: b}, {name: b, abstract: true, parent: gone}]",
        "KeyError: 'gone' (np.yaml:1:70): diskimage b has a parent that does not exist",
    );
    check_error("diskimages: [{name: a, parent: a}]", "diskimage a is its own ancestor");
    let cycle =
        "diskimages: [{name: a, parent: b}, {name: b, abstract: yes, parent: c}, {name: c, abstract: yes, parent: b}]";
    check_error(cycle, "diskimage a is its own ancestor");
    let unused = "diskimages: [{name: a}, {name: b, abstract: true, parent: gone}]";
    assert!(warnings(unused)[0].starts_with("diskimage b has non-existant parent: gone"), "no image uses b");
}

#[test]
fn providers_add_the_formats_they_require() {
    let config = load(
        "labels: []
diskimages: [{name: a, formats: [tar]}, {name: b}, {name: c}]
providers:
- {name: ec2, driver: aws, diskimages: [{name: a, pause: true}, {name: b}]}
- {name: ec3, driver: aws, image-format: vmdk, diskimages: [{name: b}]}
- {name: az, driver: azure, location: l, resource-group: r, resource-group-location: l, diskimages: [{name: c}]}
",
    );
    assert_eq!(image(&config, "a").formats, names(["tar", "raw"]));
    assert_eq!(image(&config, "b").formats, names(["raw", "vmdk"]));
    assert_eq!(image(&config, "c").formats, names(["vhd"]));
}

#[test]
fn zookeeper_servers_become_one_connect_string() {
    let check = |servers: &str, expected: &str| {
        assert_eq!(load(&format!("zookeeper-servers: {servers}")).zookeeper.connect_string(), expected, "{servers}");
    };
    check("[{host: a},{host: '::1', port: 5, chroot: /x}]", "a:2281,[::1]:5/x");
    check("[{host: 'fe80::0:1'}]", "[fe80::1]:2281");
    check("[{host: 10.0.0.1, port: '99', chroot: /}]", "10.0.0.1:99");
    check("[{host: a, chroot: /x/y/},{host: b, chroot: /x/y}]", "a:2281,b:2281/x/y");
    check("[]", "");
    check("~", "");
    check_error("zookeeper-servers: [{host: a, chroot: /x},{host: b}]", "ZooKeeper servers have different chroots");
    check_error(
        "zookeeper-servers: [{host: a, chroot: /x},{host: b, chroot: /y}]",
        "ZooKeeper servers have different chroots",
    );
    check_error("zookeeper-servers: [{host: a, chroot: x}]", "ZooKeeper chroot is not a path");
    check_error("zookeeper-servers: [{port: 1}]", "KeyError: 'host' (np.yaml:1:21)");
    check_error(
        "zookeeper-servers: [{host: a, port: 70000}]",
        "port is out of range (np.yaml:1:37): 70000 is not between 1 and 65535",
    );
    check_error("zookeeper-servers: [{host: a, port: x}]", "expected int for dictionary value @ data['port']");
}

#[test]
fn the_secure_file_replaces_servers_and_tls_and_adds_variables() {
    let (main, secure) = (file("secure-main"), file("secure-secure"));
    let config = load_with(&main, Some(&secure));
    assert_eq!(config.zookeeper.connect_string(), "zk.example.com:2281/secret");
    assert_eq!(config.zookeeper.tls.as_ref().unwrap().key, std::path::Path::new("/k"));
    let variables = &image(&config, "fake-image").env_vars;
    assert_eq!((variables["REG_PASSWORD"].as_str(), variables["TMPDIR"].as_str()), ("secret", "/opt/dib_tmp"));
    assert!(!image(&config, "child-image").env_vars.contains_key("REG_PASSWORD"), "secrets are not inherited");
    for empty in ["", "# nothing\n", "zookeeper-servers: []\nzookeeper-tls: {}\n"] {
        assert_eq!(load_with(&main, Some(empty)).zookeeper.connect_string(), "wrong.example.com:1");
    }
    for unknown in ["gone", "parent-image"] {
        let secure = format!("diskimages: [{{name: {unknown}, env-vars: {{}}}}]");
        let errors = errors(&main, Some(&secure));
        assert!(
            errors[0].starts_with(&format!("secure.yaml: unknown diskimage {unknown} (secure.yaml:1:14)")),
            "{errors:?}"
        );
    }
    assert!(errors(&main, Some("diskimages: [{name: fake-image}]"))[0].starts_with("KeyError: 'env-vars'"));
    let resolved = resolve_texts(&main, Some("labels: []"));
    assert!(resolved.diagnostics.iter().any(|problem| problem.message == "key 'labels' has no effect here"));
}

#[test]
fn host_names_in_certificates_are_checked_where_the_file_says_so() {
    let with = |more: &str| load(&format!("zookeeper-tls: {{cert: c, key: k, ca: a{more}}}\n")).zookeeper.host_names;
    assert_eq!(with(""), HostNames::Ignored);
    assert_eq!(with(", check-hostname: false"), HostNames::Ignored);
    assert_eq!(with(", check-hostname: true"), HostNames::Checked);
}

#[test]
fn the_web_port_has_its_defaults_key_by_key() {
    let check = |text: &str, port: u16, address: &str| {
        let config = load(text);
        assert_eq!((config.webapp.port, config.webapp.listen_address.as_str()), (port, address), "{text}");
    };
    check("webapp: {port: 8080, listen_address: 127.0.0.1}", 8080, "127.0.0.1");
    check("webapp: {port: '8080'}", 8080, "0.0.0.0");
    check("webapp:", 8005, "0.0.0.0");
    check("labels:", 8005, "0.0.0.0");
    check_error("webapp: {port: 65536}", "port is out of range");
    check_error("webapp: 8080", "expected a dictionary for dictionary value @ data['webapp']");
}

#[test]
fn an_explicit_driver_wins_over_the_name() {
    let config = load("providers: [{name: fake-a}, {name: fake-b, driver: aws}, {name: c}]");
    assert_eq!(config.providers["fake-a"].driver, "fake");
    assert_eq!(config.providers["fake-b"].driver, "aws");
    assert_eq!(config.out_of_service["c"], "the driver openstack is not part of this version");
    assert!(!config.providers.contains_key("c"));
    check_error(
        "providers: [{name: a, driver: statik}]",
        "statik: unknown driver (np.yaml:1:31): did you mean static?",
    );
}

#[test]
fn static_pools_serve_the_labels_of_their_nodes() {
    let config = load(&file("static"));
    let pool = pool(&config, "static-provider", "main");
    let labels: Vec<&str> = pool.labels.iter().map(|label| label.as_str()).collect();
    assert_eq!(labels, ["plain", "twice", "windows"]);
    let nodes = pool.section.list("nodes").unwrap();
    let slots = |node: usize| nodes[node].integer("max-parallel-jobs").unwrap().unwrap_or(1);
    assert_eq!((slots(0), slots(1), slots(2)), (1, 2, 1));
    assert_eq!(nodes[2].text("connection-type"), Ok(Some("winrm".to_owned())));
}

#[test]
fn rules_of_a_drivers_own_section_are_load_failures() {
    let errors = errors(&file("metastatic-error"), None);
    assert!(
        errors[0].starts_with("Multiple label definitions for the same backing label must be identical"),
        "{errors:?}"
    );
    load(&file("metastatic-ok"));
    let image = |rest: &str| {
        format!(
            "diskimages: [{{name: a}}]\nproviders: [{{name: p, driver: aws, diskimages: [{{name: a, import-method: image{rest}}}]}}]"
        )
    };
    check_error(&image(", imds-support: v2.0"), "IMDSv2 requires 'snapshot' or 'ebs-direct' import method");
    load(&image(""));
    let azure = "providers: [{name: p, driver: azure, location: l, resource-group: r, resource-group-location: l, pools: [{name: m}]}]";
    check_error(azure, "KeyError: 'max-servers'");
}

#[test]
fn unresolved_names_are_load_failures() {
    let label = |pool: &str| format!("labels: [{{name: small}}]\nproviders: [{{name: p, driver: {pool}}}]");
    check_error(&label("static, pools: [{name: m, nodes: [{name: h, labels: smal}]}]"), "KeyError: 'smal' (np.yaml:2:");
    check_error(&label("test, pools: [{name: m, labels: [big]}]"), "KeyError: 'big'");
    check_error(
        &label("fake, pools: [{name: m, labels: [{name: small, cloud-image: x}]}]"),
        "cloud-image x does not exist in provider m but is referenced in label small",
    );
    check_error(
        &label("aws, pools: [{name: m, labels: [{name: small, cloud-image: x}]}]"),
        "cloud-image x does not exist in provider p but is referenced in label small",
    );
    check_error(
        &label("aws, pools: [{name: m, labels: [{name: small, diskimage: x}]}]"),
        "diskimage x does not exist in provider p but is referenced in label small",
    );
    check_error(&label("fake, diskimages: [{name: x}]"), "KeyError: 'x'");
    check_error(&label("fake, pools: [{name: m, labels: [{name: small, diskimage: x}]}]"), "KeyError: 'x'");
    check_error("providers: [{driver: static}]", "KeyError: 'name'");
    check_error("labels: [{min-ready: 1}]", "KeyError: 'name'");
    check_error("providers: [{name: p, driver: static, pools: [{nodes: []}]}]", "KeyError: 'name'");
    check_error("tenant-resource-limits: [{max-cores: 1}]", "KeyError: 'tenant-name'");
}

#[test]
fn findings_of_the_validator_alone_are_load_warnings() {
    let text = file("conversions");
    let config = load(&text);
    assert_eq!(config.zookeeper.session_timeout.0, 12.0);
    assert_eq!(config.max_hold_age.map(|age| age.0), Some(0.5));
    assert_eq!(config.labels["5"].min_ready, 1);
    assert_eq!(config.providers["hosts"].max_concurrency, 2);
    assert_eq!(pool(&config, "hosts", "main").max_servers, Some(3));
    let warnings = warnings(&text);
    assert_eq!(warnings.len(), 5, "{warnings:#?}");
    assert!(warnings[0].starts_with("expected float for dictionary value @ data['zookeeper-timeout'] (np.yaml:2:20)"));
    let load_anyway = self::warnings("unknown: 1\nlabels: [{name: a}, {name: a, min-ready: 2}]");
    assert_eq!(load_anyway.len(), 2, "{load_anyway:#?}");
    assert!(load_anyway[1].starts_with("label a already defined"), "{load_anyway:#?}");
}

#[test]
fn the_last_of_duplicate_names_wins() {
    let config = load(
        "labels: [{name: a}, {name: b}]
tenant-resource-limits: [{tenant-name: t, max-cores: 1}, {tenant-name: t, max-ram: 2}]
diskimages: [{name: i, elements: [x]}, {name: i, elements: [y]}]
providers:
- {name: p, driver: test, pools: [{name: m, labels: [a]}, {name: m, labels: [b]}]}
- {name: q}
- {name: q, driver: test}
",
    );
    assert_eq!(image(&config, "i").elements, ["y"]);
    assert!(pool(&config, "p", "m").labels.contains("b") && !pool(&config, "p", "m").labels.contains("a"));
    assert_eq!(config.tenant_limits["t"].get("cores"), f64::INFINITY);
    assert!(config.out_of_service.is_empty() && config.providers.contains_key("q"));
}

#[test]
fn limits_have_their_internal_names_and_are_otherwise_unlimited() {
    let config = load(
        "labels: []
tenant-resource-limits: [{tenant-name: t, max-cores: 1, max-servers: 2, max-ram: 3, max-volumes: 4, max-volume-gb: 5, L-43DA4232: 6}]
providers:
- {name: fake, pools: [{name: m, max-servers: 0, max-cores: 8, max-volume-gb: 9, ignore-provider-quota: true, availability-zones: [z]}]}
- {name: ec2, driver: aws, max-servers: 7, max-ram: 8, max-resources: {x: 1, y: 2}, pools: [{name: m, max-resources: {y: 3}}, {name: n, max-servers: 1, max-ram: 2}]}
- {name: os, driver: openshift, context: c, max-projects: 5, max-servers: 6, pools: [{name: m}]}
- {name: op, driver: openshiftpods, context: c, max-pods: 4, max-projects: 5, pools: [{name: m}]}
- {name: hosts, driver: static, max-servers: 9, pools: [{name: m}]}
",
    );
    let tenant: Vec<(&str, f64)> = config.tenant_limits["t"].iter().collect();
    let expected =
        [("L-43DA4232", 6.0), ("cores", 1.0), ("instances", 2.0), ("ram", 3.0), ("volume-gb", 5.0), ("volumes", 4.0)];
    assert_eq!(tenant, expected);
    let fake = pool(&config, "fake", "m");
    assert_eq!((fake.max_servers, fake.limits.get("instances"), fake.limits.get("cores")), (Some(0), 0.0, 8.0));
    assert_eq!((fake.limits.get("volume-gb"), fake.limits.get("ram")), (9.0, f64::INFINITY));
    assert!(fake.ignore_provider_quota && fake.availability_zones == ["z"]);
    let limits = |pool: &PoolConfig| ["instances", "ram", "x", "y", "z"].map(|name| pool.limits.get(name));
    assert_eq!(limits(pool(&config, "ec2", "m")), [7.0, 8.0, 1.0, 3.0, f64::INFINITY]);
    assert_eq!(limits(pool(&config, "ec2", "n")), [1.0, 2.0, 1.0, 2.0, f64::INFINITY]);
    assert_eq!(pool(&config, "os", "m").max_servers, Some(5));
    assert_eq!(pool(&config, "op", "m").max_servers, Some(4));
    assert_eq!(pool(&config, "hosts", "m").max_servers, None);
}

#[test]
fn priorities_ages_and_attributes_have_their_defaults() {
    let config = load(
        "max-hold-age: 2
labels: [{name: a, min-ready: 3, max-ready-age: 60}, {name: b}]
providers:
- {name: p, driver: test, priority: 5, pools: [{name: m, labels: []}, {name: n, labels: [], priority: 1, node-attributes: {k: [1, {on: x}]}}]}
- {name: q, driver: test, pools: [{name: m, labels: []}]}
",
    );
    assert_eq!(config.max_hold_age.map(|age| age.0), Some(2.0));
    assert_eq!((config.labels["a"].min_ready, config.labels["a"].max_ready_age.map(|age| age.0)), (3, Some(60.0)));
    assert_eq!((config.labels["b"].min_ready, config.labels["b"].max_ready_age), (0, None));
    assert_eq!((pool(&config, "p", "m").priority, pool(&config, "p", "n").priority), (5, 1));
    assert_eq!((pool(&config, "q", "m").priority, config.providers["q"].max_concurrency), (100, -1));
    let attributes = pool(&config, "p", "n").node_attributes.as_ref().unwrap();
    assert_eq!(attributes.to_string(), r#"{"k":[1,{"true":"x"}]}"#);
    for unlimited in ["", "max-hold-age:", "max-hold-age: 0", "max-hold-age: -1"] {
        assert_eq!(load(&format!("labels: []\n{unlimited}")).max_hold_age, None, "{unlimited}");
    }
}

#[test]
fn directories_retention_and_timeout_have_their_defaults() {
    let config = load("labels: []");
    assert_eq!((config.build_log_retention, config.zookeeper.session_timeout.0), (7, 10.0));
    assert!(config.images_dir.is_none() && config.elements_dir.is_none() && config.zookeeper.tls.is_none());
    let set = load("images-dir: /i\nelements-dir: /a:/b\nbuild-log-dir: /l\nbuild-log-retention: -1");
    assert_eq!((set.build_log_retention, set.elements_dir.as_deref()), (-1, Some("/a:/b")));
    assert_eq!(load("build-log-retention:").build_log_retention, 7);
    check_error("zookeeper-timeout: ten", "expected float for dictionary value @ data['zookeeper-timeout']");
    check_error("zookeeper-timeout: .inf", "expected float for dictionary value @ data['zookeeper-timeout']");
    check_error("zookeeper-timeout: -1", "expected float for dictionary value @ data['zookeeper-timeout']");
    check_error(
        "zookeeper-tls: {cert: c, key: k}",
        "A TLS ZooKeeper connection is required; please supply the zookeeper-tls",
    );
    check_error("", "expected a dictionary (np.yaml:1:1)");
    check_error("labels: 5", "expected a list for dictionary value @ data['labels']");
}

/// Asserts whether the change from one file to the other replaces the provider `p`.
fn check_equal(before: &str, after: &str, expected: Equality) {
    let provider = |text: &str| -> Arc<ProviderConfig> { load(text).providers["p"].clone() };
    let equal = provider(before) == provider(after);
    assert_eq!(equal, expected == Equality::Same, "{before}\n{after}");
}

#[derive(PartialEq)]
enum Equality {
    Same,
    Different,
}

#[test]
fn only_relevant_changes_replace_a_provider() {
    use Equality::*;
    let fake = |image: &str, label: &str, rest: &str| {
        format!(
            "labels: [{{name: l{label}}}]\ndiskimages: [{{name: i{image}}}, {{name: other}}]\nproviders:\n- name: p\n  \
             driver: fake{rest}\n  diskimages: [{{name: i}}]\n  pools: [{{name: m, labels: [{{name: l, diskimage: i}}]}}]\n"
        )
    };
    let before = fake("", "", "");
    check_equal(&before, &before, Same);
    check_equal(&before, &fake(", env-vars: {A: b}", "", ""), Different);
    check_equal(&before, &fake(", rebuild-age: 5", "", ""), Different);
    check_equal(&before, &fake(", delete-after-upload: true, keep-formats: [raw]", "", ""), Same);
    check_equal(&before, &fake("", ", min-ready: 7", ""), Same);
    check_equal(&before, &fake("", "", "\n  rate: 2.0"), Different);
    check_equal(&before, &fake("", "", "\n  ignored-key: 2"), Different);
    check_equal(&before, &before.replace("\n", "\n# comment\n"), Same);
    let default = "providers: [{name: p, cloud: c}]".replace("name: p", "name: p, driver: fake");
    check_equal(&default, "providers: [{driver: 'fake', \"cloud\": c, name: p}]", Same);
    let pods = |kind: &str| {
        format!(
            "labels: [{{name: l}}]\nproviders: [{{name: p, driver: openshiftpods, context: c, pools: [{{name: m, labels: [{{name: l{kind}}}]}}]}}]"
        )
    };
    check_equal(&pods(""), &pods(", type: pod"), Same);
}

#[test]
fn two_loads_of_one_file_are_equal() {
    for name in ["good", "static", "secure-main", "metastatic-ok"] {
        let text = file(name).replace("%(NODEPOOL_PORT)", "8005");
        assert_eq!(load(&text), load(&text));
    }
}

#[test]
fn ten_thousand_static_hosts_load_quickly() {
    let mut text =
        "labels: [{name: a}]\nproviders:\n- name: p\n  driver: static\n  pools:\n  - name: m\n    nodes:\n".to_owned();
    for host in 0..10_000 {
        text.push_str(&format!(
            "    - {{name: host-{host}, labels: [a], username: zuul, host-key: ssh-ed25519 AAAA{host}}}\n"
        ));
    }
    let config = load(&text);
    assert_eq!(pool(&config, "p", "m").section.list("nodes").unwrap().len(), 10_000);
}
