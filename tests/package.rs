//! The Debian package: it is made without root, holds what it should, and its scripts are sound.

use std::io::Write;
use std::path::Path;
use std::process::Command;

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    // Compressing programs with all their symbols takes long and shows nothing.
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    command
}

fn run(program: &str, words: &[&str]) -> String {
    let output = command(program).args(words).output().unwrap();
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {notes}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(missing) = missing {
        let _ = std::io::stderr().write_all(format!("SKIPPED: there is no {missing}\n").as_bytes());
    }
    missing.is_none()
}

#[test]
fn the_package_holds_programs_units_pages_and_completions() {
    if !has(&["dpkg-deb", "strip", "objdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("programs");
    std::fs::create_dir(&small).unwrap();
    // The real command line makes pages and completions; the size of the daemons does not matter here.
    std::fs::copy(env!("CARGO_BIN_EXE_nodepool"), small.join("nodepool")).unwrap();
    for name in ["nodepool-launcher", "nodepool-builder"] {
        std::fs::copy("/bin/true", small.join(name)).unwrap();
    }
    let words = ["--binaries", small.to_str().unwrap(), folder.path().to_str().unwrap()];
    run("contrib/debian/build", &words);
    let found = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let package = found.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb")).unwrap();
    let package = package.to_str().unwrap();
    let contents = run("dpkg-deb", &["--contents", package]);
    for path in [
        "-rwxr-xr-x root/root ./usr/bin/nodepool",
        "-rwxr-xr-x root/root ./usr/bin/nodepool-launcher",
        "-rwxr-xr-x root/root ./usr/bin/nodepool-builder",
        "-rw-r--r-- root/root ./usr/lib/systemd/system/nodepool-launcher.service",
        "-rw-r--r-- root/root ./etc/nodepool/nodepool.yaml",
        "-rw-r--r-- root/root ./usr/share/man/man1/nodepool-watch.1.gz",
        "-rw-r--r-- root/root ./usr/share/bash-completion/completions/nodepool",
        "-rw-r--r-- root/root ./usr/share/nodepool/nodepool.schema.json",
    ] {
        let is_it = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            format!("{} {} {}", words[0], words[1], words[5]) == path
        };
        assert!(contents.lines().any(is_it), "{path} is not in\n{contents}");
    }
    assert!(run("dpkg-deb", &["--info", package, "conffiles"]).contains("/etc/nodepool/nodepool.yaml"));
    assert!(run("dpkg-deb", &["--field", package, "Version"]).starts_with(env!("CARGO_PKG_VERSION")));
    for script in ["postinst", "prerm", "postrm"] {
        run("sh", &["-n", &format!("contrib/debian/{script}")]);
    }
}

#[test]
fn its_configuration_is_valid() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/debian/nodepool.yaml");
    run(env!("CARGO_BIN_EXE_nodepool"), &["-c", file.to_str().unwrap(), "config-validate"]);
}
