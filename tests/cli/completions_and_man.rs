//! Shell completions and manual pages of the packages: bash and groff accept them.
//!
//! The tests run the real `nodepool`, bash and groff. Without groff, only the names of the manual pages are checked.

use std::io::Write;
use std::process::{Command, Output};

use testkit::programs;

const PROGRAMS: [&str; 3] = ["nodepool", "nodepool-launcher", "nodepool-builder"];

fn nodepool(words: &[&str]) -> Output {
    let output = Command::new(programs::nodepool()).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// The completions that bash offers for the last word of a line.
fn completed(words: &[&str]) -> Vec<String> {
    let script = r#"
        program=$1; shift
        source <("$NODEPOOL" completions bash "$program") || exit 1
        function_of=$(complete -p "$program" | sed 's/.*-F \([^ ]*\).*/\1/')
        COMP_WORDS=("$program" "$@"); COMP_CWORD=$#
        "$function_of" "$program" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script, "bash"]).args(words).env("NODEPOOL", programs::nodepool());
    let output = bash.output().unwrap();
    let stderr = text(output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{words:?}: {stderr}");
    text(output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    assert_eq!(completed(&["nodepool", "dib-"]), ["dib-image-list", "dib-image-delete"]);
    assert_eq!(completed(&["nodepool", "list", "--det"]), ["--detail"]);
    assert_eq!(completed(&["nodepool", "-o", "j"]), ["json"]);
    assert_eq!(completed(&["nodepool", "image-delete", "--up"]), ["--upload-id"]);
    assert_eq!(completed(&["nodepool-launcher", "--no-"]), ["--no-webapp"]);
    assert_eq!(completed(&["nodepool-builder", "--upload-w"]), ["--upload-workers"]);
}

#[test]
fn other_shells_have_completions() {
    for program in PROGRAMS {
        assert!(text(nodepool(&["completions", "zsh", program]).stdout).starts_with(&format!("#compdef {program}")));
        let fish = text(nodepool(&["completions", "fish", program]).stdout);
        assert!(fish.contains(&format!("complete -c {program}")), "{fish}");
    }
}

#[test]
fn every_command_has_a_manual_page_without_groff_warnings() {
    let folder = tempfile::tempdir().unwrap();
    nodepool(&["man", folder.path().to_str().unwrap()]);
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in ["nodepool.1", "nodepool-watch.1", "nodepool-man.1", "nodepool-launcher.8", "nodepool-builder.8"] {
        assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
    }
    if Command::new("groff").arg("--version").output().is_err() {
        let _ = std::io::stderr().write_all(b"SKIPPED: groff is not installed\n");
        return;
    }
    for name in names {
        let page = folder.path().join(&name);
        let output = Command::new("groff").args(["-man", "-Tutf8", "-ww"]).arg(&page).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {}", text(output.stderr));
        let source = std::fs::read_to_string(&page).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"] {
            assert!(
                source.contains(&format!("\n.SH \"{section}\"")) || source.contains(&format!("\n.SH {section}\n")),
                "{name} has no {section}: {source}"
            );
        }
        assert!(!source.contains("version:"), "{name}: {source}");
    }
    let shown = |name: &str| {
        let output = Command::new("groff").args(["-man", "-Tascii", "-P-cbou"]).arg(folder.path().join(name)).output();
        text(output.unwrap().stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let request_page = shown("nodepool-request.1");
    let usage = "SYNOPSIS nodepool request [OPTIONS] --label <LABEL> [-- <COMMAND>...] DESCRIPTION";
    assert!(request_page.contains(usage), "{request_page}");
    let launcher_page = shown("nodepool-launcher.8");
    assert!(launcher_page.contains("SIGUSR2 Write the state of every actor"), "{launcher_page}");
    let builder_page = shown("nodepool-builder.8");
    assert!(builder_page.contains("SIGINT Stop when all running builds have ended"), "{builder_page}");
    assert!(builder_page.contains("SIGTERM, SIGUSR1 Terminate running builds"), "{builder_page}");
}

#[test]
fn json_format_prints_objects() {
    let folder = tempfile::tempdir().unwrap();
    let json = |words: &[&str]| serde_json::from_slice::<serde_json::Value>(&nodepool(words).stdout).unwrap();
    let written = json(&["-o", "json", "man", folder.path().to_str().unwrap()]);
    assert!(written["pages"].as_array().unwrap().contains(&"nodepool-builder.8".into()), "{written}");
    let completions = json(&["completions", "bash", "nodepool-launcher", "-o", "json"]);
    let script = text(nodepool(&["completions", "bash", "nodepool-launcher"]).stdout);
    assert_eq!(completions, serde_json::json!({"shell": "bash", "program": "nodepool-launcher", "script": script}));
    assert_eq!(json(&["config-schema", "-o", "json"]), json(&["config-schema"]));
}

#[test]
fn write_errors_use_the_requested_format() {
    let words = ["-o", "json", "man", "/proc/nowhere"];
    let output = Command::new(programs::nodepool()).args(words).output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let message = answer["message"].as_str().unwrap();
    assert!(output.status.code() == Some(1) && answer["outcome"] == "failed", "{answer}");
    assert!(message.starts_with("cannot create /proc/nowhere: "), "{message}");
    assert_eq!(text(output.stderr), format!("nodepool: error: {message}\n"));
}
