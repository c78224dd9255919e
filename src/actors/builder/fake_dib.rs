//! Fake `disk-image-create` of `--fake`: a script with the same arguments that writes small files.

/// Writes one text file per format with its checksums, and the directory that diskimage-builder leaves behind.
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

/// The command as a value of `dib-cmd`.
pub fn command() -> String {
    format!("sh -c '{}' fake-image-create", SCRIPT.replace('\'', r"'\''"))
}
