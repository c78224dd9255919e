//! From a method of the API to its execution.

use crate::api::simulation::Simulation;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::places;

impl Simulation {
    pub fn dispatch(&mut self, call: &Call) -> ApiResult<Response> {
        match call.action {
            "" => Err(ApiError::new("notFound", format!("Not Found: {} {}", call.method, call.path))),
            "images.list" => self.world.list_images(call),
            "images.get" => self.world.get_image(call),
            "images.getFromFamily" => self.world.get_image_of_family(call),
            _ => self.dispatch_project(call),
        }
    }

    /// Executes a method of a project that has instances.
    fn dispatch_project(&mut self, call: &Call) -> ApiResult<Response> {
        let is_public = self.world.images.of_project(&call.project).is_some();
        let Some(mut compute) = self.project(&call.project) else {
            return Err(match is_public {
                true => {
                    let text = format!("Required 'compute.{}' permission for 'projects/{}'", call.action, call.project);
                    ApiError::new("forbidden", text)
                }
                false => ApiError::not_found(&format!("projects/{}", call.project)),
            });
        };
        match call.action {
            "projects.get" => Ok(compute.get_project()),
            "regions.list" => compute.list_regions(call),
            "regions.get" => compute.get_region(call),
            "zones.list" => compute.list_zones(call),
            "zones.get" => compute.get_zone(call),
            "instances.aggregatedList" => compute.aggregated_list(call),
            _ => {
                let zone = places::zone(&call.location);
                let zone = zone.ok_or_else(|| ApiError::invalid("zone", &call.location, "Unknown zone."))?;
                match call.action {
                    "instances.list" => compute.list_instances(call, zone),
                    "instances.get" => compute.get_instance(call, zone),
                    "instances.insert" => compute.insert_instance(call, zone),
                    "instances.delete" => compute.delete_instance(call, zone),
                    "instances.getSerialPortOutput" => compute.serial_port(call, zone),
                    "machineTypes.list" => compute.list_machine_types(call, zone),
                    "machineTypes.get" => compute.get_machine_type(call, zone),
                    "diskTypes.get" => compute.get_disk_type(call, zone),
                    "zoneOperations.list" => compute.list_operations(call, zone),
                    "zoneOperations.get" | "zoneOperations.wait" => compute.get_operation(call, zone),
                    other => unreachable!("the method {other} has no implementation"),
                }
            }
        }
    }
}
