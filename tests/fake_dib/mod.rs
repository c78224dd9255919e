//! What makes images for builders under test, and what they left on their disks.
#![allow(dead_code)] // Each test binary uses its part.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nodepool_model::snapshot::images::Images;

/// Takes its time, in a child of its own, and leaves files of some size.
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

/// Never ends by itself, and takes a while to tidy up when it is to end.
pub const SLOW_EXIT_DIB: &str = r#"#!/bin/bash
here=$(dirname "$0")
trap 'sleep 1; touch "$here/tidied"; exit 1' TERM
touch "$here/begun"
sleep 600 &
wait
"#;

/// The command for `dib-cmd`, in this directory.
pub fn install(directory: &Path) -> PathBuf {
    install_script(directory, FAKE_DIB)
}

/// The same, or another one in its place.
pub fn install_script(directory: &Path, script: &str) -> PathBuf {
    let command = directory.join("dib");
    std::fs::write(&command, script).expect("the directory is writable");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&command, executable).expect("whose file it is may say who executes it");
    command
}

/// Processes that make a build in this directory.
pub fn build_processes(images: &Path) -> usize {
    let mark = format!("DIB_IMAGE_FILENAME={}", images.display());
    let processes = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let environments = processes.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    environments.filter(|text| text.windows(mark.len()).any(|window| window == mark.as_bytes())).count()
}

/// A file in one of these directories, or a claim, that belongs to no build; some names are somebody else's.
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
