//! DescribeInstances, TerminateInstances, GetConsoleOutput.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::api::pages::not_found;
use crate::api::xml::Xml;
use crate::faults::codes;
use crate::region::instance::{Instance, State};
use crate::region::region::Ec2;
use crate::server::form::{Form, missing};
use crate::server::response::{ApiError, ApiResult};

const NOT_FOUND: (&str, &str) = ("InvalidInstanceID.NotFound", "instance ID");

impl Ec2<'_> {
    pub fn describe_instances(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        if form.get("MaxResults").is_some() && form.get("InstanceId.1").is_some() {
            let text = "The parameter instancesSet cannot be used with the parameter maxResults";
            return Err(ApiError::new("InvalidParameterCombination", text));
        }
        check_ids(&form.list("InstanceId"))?;
        let (now, delay) = (self.world.now, Duration::from_secs_f64(self.world.knobs.visibility_delay_s));
        let query = self.query(form, "InstanceId", NOT_FOUND);
        let page = query.page(&self.region.instances, |instance| now >= instance.launched + delay)?;
        xml.open("reservationSet");
        for reservation in page.rows.chunk_by(|one, other| one.reservation == other.reservation) {
            xml.open("item");
            self.write_reservation_of(reservation, xml);
            xml.close("item");
        }
        xml.close("reservationSet").optional("nextToken", page.next.as_deref());
        Ok(())
    }

    /// The instances of one launch.
    pub fn write_reservation(&self, ids: &[String], xml: &mut Xml) {
        let instances: Vec<&Instance> = ids.iter().filter_map(|id| self.region.instances.get(id)).collect();
        self.write_reservation_of(&instances, xml);
    }

    fn write_reservation_of(&self, instances: &[&Instance], xml: &mut Xml) {
        let id = instances.first().map_or("", |instance| &instance.reservation);
        xml.text("reservationId", id).text("ownerId", &self.world.options.account).text("groupSet", "");
        xml.items("instancesSet", instances, |xml, instance| instance.write(xml));
    }

    /// Terminates all of the instances, or none if one is unknown.
    pub fn terminate_instances(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let ids = form.list("InstanceId");
        if ids.is_empty() {
            return Err(missing("InstanceId"));
        }
        check_ids(&ids)?;
        let unknown: Vec<&str> = ids.iter().copied().filter(|id| !self.region.instances.contains(id)).collect();
        if !unknown.is_empty() {
            return Err(not_found(NOT_FOUND, &unknown));
        }
        for id in &ids {
            let instance = self.region.instances.get(id).expect("all ids are known");
            if instance.parameters.get("DisableApiTermination") == Some("true") && instance.is_alive() {
                let text = format!(
                    "The instance '{id}' may not be terminated. Modify its 'disableApiTermination' instance attribute \
                     and try again."
                );
                return Err(ApiError::new("OperationNotPermitted", text));
            }
        }
        let mut changes = Vec::new();
        for id in ids {
            let state = |ec2: &Self| ec2.region.instances.get(id).map_or(State::Terminated, |instance| instance.state);
            let previous = state(self);
            let code = "Client.UserInitiatedShutdown";
            self.shut_down(id, code, &codes::state_reason(code));
            changes.push((id, previous, state(self)));
        }
        xml.items("instancesSet", changes, |xml, (id, previous, current)| {
            xml.text("instanceId", id);
            current.write(xml, "currentState");
            previous.write(xml, "previousState");
        });
        Ok(())
    }

    pub fn console_output(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let id = form.required("InstanceId")?;
        check_ids(&[id])?;
        let instance = self.region.instances.get(id).ok_or_else(|| not_found(NOT_FOUND, &[id]))?;
        let text = match instance.state {
            State::Pending => String::new(),
            _ => format!("simulated console of {id}\nssh-ed25519 host key\nlogin: "),
        };
        xml.text("instanceId", id).text("timestamp", &self.world.timestamp()).text("output", &STANDARD.encode(text));
        Ok(())
    }
}

fn check_ids(ids: &[&str]) -> ApiResult<()> {
    match ids.iter().find(|id| !id.starts_with("i-")) {
        None => Ok(()),
        Some(id) => Err(ApiError::new("InvalidInstanceID.Malformed", format!("Invalid id: \"{id}\""))),
    }
}
