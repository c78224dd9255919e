//! Validation of a configuration: the files that `config-validate` accepts and rejects, with the error texts that
//! scripts match.
//!
//! The tests call the validator in process. PROPTEST_CASES lengthens those with random texts.

use nodepool_model::config::validate::validate;
use proptest::prelude::*;
use python_yaml::diagnostics::{Diagnostic, Severity};

const BUILT: &[&str] = &["static"];

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("tests/fixtures/config/{name}.yaml")).unwrap()
}

fn lines(problems: &[Diagnostic], severity: Severity) -> Vec<String> {
    problems.iter().filter(|problem| problem.severity == severity).map(ToString::to_string).collect()
}

/// Asserts exactly these errors, each by the beginning of its text. Without errors the file is valid.
fn check(text: &str, expected: &[&str]) {
    let found = lines(&validate(text, "np.yaml", BUILT), Severity::Error);
    let found: Vec<&String> = found.iter().filter(|line| !line.starts_with("Schema validation failed")).collect();
    let all_expected = expected.iter().all(|start| found.iter().any(|line| line.starts_with(start)));
    assert!(found.len() == expected.len() && all_expected, "{text}\nexpected {expected:#?}\nfound {found:#?}");
}

/// A configuration with a label and a provider of this driver. The given YAML completes the provider's section.
fn provider(driver: &str, rest: &str) -> String {
    format!("labels: [{{name: a}}]\nproviders:\n- name: p\n  driver: {driver}\n{rest}")
}

#[test]
fn a_file_with_most_keys_is_valid_once_its_variable_is_set() {
    check(&file("good").replace("%(NODEPOOL_PORT)", "8005"), &[]);
    check(&file("good"), &["YAML parsing failed (np.yaml:3:9)"]);
}

#[test]
fn each_error_has_the_text_of_the_reference() {
    check(&file("yaml-error"), &["YAML parsing failed"]);
    check(
        &file("missing-label"),
        &[
            "label trusty in provider static not in top-level labels (np.yaml:7:25): did you mean trsty?",
            "label trusty in provider static uses diskimage trusty which is not defined in the main diskimages list",
        ],
    );
    check(
        &file("unnamed-diskimage"),
        &["required key not provided @ data['diskimages'][0]['name'] (np.yaml:2:5): a diskimage needs `name`"],
    );
    check(&file("duplicate-diskimage"), &["diskimage trusty already defined (np.yaml:4:5)"]);
    check(&file("missing-parent"), &["diskimage trusty has non-existant parent: this_does_not_exist"]);
    check(
        &file("missing-diskimage"),
        &["diskimage wrong in provider cloud1 is not defined in the main diskimages list"],
    );
    check(&file("unknown-key"), &["extra keys not allowed @ data['nothandled'] (np.yaml:1:1): the file has no key"]);
}

#[test]
fn the_sections_of_drivers_are_checked_built_or_not() {
    check(&file("pod-with-image-and-spec"), &["extra keys not allowed @ data['pools'][0]['labels'][0]['spec']"]);
    check(&file("fleet-good"), &[]);
    check(
        &file("fleet-error-exclusive"),
        &["two or more values in the same group of exclusion 'instance' @ data['pools'][0]['labels'][0][<instance>]"],
    );
    check(
        &file("fleet-error-strategy"),
        &["not a valid value for dictionary value @ data['pools'][0]['labels'][0]['fleet']['allocation-strategy']"],
    );
    check(
        &file("static-error"),
        &[
            "extra keys not allowed @ data['cloud']",
            "extra keys not allowed @ data['pools'][0]['nodes'][0]['hostkey'] (np.yaml:11:13): provider hosts: a static \
             node has no key 'hostkey'; did you mean host-key?",
            "required key not provided @ data['pools'][0]['nodes'][1]['name']",
            "expected int for dictionary value @ data['pools'][0]['nodes'][1]['timeout']",
        ],
    );
    check(&file("metastatic-ok"), &[]);
    check(&file("metastatic-error"), &[]);
    check(
        &file("two-image-sources"),
        &[
            "two or more values in the same group of exclusion 'spec' @ data['cloud-images'][0][<spec>]",
            "Provide either \"image-filters\", or \"image-id\" keys @ data['cloud-images'][1]",
        ],
    );
}

#[test]
fn types_are_checked_and_not_converted() {
    check("zookeeper-timeout: 10", &["expected float for dictionary value @ data['zookeeper-timeout']"]);
    check("zookeeper-timeout: 10.0", &[]);
    check("labels: [{name: a, min-ready: true}]", &[]);
    check(
        "labels: [{name: a, min-ready: '1'}]",
        &["expected int for dictionary value @ data['labels'][0]['min-ready']"],
    );
    check("labels: [{name: 5}]", &["expected str for dictionary value @ data['labels'][0]['name']"]);
    check("labels: [{name: 2024-01-31}]", &["expected str for dictionary value @ data['labels'][0]['name']"]);
    check(
        "diskimages: [{name: a, pause: 'yes'}]",
        &["expected bool for dictionary value @ data['diskimages'][0]['pause']"],
    );
    check("diskimages: [{name: a, pause: yes, release: 7, shell-type: csh}]", &[]);
    check("diskimages: [{name: a, elements: [b, 5]}]", &["expected str @ data['diskimages'][0]['elements'][1]"]);
    check("diskimages: [{name: a, env-vars: {5: x}}]", &["expected str @ data['diskimages'][0]['env-vars'][5]"]);
    check("webapp: 8005", &["expected a dictionary for dictionary value @ data['webapp']"]);
    check("labels:", &["expected a list for dictionary value @ data['labels']"]);
    check("providers:", &["expected list for dictionary value @ data['providers']"]);
    check("5: x", &["extra keys not allowed @ data[5]"]);
    check("yes: x", &["extra keys not allowed @ data[True]"]);
    check(
        "tenant-resource-limits: [{tenant-name: t, max-cores: 5, odd: x}]",
        &["expected int for dictionary value @ data['tenant-resource-limits'][0]['odd']"],
    );
    check("", &["expected a dictionary (np.yaml:1:1)"]);
    check("[a]", &["expected a dictionary (np.yaml:1:1)"]);
    for (gpu, errors) in
        [("1", vec!["expected float for dictionary value @ data['pools'][0]['labels'][0]['gpu']"]), ("1.0", vec![])]
    {
        let label = format!("  pools: [{{name: m, labels: [{{name: a, type: pod, image: i, gpu: {gpu}}}]}}]");
        check(&provider("kubernetes", &label), &errors);
    }
    for (rate, errors) in
        [("2", vec![]), ("'0.5'", vec![]), ("x", vec!["expected float for dictionary value @ data['rate']"])]
    {
        check(&provider("openstack", &format!("  cloud: c\n  rate: {rate}")), &errors);
    }
}

#[test]
fn the_driver_decides_which_schema_counts() {
    check("providers: [{name: x}]", &["required key not provided @ data['cloud']"]);
    check("providers: [{name: fake-x, cloud: c}]", &[]);
    check("providers: [{name: fake-x, driver: static}]", &[]);
    check(
        "providers: [{name: x, driver: opnstack}]",
        &["opnstack: unknown driver (np.yaml:1:31): did you mean openstack?"],
    );
    check("providers: [5]", &["expected a dictionary @ data['providers'][0]"]);
    check("providers: [{driver: static}]", &["required key not provided @ data['name']"]);
    let names = "  vpc: v\n  region: r\n  pools: [{name: _m, labels: []}]";
    check(
        &provider("ibmvpc", names).replace("name: p", "name: p_1"),
        &[
            "does not match regular expression ^[^_]+$ for dictionary value @ data['name']",
            "does not match regular expression [^_]+ for dictionary value @ data['pools'][0]['name']",
        ],
    );
}

#[test]
fn the_first_missing_alternative_is_named() {
    check(
        &provider("openstack", "  cloud: c\n  pools: [{name: m, labels: [{name: a}]}]"),
        &[
            "required key not provided @ data['pools'][0]['labels'][0]['min-ram']",
            "required key not provided @ data['pools'][0]['labels'][0]['diskimage']",
        ],
    );
}

#[test]
fn findings_of_the_loader_alone_are_validator_warnings() {
    let text = provider("static", "  pools: [{name: m, nodes: [{name: h, labels: [b]}]}]");
    check(&text, &[]);
    let warnings = lines(&validate(&text, "np.yaml", BUILT), Severity::Warning);
    assert!(warnings.iter().any(|line| line.starts_with("KeyError: 'b' (np.yaml:5:48)")), "{warnings:#?}");
    assert!(warnings.iter().any(|line| line.contains("refuse to load")), "{warnings:#?}");
    check(&file("stricter-names"), &["KeyError: 'name' (np.yaml:7:9): a pool needs `name`"]);
}

#[test]
fn a_driver_that_is_not_built_is_a_warning() {
    let problems = validate(&file("metastatic-ok"), "np.yaml", BUILT);
    let notices = lines(&problems, Severity::Notice);
    assert_eq!(notices.len(), 1, "{problems:#?}");
    assert!(notices[0].starts_with("provider shared is out of service (np.yaml:3:5)"), "{notices:?}");
    assert_eq!(validate(&file("metastatic-ok"), "np.yaml", &["metastatic"]), []);
}

#[test]
fn all_diagnostics_are_reported_in_order() {
    let text = "zookeper-timeout: 1\nlabels: [{nam: a}]\ndiskimages: [{name: a}, {name: a, parent: b}]\n";
    let found = lines(&validate(text, "np.yaml", BUILT), Severity::Error);
    let starts = [
        "Schema validation failed (np.yaml): 2 found",
        "extra keys not allowed @ data['zookeper-timeout'] (np.yaml:1:1): the file has no key 'zookeper-timeout'; did you mean zookeeper-timeout?",
        "extra keys not allowed @ data['labels'][0]['nam']",
        "diskimage a already defined",
        "diskimage a has non-existant parent: b",
        "KeyError: 'name' (np.yaml:2:10): a label needs `name`",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (line, start) in found.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}\n{start}");
    }
}

#[test]
fn no_message_carries_a_secret() {
    let secret = "hunter2";
    for text in [
        format!("diskimages: [{{name: a, env-vars: {{A: [{secret}], B: {{x: {secret}}}}}}}]"),
        format!("diskimages: [{{name: a, env-vars: {secret}}}]"),
        format!("zookeeper-tls: {{key: [{secret}], cert: {{a: {secret}}}}}"),
        format!("zookeeper-tls: {secret}"),
        provider("azure", &format!("  cloud-images: [{{name: a, username: b, password: [{secret}]}}]")),
        format!("diskimages: [{{name: a, env-vars: {{A: *{secret}}}}}]"),
    ] {
        let problems = validate(&text, "np.yaml", BUILT);
        assert!(problems.iter().any(Diagnostic::is_error), "{text}");
        assert!(!format!("{problems:?}").contains(secret), "{problems:#?}");
    }
}

#[test]
fn truncated_files_never_panic() {
    for name in ["good", "static", "two-image-sources"] {
        let text = file(name);
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            validate(&text[..end], "np.yaml", BUILT);
        }
    }
}

#[test]
fn randomly_mutated_files_never_panic() {
    let text = file("good").replace("%(NODEPOOL_PORT)", "8005");
    let lines: Vec<&str> = text.lines().collect();
    for (row, line) in lines.iter().enumerate() {
        let indentation = line.len() - line.trim_start().len();
        let key = line.split(':').next().unwrap_or_default();
        for replacement in
            ["", "- 5", "a: {b: [c]}", &format!("{key}: [[]]"), &format!("{key}: 9e99"), &format!("{key}: ~")]
        {
            let mut mutated = lines.clone();
            let padded = format!("{}{}", " ".repeat(indentation), replacement.trim_start());
            mutated[row] = &padded;
            validate(&mutated.join("\n"), "np.yaml", BUILT);
        }
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*|[a-z0-9:{}\\[\\]&*!|>'\"#%@`,? \\-\n\t~.<]{0,200}") {
        validate(&text, "np.yaml", BUILT);
    }

    #[test]
    fn no_value_of_a_known_key_makes_it_panic(
        key in prop::sample::select(vec![
            "webapp", "zookeeper-servers", "zookeeper-tls", "zookeeper-timeout", "providers", "labels", "diskimages",
            "max-hold-age", "tenant-resource-limits", "build-log-retention", "images-dir",
        ]),
        value in "[a-z0-9:{}\\[\\]' .\\-,]{0,40}",
    ) {
        validate(&format!("{key}: {value}\n"), "np.yaml", BUILT);
        validate(&format!("{key}: [{{name: {value}, pools: [{{{value}}}]}}]\n"), "np.yaml", BUILT);
    }
}
