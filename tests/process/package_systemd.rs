//! Debian package under a real systemd, in a container over this machine's files: install, start, watchdog, upgrade,
//! stop and purge, and migration from Nodepool 11 and back. `tests/systemd/inside` contains the steps. Needs root and
//! systemd-nspawn.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::{programs, real};

fn root() -> &'static Path {
    programs::repository()
}

fn run(program: impl AsRef<OsStr>, words: &[&dyn AsRef<OsStr>]) -> Output {
    let mut command = Command::new(&program);
    // Strong compression of the package is slow, and irrelevant here.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let output = command.args(words.iter().map(|word| word.as_ref())).output().unwrap();
    assert!(output.status.success(), "{:?}: {output:?}", program.as_ref());
    output
}

/// Builds the package of this version and one of a later version.
fn packages(folder: &Path) -> String {
    let (before, after) = (folder.join("before"), folder.join("after"));
    let programs = Path::new(programs::nodepool()).parent().unwrap();
    run(root().join("contrib/debian/build"), &[&"--binaries", &programs, &before]);
    let package: PathBuf = fs::read_dir(&before).unwrap().next().unwrap().unwrap().path();
    let tree = folder.join("tree");
    run("dpkg-deb", &[&"--raw-extract", &package, &tree]);
    let version = format!("{}+next", env!("CARGO_PKG_VERSION"));
    let control = fs::read_to_string(tree.join("DEBIAN/control")).unwrap();
    let now = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(control.contains(&now), "{control}");
    fs::write(tree.join("DEBIAN/control"), control.replace(&now, &format!("Version: {version}\n"))).unwrap();
    fs::create_dir(&after).unwrap();
    run("dpkg-deb", &[&"--root-owner-group", &"--build", &tree, &after.join("nodepool.deb")]);
    fs::remove_dir_all(tree).unwrap();
    version
}

fn skipped(reason: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED: {reason}\n").as_bytes());
}

/// Installs, starts, stops and upgrades the package, and follows doc/migration.md in both directions.
#[test]
fn the_package_runs_under_systemd_and_replaces_python_nodepool() {
    if real::skipped() {
        return;
    }
    if !nix::unistd::geteuid().is_root() || Command::new("systemd-nspawn").arg("--version").output().is_err() {
        return skipped("the package under systemd: needs root and systemd-nspawn");
    }
    let folder = tempfile::Builder::new().prefix("nodepool-test-systemd-").tempdir_in("/var/tmp").unwrap();
    let proof = folder.path();
    let after = packages(proof);
    let tls = PathBuf::from(real::setting("NODEPOOL_TEST_TLS"));
    fs::create_dir(proof.join("tls")).unwrap();
    for name in ["ca.pem", "client.pem", "client.key", "server-store.pem"] {
        fs::copy(tls.join(name), proof.join("tls").join(name)).unwrap();
    }
    let reference = PathBuf::from(real::setting("NODEPOOL_TEST_REFERENCE"));
    let settings = format!(
        "AFTER={after}\nREFERENCE={}\nCLASSPATH={}\n",
        reference.parent().unwrap().display(),
        real::setting("NODEPOOL_TEST_ZOOKEEPER_CLASSPATH").display()
    );
    fs::write(proof.join("settings"), settings).unwrap();
    fs::copy(root().join("tests/systemd/inside"), proof.join("inside")).unwrap();
    let boot = root().join("tests/systemd/boot");
    let booted = Command::new("timeout")
        .args(["--kill-after=10", "420", "unshare", "--mount", "--propagation", "private"])
        .args([boot.as_path(), proof])
        .output()
        .unwrap();
    let output = fs::read_to_string(proof.join("said")).unwrap_or_default();
    if booted.status.code() == Some(77) {
        return skipped(String::from_utf8_lossy(&booted.stderr).trim());
    }
    let status = fs::read_to_string(proof.join("status")).unwrap_or_default();
    let console = String::from_utf8_lossy(&booted.stdout);
    assert_eq!(status.trim(), "0", "{output}\nThe container: {:?}\n{console}", booted.status);
    assert!(output.trim_end().ends_with("--- done"), "{output}");
}
