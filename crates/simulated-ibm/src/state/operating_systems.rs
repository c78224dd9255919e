//! Operating systems of images.

use serde_json::{Value, json};

use crate::state::world::World;

/// An operating system; users may not create images of a restricted one.
pub struct OperatingSystem {
    pub name: &'static str,
    family: &'static str,
    version: &'static str,
    is_restricted: bool,
}

pub const ALL: [OperatingSystem; 9] = [
    system("centos-stream-9-amd64", "CentOS Stream", "9 - Stream", false),
    system("debian-11-amd64", "Debian GNU/Linux", "11.x Bullseye/Stable - Minimal Install", false),
    system("debian-12-amd64", "Debian GNU/Linux", "12.x Bookworm/Stable - Minimal Install", false),
    system("fedora-coreos-stable-amd64", "Fedora", "CoreOS - Stable", false),
    system("red-9-amd64", "Red Hat Enterprise Linux", "9.x - Minimal Install", false),
    system("rocky-linux-9-amd64", "Rocky Linux", "9.x - Minimal Install", false),
    system("ubuntu-22-04-amd64", "Ubuntu Linux", "22.04 LTS Jammy Jellyfish Minimal Install", false),
    system("ubuntu-24-04-amd64", "Ubuntu Linux", "24.04 LTS Noble Numbat Minimal Install", false),
    system("ibm-restricted-amd64", "IBM", "1", true),
];

const fn system(
    name: &'static str,
    family: &'static str,
    version: &'static str,
    is_restricted: bool,
) -> OperatingSystem {
    OperatingSystem { name, family, version, is_restricted }
}

impl OperatingSystem {
    pub fn json(&self, world: &World) -> Value {
        let Self { name, family, version, is_restricted } = self;
        json!({
            "allow_user_image_creation": !is_restricted, "architecture": "amd64", "dedicated_host_only": false,
            "display_name": format!("{family} {version} (amd64)"), "family": family,
            "href": world.href(&format!("operating_systems/{name}")), "name": name, "user_data_format": "cloud_init",
            "vendor": family, "version": version,
        })
    }
}
