//! Programs and folders of this repository, found beside the executable of the running test.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// `target/<profile>`: cargo puts test programs into its `deps`.
static PROFILE_DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().expect("the path of the test's executable is known");
    let deps = test.parent().expect("an executable is in a directory");
    deps.parent().expect("test programs are two levels below the target directory").to_owned()
});

static LAUNCHER: LazyLock<String> = LazyLock::new(|| program("nodepool-launcher"));
static BUILDER: LazyLock<String> = LazyLock::new(|| program("nodepool-builder"));
static NODEPOOL: LazyLock<String> = LazyLock::new(|| program("nodepool"));

/// Path of `nodepool-launcher`.
pub fn launcher() -> &'static str {
    &LAUNCHER
}

/// Path of `nodepool-builder`.
pub fn builder() -> &'static str {
    &BUILDER
}

/// Path of the command `nodepool`.
pub fn nodepool() -> &'static str {
    &NODEPOOL
}

/// Path of an example, which `cargo test` builds for a whole run and `cargo build --examples` for a single program.
pub fn example(name: &str) -> PathBuf {
    let path = PROFILE_DIR.join("examples").join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --examples`", path.display());
    path
}

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A directory for files that outlive a test, such as logs and screenshots of failed ones.
pub fn target_tmp() -> PathBuf {
    let directory = PROFILE_DIR.with_file_name("tmp");
    std::fs::create_dir_all(&directory)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", directory.display()));
    directory
}

fn program(name: &str) -> String {
    let path = PROFILE_DIR.join(name);
    assert!(path.exists(), "{} is missing: run `cargo build`", path.display());
    path.into_os_string().into_string().expect("the target directory has a name in UTF-8")
}
