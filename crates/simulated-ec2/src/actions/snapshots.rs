//! DescribeSnapshots, CreateSnapshot, DeleteSnapshot.

use crate::api::pages::not_found;
use crate::api::xml::Xml;
use crate::region::objects::Snapshot;
use crate::region::region::Ec2;
use crate::region::tags::{self, Tags};
use crate::region::work::Step;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

const NOT_FOUND: (&str, &str) = ("InvalidSnapshot.NotFound", "snapshot");

impl Ec2<'_> {
    pub fn describe_snapshots(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let account = self.world.options.account.as_str();
        let owners = form.list("Owner");
        let is_owner = |owner: &str| {
            owners.iter().any(|wanted| match *wanted {
                "self" => owner == account,
                "amazon" => owner != account,
                wanted => owner == wanted,
            })
        };
        let query = self.query(form, "SnapshotId", NOT_FOUND);
        let page = query.page(&self.region.snapshots, |one| owners.is_empty() || is_owner(&one.owner))?;
        page.write(xml, "snapshotSet", |xml, snapshot| snapshot.write(xml));
        Ok(())
    }

    /// Creates a pending snapshot; returns its id.
    pub fn add_snapshot(&mut self, volume: &str, size_gib: u32, description: &str, tags: Tags) -> String {
        let id = self.world.new_id("snap");
        self.created("snapshots", &id, description, &tags);
        let snapshot = Snapshot {
            id: id.clone(),
            volume: volume.to_owned(),
            state: "pending",
            size_gib,
            owner: self.world.options.account.clone(),
            description: description.to_owned(),
            encrypted: false,
            started: self.world.timestamp(),
            started_s: self.world.epoch_ms(self.world.now) / 1000.0,
            tags,
            blocks: std::collections::BTreeMap::new(),
            is_open: false,
        };
        self.region.snapshots.insert(&id, snapshot);
        id
    }

    pub fn snapshot_completed(&mut self, id: &str) {
        if let Some(snapshot) = self.region.snapshots.get_mut(id) {
            snapshot.state = "completed";
            self.world.history.running(id, self.world.now);
        }
    }

    pub fn create_snapshot(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let id = form.required("VolumeId")?;
        let unknown = || not_found(("InvalidVolume.NotFound", "volume"), &[id]);
        let size_gib = self.region.volumes.get(id).ok_or_else(unknown)?.size_gib;
        let tags = tags::specified_for(form, "snapshot")?;
        let snapshot = self.add_snapshot(id, size_gib, form.get("Description").unwrap_or_default(), tags);
        let snapshot_s = self.world.knobs.snapshot_s;
        self.after(snapshot_s, Step::SnapshotCompleted(snapshot.clone()));
        if let Some(snapshot) = self.region.snapshots.get(&snapshot) {
            snapshot.write(xml);
        }
        Ok(())
    }

    pub fn delete_snapshot(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let id = form.required("SnapshotId")?;
        let account = &self.world.options.account;
        let own = self.region.snapshots.get(id).filter(|snapshot| snapshot.owner == *account);
        own.ok_or_else(|| not_found(NOT_FOUND, &[id]))?;
        let uses = |mapping: &crate::region::objects::Mapping| mapping.snapshot.as_deref() == Some(id);
        if let Some(image) = self.region.images.values().find(|image| image.mappings.iter().any(uses)) {
            let text = format!("The snapshot {id} is currently in use by {}", image.id);
            return Err(ApiError::new("InvalidSnapshot.InUse", text));
        }
        self.region.snapshots.remove(id);
        self.deleted("snapshots", id);
        xml.value("return", true);
        Ok(())
    }
}
