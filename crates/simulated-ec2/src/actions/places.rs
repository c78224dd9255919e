//! Zones, subnets and security groups.

use crate::api::filters::matches;
use crate::api::xml::Xml;
use crate::region::region::Ec2;
use crate::region::tags;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    pub fn describe_zones(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let (names, region) = (form.list("ZoneName"), self.region.name.as_str());
        let zones = self.zones();
        if let Some(unknown) = names.iter().find(|name| !zones.iter().any(|zone| zone == *name)) {
            return Err(ApiError::invalid(format!("Invalid availability zone: [{unknown}]")));
        }
        let filters = form.items("Filter");
        let is_listed = |zone: &&String| {
            let is_matched = |filter: &crate::server::form::Scope<'_>| {
                let value = match filter.get("Name").unwrap_or_default() {
                    "zone-name" => zone.as_str(),
                    "region-name" => region,
                    "state" => "available",
                    "opt-in-status" => "opt-in-not-required",
                    _ => "availability-zone",
                };
                filter.list("Value").iter().any(|pattern| matches(pattern.as_bytes(), value.as_bytes()))
            };
            (names.is_empty() || names.contains(&zone.as_str())) && filters.iter().all(is_matched)
        };
        xml.items("availabilityZoneInfo", zones.iter().filter(is_listed), |xml, zone| {
            xml.text("zoneName", zone).text("zoneState", "available").text("regionName", region);
            xml.text("optInStatus", "opt-in-not-required").text("zoneId", &zone_id(zone));
            xml.text("groupName", region).text("networkBorderGroup", region).text("zoneType", "availability-zone");
        });
        Ok(())
    }

    pub fn describe_subnets(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let (account, limit) = (self.world.options.account.as_str(), self.world.knobs.subnet_addresses);
        let query = self.query(form, "SubnetId", ("InvalidSubnetID.NotFound", "subnet ID"));
        let page = query.page(&self.region.subnets, |_| true)?;
        page.write(xml, "subnetSet", |xml, subnet| {
            xml.text("subnetId", &subnet.id).text("state", "available").text("vpcId", &subnet.vpc);
            xml.value("cidrBlock", subnet.addresses.network());
            xml.value("availableIpAddressCount", subnet.free_addresses(limit));
            xml.text("availabilityZone", &subnet.zone).text("availabilityZoneId", &zone_id(&subnet.zone));
            xml.value("defaultForAz", true).value("mapPublicIpOnLaunch", true).text("ownerId", account);
            xml.value("assignIpv6AddressOnCreation", false);
            tags::write(xml, &subnet.tags);
        });
        Ok(())
    }

    pub fn describe_security_groups(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let account = self.world.options.account.as_str();
        let names = form.list("GroupName");
        let query = self.query(form, "GroupId", ("InvalidGroup.NotFound", "security group"));
        let page = query.page(&self.region.groups, |group| names.is_empty() || names.contains(&group.name.as_str()))?;
        page.write(xml, "securityGroupInfo", |xml, group| {
            xml.text("ownerId", account).text("groupId", &group.id).text("groupName", &group.name);
            xml.text("groupDescription", &format!("{} group", group.name)).text("vpcId", &group.vpc);
            xml.text("ipPermissions", "").text("ipPermissionsEgress", "");
            tags::write(xml, &group.tags);
        });
        Ok(())
    }
}

/// `usw2-az1` for `us-west-2a`.
fn zone_id(zone: &str) -> String {
    let (region, letter) = zone.split_at(zone.len() - 1);
    let parts: Vec<&str> = region.split('-').collect();
    let short = |part: &&str| match part.len() {
        0..=2 => (*part).to_owned(),
        _ => part.chars().take(1).collect(),
    };
    let number = letter.bytes().next().map_or(1, |letter| letter - b'a' + 1);
    format!("{}-az{number}", parts.iter().map(short).collect::<String>())
}
