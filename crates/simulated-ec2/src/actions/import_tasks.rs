//! ImportSnapshot and ImportImage: tasks that read an image of S3, and end with a snapshot, an AMI or a message.

use simulated_service::knobs::is_nth;

use crate::api::xml::Xml;
use crate::region::objects::{Image, ImportTask, Mapping};
use crate::region::region::Ec2;
use crate::region::tags::{self, Tags};
use crate::region::work::Step;
use crate::server::form::{Form, Scope, missing};
use crate::server::response::{ApiError, ApiResult};

/// Bytes of a GiB.
const GIB: u64 = 1 << 30;
/// Progress at which a task changes its message, in percent, and these messages.
const STEPS: [(u32, &str); 4] =
    [(3, "pending"), (27, "downloading/converting"), (58, "updating"), (93, "preparing snapshot")];

impl Ec2<'_> {
    pub fn import_snapshot(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let container = form.below("DiskContainer.");
        let id = self.start_import("import-snap", form, &container.root(), "import-snapshot-task")?;
        let task = self.region.snapshot_imports.get(&id).expect("the task was just created");
        write_snapshot_task(xml, task);
        Ok(())
    }

    pub fn import_image(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let containers = form.items("DiskContainer");
        let container = containers.first().ok_or_else(|| missing("DiskContainers"))?;
        let id = self.start_import("import-ami", form, container, "import-image-task")?;
        let task = self.region.image_imports.get(&id).expect("the task was just created");
        write_image_task(xml, task);
        Ok(())
    }

    /// Starts a task; returns its id.
    fn start_import(&mut self, prefix: &str, form: &Form, container: &Scope<'_>, kind: &str) -> ApiResult<String> {
        if let Some(ids) = self.repeated(prefix, form)? {
            return Ok(ids[0].clone());
        }
        let text = |name: &str| container.get(name).unwrap_or_default().to_owned();
        let (bucket, key) = (text("UserBucket.S3Bucket"), text("UserBucket.S3Key"));
        let object = self.world.buckets.get(&bucket).and_then(|bucket| bucket.objects.get(&key));
        let Some(object) = object else {
            let text = format!("The given S3 object is not accessible: s3://{bucket}/{key}");
            return Err(ApiError::new("InvalidParameter", text));
        };
        let size_bytes = object.data.len() as u64;
        let format = text("Format").to_uppercase();
        if !["RAW", "VHD", "VHDX", "VMDK", "OVA"].contains(&format.as_str()) {
            return Err(ApiError::invalid(format!("The format '{format}' is not supported.")));
        }
        let is_active = |task: &&ImportTask| task.state == "active";
        let (snapshots, images) = (&self.region.snapshot_imports, &self.region.image_imports);
        let active = snapshots.values().chain(images.values()).filter(is_active).count() as u64;
        let limit = self.world.knobs.import_limit;
        if active >= limit {
            let text = format!("You have reached the limit of {limit} active import tasks");
            return Err(ApiError::new("ResourceCountLimitExceeded", text));
        }
        let tags = tags::specified_for(form, kind)?;
        self.world.imports_started += 1;
        let will_fail = is_nth(self.world.knobs.import_fail_every, self.world.imports_started);
        let id = self.world.new_id(prefix);
        let architecture = form.get("Architecture").unwrap_or("x86_64").to_owned();
        let description = form.get("Description").unwrap_or_default().to_owned();
        self.created("import_tasks", &id, &format!("s3://{bucket}/{key}"), &tags);
        let task = ImportTask {
            id: id.clone(),
            state: "active",
            message: "pending".to_owned(),
            progress: 0,
            description,
            format,
            bucket,
            key,
            size_bytes,
            architecture,
            will_fail,
            snapshot: None,
            image: None,
            tags,
        };
        self.remember(prefix, form, vec![id.clone()]);
        let tasks =
            if prefix == "import-ami" { &mut self.region.image_imports } else { &mut self.region.snapshot_imports };
        tasks.insert(&id, task);
        let import_s = self.world.knobs.import_s;
        for percent in STEPS.iter().map(|(percent, _)| *percent).chain([100]) {
            self.after(import_s * f64::from(percent) / 100.0, Step::ImportProgress(id.clone(), percent));
        }
        Ok(id)
    }

    fn import_task(&mut self, id: &str) -> Option<&mut ImportTask> {
        let region = &mut self.region;
        match id.starts_with("import-ami-") {
            true => region.image_imports.get_mut(id),
            false => region.snapshot_imports.get_mut(id),
        }
    }

    pub fn import_progress(&mut self, id: &str, percent: u32) {
        let fail_message = self.world.knobs.import_fail_message.clone();
        let Some(task) = self.import_task(id).filter(|task| task.state == "active") else { return };
        task.progress = percent;
        if let Some((_, message)) = STEPS.iter().find(|(step, _)| *step == percent) {
            task.message = (*message).to_owned();
            return;
        }
        if task.will_fail {
            (task.state, task.message) = ("deleted", fail_message);
        } else {
            (task.state, task.message) = ("completed", String::new());
            let size_gib = u32::try_from(task.size_bytes.div_ceil(GIB)).unwrap_or(u32::MAX).max(1);
            let architecture = task.architecture.clone();
            self.finish_import(id, size_gib, architecture);
        }
        self.end_import(id);
    }

    /// Creates the snapshot of a task, and the AMI if it imports one. They do not have the task's tags, as in AWS.
    fn finish_import(&mut self, id: &str, size_gib: u32, architecture: String) {
        let description = format!("Created by AWS-VMImport service for {id}");
        let snapshot = self.add_snapshot("vol-ffffffff", size_gib, &description, Tags::new());
        self.snapshot_completed(&snapshot);
        let is_image = id.starts_with("import-ami-");
        let image = is_image.then(|| {
            let root = Mapping {
                device: "/dev/sda1".to_owned(),
                snapshot: Some(snapshot.clone()),
                size_gib: Some(size_gib),
                volume_type: Some("gp2".to_owned()),
                delete_on_termination: Some(true),
                ..Mapping::default()
            };
            let image = Image {
                id: self.world.new_id("ami"),
                name: id.to_owned(),
                description: Some(format!("AWS-VMImport service: Linux - {id}")),
                owner: self.world.options.account.clone(),
                is_public: false,
                architecture,
                root_device: "/dev/sda1".to_owned(),
                mappings: vec![root],
                ena_support: true,
                imds_support: None,
                boot_mode: None,
                created: self.world.timestamp(),
                tags: Tags::new(),
            };
            let id = image.id.clone();
            self.add_image(image);
            id
        });
        if let Some(task) = self.import_task(id) {
            (task.snapshot, task.image) = (Some(snapshot), image);
        }
    }

    fn end_import(&mut self, id: &str) {
        self.deleted("import_tasks", id);
        let kept_s = self.world.knobs.import_kept_s;
        self.after(kept_s, Step::Forget(id.to_owned()));
    }

    pub fn describe_import_snapshot_tasks(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        check_ids(form, "import-snap-", |id| self.region.snapshot_imports.contains(id))?;
        let mut query = self.query(form, "ImportTaskId", ("InvalidConversionTaskId.Malformed", "task ID"));
        query.filters = "Filters";
        let page = query.page(&self.region.snapshot_imports, |_| true)?;
        page.write(xml, "importSnapshotTaskSet", write_snapshot_task);
        Ok(())
    }

    pub fn describe_import_image_tasks(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        check_ids(form, "import-ami-", |id| self.region.image_imports.contains(id))?;
        let mut query = self.query(form, "ImportTaskId", ("InvalidConversionTaskId.Malformed", "task ID"));
        query.filters = "Filters";
        let page = query.page(&self.region.image_imports, |_| true)?;
        page.write(xml, "importImageTaskSet", write_image_task);
        Ok(())
    }

    pub fn cancel_import_task(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let id = form.required("ImportTaskId")?;
        let reason = form.get("CancelReason").unwrap_or("User cancelled").to_owned();
        let task = self.import_task(id).ok_or_else(|| unknown_task(id))?;
        let previous = task.state;
        if previous != "active" {
            let text = format!("The task {id} is in the state {previous}");
            return Err(ApiError::new("IncorrectState", text));
        }
        (task.state, task.message) = ("deleted", reason);
        self.end_import(id);
        xml.text("importTaskId", id).text("previousState", previous).text("state", "deleting");
        Ok(())
    }
}

fn check_ids(form: &Form, prefix: &str, is_known: impl Fn(&str) -> bool) -> ApiResult<()> {
    let ids = form.list("ImportTaskId");
    let unknown = ids.into_iter().find(|id| !id.starts_with(prefix) || !is_known(id));
    unknown.map_or(Ok(()), |id| Err(unknown_task(id)))
}

fn unknown_task(id: &str) -> ApiError {
    let text = format!("The import task ID '{id}' is malformed, or the task does not exist.");
    ApiError::new("InvalidConversionTaskId.Malformed", text)
}

fn write_snapshot_task(xml: &mut Xml, task: &ImportTask) {
    xml.text("importTaskId", &task.id).text("description", &task.description);
    xml.open("snapshotTaskDetail");
    write_detail(xml, task);
    xml.close("snapshotTaskDetail");
    tags::write(xml, &task.tags);
}

fn write_image_task(xml: &mut Xml, task: &ImportTask) {
    xml.text("importTaskId", &task.id).text("description", &task.description);
    xml.text("architecture", &task.architecture).optional("imageId", task.image.as_deref());
    xml.text("licenseType", "BYOL").text("platform", "Linux");
    write_progress(xml, task);
    xml.items("snapshotDetailSet", [()], |xml, ()| {
        xml.text("deviceName", "/dev/sda1");
        write_detail(xml, task);
    });
    tags::write(xml, &task.tags);
}

fn write_progress(xml: &mut Xml, task: &ImportTask) {
    xml.text("status", task.state);
    if !task.message.is_empty() {
        xml.text("statusMessage", &task.message);
    }
    if task.state == "active" {
        xml.value("progress", task.progress);
    }
}

fn write_detail(xml: &mut Xml, task: &ImportTask) {
    xml.value("diskImageSize", format!("{}.0", task.size_bytes)).text("format", &task.format);
    xml.optional("snapshotId", task.snapshot.as_deref());
    write_progress(xml, task);
    xml.within("userBucket", |xml| xml.text("s3Bucket", &task.bucket).text("s3Key", &task.key));
}
