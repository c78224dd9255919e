//! From an action of EC2 to its execution.

use crate::api::pages::Query;
use crate::api::xml::Xml;
use crate::region::region::Ec2;
use crate::server::call::Call;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult, Response};

impl Ec2<'_> {
    pub fn execute(&mut self, call: &Call) -> ApiResult<Response> {
        let action = call.action.as_str();
        let version = call.form.get("Version").unwrap_or_default();
        if version != "2016-11-15" {
            let text = format!("The version {version} is not supported: use 2016-11-15");
            return Err(ApiError::new("InvalidParameterValue", text));
        }
        if call.form.get("DryRun") == Some("true") {
            let text = "Request would have succeeded, but DryRun flag is set.";
            return Err(ApiError::new("DryRunOperation", text));
        }
        let mut xml = Xml::document();
        let element = format!("{action}Response");
        xml.open_with(&element, "xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"");
        xml.text("requestId", &self.world.request_id());
        let is_known = self.describe(action, &call.form, &mut xml)? || self.change(action, &call.form, &mut xml)?;
        if !is_known {
            let text = format!("The action {action} is not valid for this web service.");
            return Err(ApiError::new("InvalidAction", text));
        }
        xml.close(&element);
        Ok(Response::xml(xml.finish()))
    }

    /// Executes actions that only read. `false` means that the action is none of them.
    fn describe(&mut self, action: &str, form: &Form, xml: &mut Xml) -> ApiResult<bool> {
        match action {
            "DescribeInstances" => self.describe_instances(form, xml)?,
            "DescribeVolumes" => self.describe_volumes(form, xml)?,
            "DescribeImages" => self.describe_images(form, xml)?,
            "DescribeSnapshots" => self.describe_snapshots(form, xml)?,
            "DescribeHosts" => self.describe_hosts(form, xml)?,
            "DescribeInstanceTypes" => self.describe_instance_types(form, xml)?,
            "DescribeLaunchTemplates" => self.describe_launch_templates(form, xml)?,
            "DescribeImportSnapshotTasks" => self.describe_import_snapshot_tasks(form, xml)?,
            "DescribeImportImageTasks" => self.describe_import_image_tasks(form, xml)?,
            "DescribeAvailabilityZones" => self.describe_zones(form, xml)?,
            "DescribeSubnets" => self.describe_subnets(form, xml)?,
            "DescribeSecurityGroups" => self.describe_security_groups(form, xml)?,
            "DescribeKeyPairs" => self.describe_key_pairs(form, xml)?,
            "GetConsoleOutput" => self.console_output(form, xml)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Executes actions that change something. `false` means that the action is none of them.
    fn change(&mut self, action: &str, form: &Form, xml: &mut Xml) -> ApiResult<bool> {
        match action {
            "RunInstances" => self.run_instances(form, xml)?,
            "TerminateInstances" => self.terminate_instances(form, xml)?,
            "CreateVolume" => self.create_volume(form, xml)?,
            "DeleteVolume" => self.delete_volume(form, xml)?,
            "CreateSnapshot" => self.create_snapshot(form, xml)?,
            "DeleteSnapshot" => self.delete_snapshot(form, xml)?,
            "RegisterImage" => self.register_image(form, xml)?,
            "DeregisterImage" => self.deregister_image(form, xml)?,
            "CreateTags" => self.create_tags(form, xml)?,
            "DeleteTags" => self.delete_tags(form, xml)?,
            "AllocateHosts" => self.allocate_hosts(form, xml)?,
            "ReleaseHosts" => self.release_hosts(form, xml)?,
            "CreateLaunchTemplate" => self.create_launch_template(form, xml)?,
            "DeleteLaunchTemplate" => self.delete_launch_template(form, xml)?,
            "CreateFleet" => self.create_fleet(form, xml)?,
            "ImportSnapshot" => self.import_snapshot(form, xml)?,
            "ImportImage" => self.import_image(form, xml)?,
            "CancelImportTask" => self.cancel_import_task(form, xml)?,
            "CreateKeyPair" => self.create_key_pair(form, xml)?,
            "ImportKeyPair" => self.import_key_pair(form, xml)?,
            "DeleteKeyPair" => self.delete_key_pair(form, xml)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The list that a Describe call requests.
    pub fn query<'f>(&self, form: &'f Form, ids: &'f str, not_found: (&'f str, &'f str)) -> Query<'f> {
        let page_limit = self.world.knobs.page_limit;
        Query { form, ids, filters: "Filter", not_found, sizes: 5..=1000, page_limit }
    }
}
