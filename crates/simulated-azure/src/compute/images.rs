//! Images: creation from an uploaded disk, deletion.

use serde_json::{Map, Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::operations::Effect;
use crate::cloud::resources::{Image, Meta, Provisioning, Resource, key, key_of_id};
use crate::cloud::table::Table;
use crate::cloud::work::gone;
use crate::compute::vm_os_profile::missing;
use crate::compute::vm_parts::tags_of;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;
use crate::storage::blob::SharedBlob;

impl Resource for Image {
    const KIND: Kind = Kind::Image;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn table(cloud: &Cloud) -> &Table<Self> {
        &cloud.images
    }

    fn table_mut(cloud: &mut Cloud) -> &mut Table<Self> {
        &mut cloud.images
    }

    fn describe(&self, _: &Cloud, json: &mut Map<String, Value>) {
        let mut properties = self.properties.clone();
        properties["provisioningState"] = json!(self.state.name());
        properties["storageProfile"]["osDisk"]["diskSizeGB"] = json!(self.size_gb);
        json.insert("properties".to_owned(), properties);
    }
}

impl Cloud {
    pub fn put_image(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let body = call.json.as_ref().expect("the body was checked");
        let tags = tags_of(body)?;
        let location = self.location_of(body)?;
        let image_key = key(group, name);
        let properties = &body["properties"];
        if let Some(image) = self.images.get_mut(&image_key) {
            if image.properties["storageProfile"]["osDisk"]["managedDisk"]
                != properties["storageProfile"]["osDisk"]["managedDisk"]
            {
                let text = "Changing property 'storageProfile' is not allowed.";
                return Err(ApiError::new("PropertyChangeNotAllowed", text));
            }
            image.meta.tags = tags;
            let image = self.images.get(&image_key).expect("the image exists");
            return Ok(Response::json(200, &self.resource_json(image)));
        }
        let os_disk = &properties["storageProfile"]["osDisk"];
        let os_type = os_disk["osType"].as_str().filter(|os_type| matches!(*os_type, "Linux" | "Windows"));
        let os_type = os_type.ok_or_else(|| missing("osDisk.osType", "osType"))?.to_owned();
        if !matches!(os_disk["osState"].as_str(), Some("Generalized" | "Specialized")) {
            return Err(missing("osDisk.osState", "osState"));
        }
        let (size_gb, blob) = self.source_of_image(os_disk, &location)?;
        let meta = self.new_meta(group, name, &location, tags);
        self.created(Kind::Image, &meta);
        let properties = properties.clone();
        let state = Provisioning::Creating;
        let image = Image { meta, state, properties, os_type, size_gb, blob, is_deleting: false };
        self.images.insert(image_key.clone(), image);
        let operation = self.start_usual_operation(Effect::CreateImage(image_key.clone()), &location);
        let image = self.images.get(&image_key).expect("the image was created");
        Ok(self.with_operation(Response::json(201, &self.resource_json(image)), call, &operation))
    }

    /// Size and content of the disk that an image is made of.
    fn source_of_image(&self, os_disk: &Value, location: &str) -> ApiResult<(u64, Option<SharedBlob>)> {
        let id =
            os_disk["managedDisk"]["id"].as_str().ok_or_else(|| missing("osDisk.managedDisk", "managedDisk.id"))?;
        let disk = key_of_id(id, Kind::Disk).and_then(|key| self.disks.get(&key));
        let disk = disk.ok_or_else(|| {
            let text = format!("The entity '{id}' was not found.");
            ApiError { target: Some("osDisk.managedDisk".to_owned()), ..ApiError::new("NotFound", text) }
        })?;
        if disk.meta.location != location {
            let text = format!("Disk {id} is not in the location '{location}' of the image.");
            return Err(ApiError::invalid("osDisk.managedDisk", text));
        }
        let is_usable = disk.state == Provisioning::Succeeded && !disk.is_deleting;
        if !is_usable || disk.state_name() != "Unattached" {
            let state = disk.state_name();
            let text = format!("Cannot create an image from disk {id} because its state is {state}, not Unattached.");
            return Err(ApiError { status: 409, ..ApiError::new("OperationNotAllowed", text) });
        }
        Ok((disk.size_bytes.div_ceil(1 << 30), disk.upload.as_ref().map(|upload| upload.blob.clone())))
    }

    /// Ends a creation. The content must be a VHD, unless the knob `check_footer` is false.
    pub fn finish_image_creation(&mut self, image_key: &str) -> ApiResult<Value> {
        let now = self.now;
        let image = self.images.get_mut(image_key).ok_or_else(gone)?;
        let has_footer = image.blob.as_ref().is_none_or(|blob| blob.borrow().has_footer());
        if self.knobs.check_footer && !has_footer {
            image.state = Provisioning::Failed;
            let text = "The specified cookie value in VHD footer indicates that the disk is not a supported VHD. Disk \
                        is expected to have cookie value 'conectix'.";
            let error = ApiError::new("InvalidVhd", text);
            self.history.failed(Kind::Image, &image.meta.guid, &error.code);
            return Err(error);
        }
        image.state = Provisioning::Succeeded;
        self.history.ready(Kind::Image, &image.meta.guid, now);
        Ok(Value::Null)
    }

    pub fn fail_image(&mut self, image_key: &str, error: &ApiError) {
        if let Some(image) = self.images.get_mut(image_key) {
            (image.state, image.is_deleting) = (Provisioning::Failed, false);
            self.history.failed(Kind::Image, &image.meta.guid, &error.code);
        }
    }

    pub fn delete_image(&mut self, call: &Call, group: &str, name: &str) -> Response {
        let image_key = key(group, name);
        let Some(image) = self.images.get_mut(&image_key) else { return Response::empty(204) };
        image.is_deleting = true;
        let (location, guid) = (image.meta.location.clone(), image.meta.guid.clone());
        self.history.end_asked(Kind::Image, &guid, self.now);
        let operation = self.start_usual_operation(Effect::DeleteImage(image_key), &location);
        self.with_operation(Response::empty(202), call, &operation)
    }

    pub fn remove_image(&mut self, image_key: &str) {
        if let Some(image) = self.images.remove(image_key) {
            self.ended(Kind::Image, &image.meta);
        }
    }
}
