//! What `--fake` builds images with: a script that takes the arguments of disk-image-create and makes small files.

/// One text file of each format with its checksums, and the folder that diskimage-builder leaves.
const SCRIPT: &str = r#"
set -e
while [ $# -gt 0 ]; do
    case "$1" in
        -o) out=$2; shift ;;
        -t) formats=$2; shift ;;
        --qemu-img-options) shift ;;
    esac
    shift
done
echo "fake image $DIB_IMAGE_NAME: $formats"
mkdir -p "$out.d"
for format in $(echo "$formats" | tr , ' '); do
    echo "fake image $DIB_IMAGE_NAME" > "$out.$format"
    md5sum "$out.$format" > "$out.$format.md5"
    sha256sum "$out.$format" > "$out.$format.sha256"
done
"#;

/// The command, as a configuration would have it.
pub fn command() -> String {
    format!("sh -c '{}' fake-image-create", SCRIPT.replace('\'', r"'\''"))
}
