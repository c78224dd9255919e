//! Debian package: it is built without root, contains the expected files, and its scripts parse. Container build: it
//! copies all that is compiled.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use testkit::programs;

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    // Compression of the programs with their symbols is slow, and irrelevant here.
    command.current_dir(programs::repository()).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
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
        let _ = std::io::stderr().write_all(format!("SKIPPED: {missing} is not installed\n").as_bytes());
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
    // The command line is the real program, because it generates pages and completions. The content of the daemons is
    // irrelevant here, so a small program replaces them.
    std::fs::copy(programs::nodepool(), small.join("nodepool")).unwrap();
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

/// The container build copies every input of the compilation.
#[test]
fn the_containerfile_copies_all_that_is_compiled() {
    let root = programs::repository();
    let containerfile = std::fs::read_to_string(root.join("Containerfile")).unwrap();
    let copied: Vec<&str> = containerfile
        .lines()
        .filter(|line| line.starts_with("COPY ") && !line.contains("--from"))
        .flat_map(|line| {
            let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
            words.pop();
            words
        })
        .collect();
    // Only paths that `.dockerignore` allows are copied.
    let allowed = std::fs::read_to_string(root.join(".dockerignore")).unwrap();
    for path in &copied {
        let first = path.split('/').next().unwrap();
        assert!(root.join(path).exists() && allowed.lines().any(|line| line == format!("!{first}")), "{path}");
    }
    let folder = tempfile::tempdir().unwrap();
    for path in &copied {
        let to = folder.path().join(path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        run("cp", &["-r", root.join(path).to_str().unwrap(), to.to_str().unwrap()]);
    }
    // Folders that are embedded in the programs.
    let sources = run("grep", &["-rhoE", r#"#\[folder = "[^"]+""#, "src"]);
    let embedded: Vec<&str> = sources.lines().filter_map(|line| line.split('"').nth(1)).collect();
    assert!(embedded.contains(&"web") || embedded.contains(&"web/"), "{embedded:?}");
    for path in embedded {
        assert!(folder.path().join(path).exists(), "{path} is not copied");
    }
    // Cargo rejects the manifest if a target is missing.
    let manifest = folder.path().join("Cargo.toml");
    let words =
        ["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path", manifest.to_str().unwrap()];
    let metadata = run(env!("CARGO"), &words);
    for target in ["handout", "decision", "nodepool-builder"] {
        assert!(metadata.contains(&format!("\"{target}\"")), "{target}");
    }
    let entry = root.join("contrib/container/start");
    let succeeds = |debug: &str| {
        let mut command = Command::new(&entry);
        command.args(["nodepool-launcher", "--version"]).env("DEBUG", debug);
        let programs = Path::new(programs::nodepool()).parent().unwrap();
        command.env("PATH", format!("{}:/usr/bin:/bin", programs.display())).output().unwrap().status.success()
    };
    assert!(succeeds("") && succeeds("1"));
}

#[test]
fn the_packaged_configuration_is_valid() {
    let file = programs::repository().join("contrib/debian/nodepool.yaml");
    run(programs::nodepool(), &["-c", file.to_str().unwrap(), "config-validate"]);
}
