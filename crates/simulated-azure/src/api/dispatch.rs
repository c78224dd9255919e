//! The checks that all calls to the Resource Manager pass, and the function of each target.

use serde_json::{Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{Disk, Image, Nic, PublicIp, Resource, Vm, key};
use crate::compute::vm_parts::tags_of;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::{Kind, Target};

impl Cloud {
    pub fn dispatch(&mut self, call: &Call) -> ApiResult<Response> {
        match &call.target {
            Target::Token { tenant, version } => return self.token(call, tenant, *version),
            Target::Pages { account, container } => return self.pages(call, account, container),
            Target::Unknown if call.subscription.is_none() => {
                return Err(ApiError::new("NotFound", "The requested resource does not exist."));
            }
            _ => {}
        }
        self.authenticate(call)?;
        self.check_scope(call)?;
        let is_get = call.method == "GET";
        match &call.target {
            Target::Groups if is_get => Ok(self.list_groups()),
            Target::Group { group } if is_get => Ok(Response::json(200, &self.group_json(group))),
            Target::List { kind, group } if is_get => self.list(call, *kind, group.as_deref()),
            Target::Item { kind, group, name, action } => self.on_item(call, *kind, group, name, action.as_deref()),
            Target::Subnet { group, network, subnet } if is_get => self.subnet(group, network, subnet),
            Target::Subnets { group, network } if is_get => self.list_subnets(group, network),
            Target::Usages { provider, location } if is_get => self.usages(*provider, location),
            Target::Skus if is_get => self.skus(call),
            Target::Operation { id } if is_get => self.operation_response(call, id),
            _ => Err(not_simulated(call)),
        }
    }

    /// Checks subscription, version, resource group and body.
    fn check_scope(&self, call: &Call) -> ApiResult<()> {
        let subscription = call.subscription.as_deref().unwrap_or_default();
        if !subscription.eq_ignore_ascii_case(&self.options.subscription) {
            let text = format!("The subscription '{subscription}' could not be found.");
            return Err(ApiError::new("SubscriptionNotFound", text));
        }
        if call.target == Target::Unknown {
            return Err(not_simulated(call));
        }
        call.target.check_version(call.parameter("api-version"), &self.options.locations[0])?;
        if let Some(group) = call.target.group()
            && self.options.group(group).is_none()
        {
            let text = format!("Resource group '{group}' could not be found.");
            return Err(ApiError::new("ResourceGroupNotFound", text));
        }
        let needs_body = matches!(call.method.as_str(), "PUT" | "PATCH");
        let has_body = matches!(call.json, Some(Value::Object(_)));
        if !has_body && (needs_body || !call.body.is_empty()) {
            let text = "The request content was invalid and could not be deserialized: 'Unexpected character \
                        encountered while parsing value.'.";
            return Err(ApiError::new("InvalidRequestContent", text));
        }
        Ok(())
    }

    fn on_item(
        &mut self,
        call: &Call,
        kind: Kind,
        group: &str,
        name: &str,
        action: Option<&str>,
    ) -> ApiResult<Response> {
        let group = self.options.group(group).expect("the group was checked").to_owned();
        let group = group.as_str();
        match (call.method.as_str(), kind, action) {
            ("GET", _, None) => self.get(call, kind, group, name),
            ("GET", Kind::Vm, Some("instanceView")) => self.instance_view(group, name),
            ("PATCH", _, None) => self.update_tags(call, kind, group, name),
            ("PUT", Kind::Vm, None) => self.put_vm(call, group, name),
            ("PUT", Kind::Disk, None) => self.put_disk(call, group, name),
            ("PUT", Kind::Image, None) => self.put_image(call, group, name),
            ("DELETE", Kind::Vm, None) => self.delete_vm(call, group, name),
            ("DELETE", Kind::Nic, None) => self.delete_nic(call, group, name),
            ("DELETE", Kind::Ip, None) => self.delete_ip(call, group, name),
            ("DELETE", Kind::Disk, None) => self.delete_disk(call, group, name),
            ("DELETE", Kind::Image, None) => Ok(self.delete_image(call, group, name)),
            ("POST", Kind::Disk, Some(action)) => {
                let disk_key = key(group, name);
                self.disks.get(&disk_key).ok_or_else(|| not_found(kind, group, name))?;
                match action.to_ascii_lowercase().as_str() {
                    "begingetaccess" => self.begin_access(call, &disk_key),
                    "endgetaccess" => Ok(self.revoke_access(call, &disk_key)),
                    _ => Err(not_simulated(call)),
                }
            }
            _ => Err(not_simulated(call)),
        }
    }

    fn get(&self, call: &Call, kind: Kind, group: &str, name: &str) -> ApiResult<Response> {
        let json = match kind {
            Kind::Vm => self.found::<Vm>(group, name).map(|vm| {
                let mut json = self.resource_json(vm);
                let expand = call.parameter("$expand").unwrap_or_default();
                if expand.to_ascii_lowercase().contains("instanceview") {
                    json["properties"]["instanceView"] = vm.instance_view(self);
                }
                json
            }),
            Kind::Nic => self.found::<Nic>(group, name).map(|one| self.resource_json(one)),
            Kind::Ip => self.found::<PublicIp>(group, name).map(|one| self.resource_json(one)),
            Kind::Disk => self.found::<Disk>(group, name).map(|one| self.resource_json(one)),
            Kind::Image => self.found::<Image>(group, name).map(|one| self.resource_json(one)),
        };
        Ok(Response::json(200, &json?))
    }

    fn instance_view(&self, group: &str, name: &str) -> ApiResult<Response> {
        Ok(Response::json(200, &self.found::<Vm>(group, name)?.instance_view(self)))
    }

    fn found<R: Resource>(&self, group: &str, name: &str) -> ApiResult<&R> {
        R::table(self).get(&key(group, name)).ok_or_else(|| not_found(R::KIND, group, name))
    }

    /// PATCH: only tags can be changed.
    fn update_tags(&mut self, call: &Call, kind: Kind, group: &str, name: &str) -> ApiResult<Response> {
        match kind {
            Kind::Vm => self.set_tags::<Vm>(call, group, name),
            Kind::Nic => self.set_tags::<Nic>(call, group, name),
            Kind::Ip => self.set_tags::<PublicIp>(call, group, name),
            Kind::Disk => self.set_tags::<Disk>(call, group, name),
            Kind::Image => self.set_tags::<Image>(call, group, name),
        }
    }

    fn set_tags<R: Resource>(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let tags = tags_of(call.json.as_ref().expect("the body was checked"))?;
        let one = R::table_mut(self).get_mut(&key(group, name)).ok_or_else(|| not_found(R::KIND, group, name))?;
        one.meta_mut().tags = tags;
        let one = self.found::<R>(group, name)?;
        Ok(Response::json(200, &self.resource_json(one)))
    }

    fn group_json(&self, group: &str) -> Value {
        let name = self.options.group(group).expect("the group was checked");
        json!({
            "id": format!("/subscriptions/{}/resourceGroups/{name}", self.options.subscription), "name": name,
            "type": "Microsoft.Resources/resourceGroups", "location": self.options.locations[0], "tags": {},
            "properties": {"provisioningState": "Succeeded"},
        })
    }

    fn list_groups(&self) -> Response {
        let all: Vec<Value> = self.options.resource_groups.iter().map(|group| self.group_json(group)).collect();
        Response::json(200, &json!({"value": all}))
    }
}

fn not_found(kind: Kind, group: &str, name: &str) -> ApiError {
    let text = format!(
        "The Resource '{}/{name}' under resource group '{group}' was not found. For more details please go to \
         https://aka.ms/ARMResourceNotFoundFix",
        kind.type_name()
    );
    ApiError::new("ResourceNotFound", text)
}

fn not_simulated(call: &Call) -> ApiError {
    let text = format!("The simulation does not support {} {}.", call.method, call.path);
    ApiError { status: 404, ..ApiError::new("InvalidResourceType", text) }
}
