//! Regions, zones, and the URLs of resources.

/// Beginning of the URLs of all resources, as the responses of Google's API have it.
pub const BASE: &str = "https://www.googleapis.com/compute/v1/";

pub const REGIONS: [(&str, &[&str]); 2] = [
    ("europe-west1", &["europe-west1-b", "europe-west1-c", "europe-west1-d"]),
    ("us-central1", &["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]),
];

pub const DEFAULT_ZONE: &str = "us-central1-a";

/// All zones, ordered by name.
pub fn zones() -> impl Iterator<Item = &'static str> {
    REGIONS.iter().flat_map(|(_, zones)| zones.iter().copied())
}

/// The zone with this name, which then lives as long as the program.
pub fn zone(name: &str) -> Option<&'static str> {
    zones().find(|zone| *zone == name)
}

pub fn region(name: &str) -> Option<(&'static str, &'static [&'static str])> {
    REGIONS.iter().find(|(region, _)| *region == name).copied()
}

/// The region of a zone.
pub fn region_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}

/// The project that a reference names, if it names one, and the rest of its path. A reference is a URL, or the end of
/// one that begins with `projects`, `global`, `zones` or `regions`.
pub fn reference(text: &str) -> (Option<&str>, Vec<&str>) {
    let path = match text.split_once("://") {
        Some((_, rest)) => rest.split_once("/compute/v1/").map_or("", |(_, path)| path),
        None => text,
    };
    let parts: Vec<&str> = path.split('/').collect();
    match &parts[..] {
        ["projects", project, rest @ ..] => (Some(project), rest.to_vec()),
        _ => (None, parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_urls_or_paths() {
        let image = vec!["global", "images", "one"];
        for (text, project) in [
            ("https://www.googleapis.com/compute/v1/projects/p/global/images/one", Some("p")),
            ("https://compute.googleapis.com/compute/v1/projects/p/global/images/one", Some("p")),
            ("http://127.0.0.1:8901/compute/v1/projects/p/global/images/one", Some("p")),
            ("projects/p/global/images/one", Some("p")),
            ("global/images/one", None),
        ] {
            assert_eq!(reference(text), (project, image.clone()), "{text}");
        }
        assert_eq!(reference("https://example.com/one"), (None, vec![""]));
    }
}
