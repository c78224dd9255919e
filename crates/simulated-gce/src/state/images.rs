//! Images of all projects, by project and name, and the newest one of a family.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::state::places::{BASE, reference};

#[derive(Clone, Debug)]
pub struct Image {
    pub project: String,
    pub name: String,
    pub family: Option<String>,
    pub size_gb: u64,
    pub is_deprecated: bool,
    id: u64,
    created: String,
    /// Position in the order of creation.
    number: u64,
}

/// A new image.
pub struct NewImage<'a> {
    pub project: &'a str,
    pub name: &'a str,
    pub family: Option<&'a str>,
    pub size_gb: u64,
}

#[derive(Default)]
pub struct Images {
    projects: BTreeMap<String, BTreeMap<String, Image>>,
    count: u64,
}

/// Public images, oldest first: project, name, family, GB.
const PUBLIC: [(&str, &str, &str, u64); 5] = [
    ("debian-cloud", "debian-11-bullseye-v20260113", "debian-11", 10),
    ("debian-cloud", "debian-12-bookworm-v20251209", "debian-12", 10),
    ("debian-cloud", "debian-12-bookworm-v20260113", "debian-12", 10),
    ("ubuntu-os-cloud", "ubuntu-2404-noble-amd64-v20260117", "ubuntu-2404-lts-amd64", 10),
    ("rocky-linux-cloud", "rocky-linux-9-v20260115", "rocky-linux-9", 20),
];

impl Images {
    /// The public images, and two of each own project: `nodepool-1` of the family `nodepool`, and `large`.
    pub fn initial(own: &[String], created: &str, mut new_id: impl FnMut() -> u64) -> Self {
        let mut images = Self::default();
        for (project, name, family, size_gb) in PUBLIC {
            images.add(&NewImage { project, name, family: Some(family), size_gb }, created, new_id());
        }
        for project in own {
            let family = Some("nodepool");
            images.add(&NewImage { project, name: "nodepool-1", family, size_gb: 10 }, created, new_id());
            images.add(&NewImage { project, name: "large", family: None, size_gb: 100 }, created, new_id());
        }
        images
    }

    /// Adds an image. `false` means that its name exists.
    pub fn add(&mut self, new: &NewImage<'_>, created: &str, id: u64) -> bool {
        let images = self.projects.entry(new.project.to_owned()).or_default();
        if images.contains_key(new.name) {
            return false;
        }
        self.count += 1;
        let image = Image {
            project: new.project.to_owned(),
            name: new.name.to_owned(),
            family: new.family.map(str::to_owned),
            size_gb: new.size_gb,
            is_deprecated: false,
            id,
            created: created.to_owned(),
            number: self.count,
        };
        images.insert(new.name.to_owned(), image);
        true
    }

    pub fn get(&self, project: &str, name: &str) -> Option<&Image> {
        self.projects.get(project)?.get(name)
    }

    pub fn get_mut(&mut self, project: &str, name: &str) -> Option<&mut Image> {
        self.projects.get_mut(project)?.get_mut(name)
    }

    pub fn remove(&mut self, project: &str, name: &str) -> Option<Image> {
        self.projects.get_mut(project)?.remove(name)
    }

    /// The images of a project, or `None` if the project is unknown.
    pub fn of_project(&self, project: &str) -> Option<&BTreeMap<String, Image>> {
        self.projects.get(project)
    }

    /// The newest image of a family that is not deprecated.
    pub fn newest(&self, project: &str, family: &str) -> Option<&Image> {
        let images = self.projects.get(project)?.values();
        let of_family = images.filter(|image| image.family.as_deref() == Some(family) && !image.is_deprecated);
        of_family.max_by_key(|image| image.number)
    }

    /// The image that a source names, which is an image or a family, and by default one of the own project.
    pub fn find(&self, source: &str, own: &str) -> Option<&Image> {
        let (project, path) = reference(source);
        let project = project.unwrap_or(own);
        match path[..] {
            ["global", "images", "family", family] => self.newest(project, family),
            ["global", "images", name] => self.get(project, name),
            _ => None,
        }
    }
}

impl Image {
    pub fn path(&self) -> String {
        format!("projects/{}/global/images/{}", self.project, self.name)
    }

    pub fn json(&self) -> Value {
        let link = format!("{BASE}{}", self.path());
        let mut image = json!({
            "kind": "compute#image", "id": self.id.to_string(), "creationTimestamp": self.created, "name": self.name,
            "description": format!("The image {}", self.name), "sourceType": "RAW",
            "rawDisk": {"source": "", "containerType": "TAR"}, "status": "READY",
            "archiveSizeBytes": (self.size_gb << 27).to_string(), "diskSizeGb": self.size_gb.to_string(),
            "licenses": [], "selfLink": link, "labelFingerprint": "42WmSpB8rSM=",
            "guestOsFeatures": [{"type": "UEFI_COMPATIBLE"}, {"type": "VIRTIO_SCSI_MULTIQUEUE"}, {"type": "GVNIC"}],
            "storageLocations": ["us"], "architecture": "X86_64",
        });
        if let Some(family) = &self.family {
            image["family"] = json!(family);
        }
        if self.is_deprecated {
            image["deprecated"] = json!({"state": "DEPRECATED"});
        }
        image
    }
}
