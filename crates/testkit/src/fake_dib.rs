//! Fake disk-image-create for builders under test, and checks of the files and processes that builds leave behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::executable;
use nodepool_model::snapshot::images::Images;

/// Script that runs for up to half a second per format, in child processes, and writes files of 3 MB.
const FAKE_DIB: &str = r#"#!/bin/bash
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2; shift ;; -t) formats=$2; shift ;; esac
    shift
done
mkdir -p "$out.d"
for format in ${formats//,/ }; do
    sleep 0.$((RANDOM % 4))
    head -c 3000000 /dev/zero > "$out.$format"
    md5sum "$out.$format" > "$out.$format.md5"
    sleep 0.$((RANDOM % 3))
done
"#;

/// Script that runs until it is terminated, and then takes a second to exit.
pub const SLOW_EXIT_DIB: &str = r#"#!/bin/bash
here=$(dirname "$0")
trap 'sleep 1; touch "$here/exited"; exit 1' TERM
touch "$here/started"
sleep 600 &
wait
"#;

/// Installs the command for `dib-cmd` in this directory.
pub fn install(directory: &Path) -> PathBuf {
    install_script(directory, FAKE_DIB)
}

/// Installs this script, in place of an earlier one.
pub fn install_script(directory: &Path, script: &str) -> PathBuf {
    let command = directory.join("dib");
    executable::install(&command, script);
    command
}

/// Number of processes of builds in this directory.
pub fn build_processes(images: &Path) -> usize {
    let mark = format!("DIB_IMAGE_FILENAME={}", images.display());
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let environments = processes.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    environments.filter(|text| text.windows(mark.len()).any(|window| window == mark.as_bytes())).count()
}

/// First file or claim in these directories that belongs to no build, except foreign files.
pub fn unexpected_file(directories: &[&Path], records: &Images, foreign_files: &[&str]) -> Option<String> {
    let builds: BTreeSet<String> = records.builds().map(|(key, _)| key.file_name()).collect();
    let is_known = |name: &str| builds.iter().any(|build| name == build || name.starts_with(&format!("{build}.")));
    let own = [".builds", "builder_id.txt"];
    let mut files = directories.iter().flat_map(|images| {
        let files =
            names(images).into_iter().filter(|name| !foreign_files.contains(&&**name) && !own.contains(&&**name));
        files.chain(names(&images.join(".builds")))
    });
    files.find(|name| !is_known(name))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
