//! Any text as a configuration, alone and with a secure file: it may be refused, it may not panic or hang.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodepool::model::resolve::{Source, resolve};
use nodepool::model::validate::validate;
use nodepool::model::yaml_parse::parse;

const ALL: &[&str] = &["aws", "fake", "kubernetes", "metastatic", "openshiftpods", "openstack", "static", "test"];
/// What follows this line is the secure file.
const SEPARATOR: &str = "\n#secure\n";

fuzz_target!(|text: &str| {
    let (main, secure) = text.split_once(SEPARATOR).map_or((text, None), |(main, secure)| (main, Some(secure)));
    let problems = validate(main, "np.yaml", ALL);
    let Ok(main) = parse(main, &mut Vec::new()) else { return };
    let secure = secure.and_then(|text| parse(text, &mut Vec::new()).ok());
    let source = |file, root| Source { file, root };
    let load = || resolve(source("np.yaml", &main), secure.as_ref().map(|root| source("secure.yaml", root)), ALL);
    let (first, second) = (load(), load());
    assert_eq!(first.config, second.config, "two loads of one file are equal");
    assert!(first.config.is_some() || first.problems.iter().any(|problem| problem.is_error()));
    for problem in problems.iter().chain(&first.problems) {
        assert!(!problem.message.is_empty() && problem.to_string().len() < 100_000);
    }
});
