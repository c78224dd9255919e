//! Disks: creation for an upload or empty, access to the upload, deletion.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::operations::Effect;
use crate::cloud::resources::{Access, Disk, Meta, Provisioning, Resource, Upload, key};
use crate::cloud::table::Table;
use crate::cloud::work::gone;
use crate::compute::vm_os_profile::missing;
use crate::compute::vm_parts::tags_of;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;
use crate::storage::blob::{self, FOOTER_SIZE};

/// 32 TiB and a footer.
const MAX_UPLOAD: u64 = (32 << 40) + FOOTER_SIZE;

impl Resource for Disk {
    const KIND: Kind = Kind::Disk;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn table(cloud: &Cloud) -> &Table<Self> {
        &cloud.disks
    }

    fn table_mut(cloud: &mut Cloud) -> &mut Table<Self> {
        &mut cloud.disks
    }

    fn describe(&self, cloud: &Cloud, json: &mut Map<String, Value>) {
        let vm = self.managed_by.as_ref().and_then(|key| cloud.vms.get(key));
        if let Some(vm) = vm {
            json.insert("managedBy".to_owned(), json!(cloud.id_of(vm)));
        }
        json.insert("sku".to_owned(), json!({"name": self.sku, "tier": self.sku.split('_').next()}));
        let mut creation = json!({"createOption": self.create_option});
        if let Some(upload) = &self.upload {
            creation["uploadSizeBytes"] = json!(upload.blob.borrow().size);
        }
        let mut properties = json!({
            "creationData": creation, "diskSizeGB": self.size_bytes.div_ceil(1 << 30),
            "diskSizeBytes": self.size_bytes, "timeCreated": cloud.timestamp(self.meta.created),
            "provisioningState": self.state.name(), "diskState": self.state_name(), "uniqueId": self.meta.guid,
            "networkAccessPolicy": "AllowAll", "publicNetworkAccess": "Enabled",
        });
        if let Some(os_type) = &self.os_type {
            properties["osType"] = json!(os_type);
        }
        json.insert("properties".to_owned(), properties);
    }
}

impl Cloud {
    pub fn put_disk(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let body = call.json.as_ref().expect("the body was checked");
        let tags = tags_of(body)?;
        let location = self.location_of(body)?;
        let disk_key = key(group, name);
        let properties = &body["properties"];
        let option = properties["creationData"]["createOption"].as_str();
        let option = option.ok_or_else(|| missing("creationData.createOption", "createOption"))?;
        if let Some(disk) = self.disks.get_mut(&disk_key) {
            if disk.create_option != option {
                let text = "Changing property 'creationData.createOption' is not allowed.";
                return Err(ApiError::new("PropertyChangeNotAllowed", text));
            }
            disk.meta.tags = tags;
            let disk = self.disks.get(&disk_key).expect("the disk exists");
            return Ok(Response::json(200, &self.resource_json(disk)));
        }
        let (size_bytes, upload) = match option {
            "Upload" => {
                let size = self.upload_size(&properties["creationData"]["uploadSizeBytes"])?;
                let upload = Upload { blob: blob::create(size)?, access: None, has_ended: false };
                (size - FOOTER_SIZE, Some(upload))
            }
            "Empty" => {
                let size = properties["diskSizeGB"].as_u64().ok_or_else(|| missing("diskSizeGB", "diskSizeGB"))?;
                (size << 30, None)
            }
            other => {
                let text = format!("The value '{other}' of parameter 'creationData.createOption' is not simulated.");
                return Err(ApiError::invalid("creationData.createOption", text));
            }
        };
        let meta = self.new_meta(group, name, &location, tags);
        self.created(Kind::Disk, &meta);
        let disk = Disk {
            meta,
            state: Provisioning::Creating,
            create_option: option.to_owned(),
            size_bytes,
            os_type: properties["osType"].as_str().map(str::to_owned),
            sku: body["sku"]["name"].as_str().unwrap_or("Standard_LRS").to_owned(),
            managed_by: None,
            upload,
            is_deleting: false,
        };
        self.disks.insert(disk_key.clone(), disk);
        let operation = self.start_usual_operation(Effect::CreateDisk(disk_key.clone()), &location);
        let disk = self.disks.get(&disk_key).expect("the disk was created");
        Ok(self.with_operation(Response::json(202, &self.resource_json(disk)), call, &operation))
    }

    /// The size of an upload, which is a fixed VHD: a number of MiB and a footer.
    fn upload_size(&self, value: &Value) -> ApiResult<u64> {
        let target = "creationData.uploadSizeBytes";
        let size = value.as_u64().ok_or_else(|| missing(target, "uploadSizeBytes"))?;
        let minimum = self.knobs.upload_minimum.max(2 * FOOTER_SIZE);
        if !(minimum..=MAX_UPLOAD).contains(&size) || !size.is_multiple_of(512) {
            let text = format!(
                "The value {size} of parameter 'uploadSizeBytes' is invalid: it must be a multiple of 512 between \
                 {minimum} and {MAX_UPLOAD}."
            );
            return Err(ApiError::invalid(target, text));
        }
        if self.knobs.check_footer && !(size - FOOTER_SIZE).is_multiple_of(1 << 20) {
            let text = format!(
                "The value {size} of parameter 'uploadSizeBytes' is invalid: without the VHD footer of 512 bytes it \
                 must be a whole number of MiB."
            );
            return Err(ApiError::invalid(target, text));
        }
        Ok(size)
    }

    pub fn begin_access(&mut self, call: &Call, disk_key: &str) -> ApiResult<Response> {
        let null = Value::Null;
        let body = call.json.as_ref().unwrap_or(&null);
        let disk = self.disks.get(disk_key).expect("the disk exists");
        let seconds = body["durationInSeconds"].as_f64().filter(|seconds| *seconds > 0.0 && *seconds < 1e9);
        let seconds = seconds.ok_or_else(|| missing("durationInSeconds", "durationInSeconds"))?;
        let may_write = match body["access"].as_str() {
            Some("Write") => true,
            Some("Read") => false,
            _ => return Err(ApiError::invalid("access", "The value of parameter 'access' must be Read or Write.")),
        };
        let is_ready = disk.state == Provisioning::Succeeded && !disk.is_deleting && disk.managed_by.is_none();
        if !is_ready || may_write && disk.upload.as_ref().is_none_or(|upload| upload.has_ended) {
            let (name, state) = (&disk.meta.name, disk.state_name());
            let text = format!("Access to the disk {name} cannot be granted while its state is {state}.");
            return Err(ApiError::new("OperationNotAllowed", text));
        }
        let location = disk.meta.location.clone();
        let effect = Effect::GrantAccess { disk: disk_key.to_owned(), seconds, may_write };
        let operation = self.start_usual_operation(effect, &location);
        Ok(self.with_operation(Response::empty(202), call, &operation))
    }

    /// Grants access to a disk, and returns its URL.
    pub fn grant_access(&mut self, disk_key: &str, seconds: f64, may_write: bool) -> ApiResult<Value> {
        let (guid, random) = (self.new_guid().replace('-', ""), [self.random(), self.random()]);
        let expires = self.now + Duration::from_secs_f64(seconds);
        let upload = self.disks.get_mut(disk_key).ok_or_else(gone)?.upload.as_mut();
        let Some(upload) = upload else {
            return Ok(json!({"accessSAS": format!("{}/not-simulated", self.base)}));
        };
        let account = format!("md-impexp-{}", &guid[..12]);
        let container = guid[12..].to_owned();
        let signature = random.map(|part| format!("{part:016x}")).concat();
        let version = "sv=2018-03-28&sr=b";
        let url = format!("{}/{account}/{container}/abcd?{version}&si={guid}&sig={signature}", self.base);
        if let Some(old) = &upload.access {
            self.containers.remove(&format!("{}/{}", old.account, old.container));
        }
        self.containers.insert(format!("{account}/{container}"), disk_key.to_owned());
        upload.access = Some(Access { account, container, signature, expires, may_write });
        let other = &self.knobs.page_blob_url;
        Ok(json!({"accessSAS": if other.is_empty() { &url } else { other }}))
    }

    pub fn revoke_access(&mut self, call: &Call, disk_key: &str) -> Response {
        let location = self.disks.get(disk_key).expect("the disk exists").meta.location.clone();
        let operation = self.start_usual_operation(Effect::RevokeAccess(disk_key.to_owned()), &location);
        self.with_operation(Response::empty(202), call, &operation)
    }

    pub fn end_access(&mut self, disk_key: &str) {
        let Some(upload) = self.disks.get_mut(disk_key).and_then(|disk| disk.upload.as_mut()) else { return };
        if let Some(access) = upload.access.take() {
            upload.has_ended |= access.may_write;
            self.containers.remove(&format!("{}/{}", access.account, access.container));
        }
    }

    pub fn delete_disk(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let disk_key = key(group, name);
        let Some(disk) = self.disks.get(&disk_key) else { return Ok(Response::empty(204)) };
        if let Some(vm) = disk.managed_by.as_ref().and_then(|key| self.vms.get(key)) {
            let text = format!("Disk {name} is attached to VM {}.", self.id_of(vm));
            return Err(ApiError { status: 409, ..ApiError::new("OperationNotAllowed", text) });
        }
        let access = disk.upload.as_ref().and_then(|upload| upload.access.as_ref());
        if access.is_some_and(|access| access.expires > self.now) {
            let text =
                format!("There is an active shared access signature outstanding for disk {name}. Call endGetAccess.");
            return Err(ApiError { status: 409, ..ApiError::new("OperationNotAllowed", text) });
        }
        let (location, guid) = (disk.meta.location.clone(), disk.meta.guid.clone());
        self.history.end_asked(Kind::Disk, &guid, self.now);
        self.disks.get_mut(&disk_key).expect("the disk exists").is_deleting = true;
        let operation = self.start_usual_operation(Effect::DeleteDisk(disk_key), &location);
        Ok(self.with_operation(Response::empty(202), call, &operation))
    }

    pub fn remove_disk(&mut self, disk_key: &str) {
        self.end_access(disk_key);
        if let Some(disk) = self.disks.remove(disk_key) {
            self.ended(Kind::Disk, &disk.meta);
        }
    }
}
