//! DescribeInstanceTypes.

use crate::api::filters::matches;
use crate::api::xml::Xml;
use crate::region::instance_types::{self, INSTANCE_TYPES, InstanceType};
use crate::region::region::Ec2;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    pub fn describe_instance_types(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let names = form.list("InstanceType");
        let unknown: Vec<&str> = names.iter().copied().filter(|name| instance_types::find(name).is_none()).collect();
        if !unknown.is_empty() {
            let text = format!("The following supplied instance types do not exist: [{}]", unknown.join(", "));
            return Err(ApiError::new("InvalidInstanceType", text));
        }
        let filters = form.items("Filter");
        let is_listed = |one: &&InstanceType| {
            let is_matched = |filter: &crate::server::form::Scope<'_>| {
                let value = match filter.get("Name").unwrap_or_default() {
                    "instance-type" => one.name,
                    "processor-info.supported-architecture" => one.architecture,
                    _ => return true,
                };
                filter.list("Value").iter().any(|pattern| matches(pattern.as_bytes(), value.as_bytes()))
            };
            (names.is_empty() || names.contains(&one.name)) && filters.iter().all(is_matched)
        };
        xml.items("instanceTypeSet", INSTANCE_TYPES.iter().filter(is_listed), write);
        Ok(())
    }
}

fn write(xml: &mut Xml, one: &InstanceType) {
    let list = |xml: &mut Xml, name: &str, items: &[&str]| {
        xml.open(name);
        for item in items {
            xml.text("item", item);
        }
        xml.close(name);
    };
    xml.text("instanceType", one.name).value("currentGeneration", true).value("freeTierEligible", false);
    list(xml, "supportedUsageClasses", if one.is_mac() { &["on-demand"] } else { &["on-demand", "spot"] });
    list(xml, "supportedRootDeviceTypes", &["ebs"]);
    list(xml, "supportedVirtualizationTypes", &["hvm"]);
    xml.value("bareMetal", one.name.ends_with(".metal")).text("hypervisor", "nitro");
    xml.open("processorInfo");
    list(xml, "supportedArchitectures", &[one.architecture]);
    xml.close("processorInfo");
    xml.within("vCpuInfo", |xml| {
        xml.value("defaultVCpus", one.vcpus).value("defaultCores", one.cores);
        xml.value("defaultThreadsPerCore", one.vcpus / one.cores)
    });
    xml.within("memoryInfo", |xml| xml.value("sizeInMiB", one.memory_mib));
    xml.value("instanceStorageSupported", false);
    xml.within("ebsInfo", |xml| xml.text("ebsOptimizedSupport", "default").text("encryptionSupport", "supported"));
    xml.within("networkInfo", |xml| xml.value("ipv6Supported", true).text("enaSupport", "required"));
    xml.value("burstablePerformanceSupported", one.name.starts_with('t')).value("dedicatedHostsSupported", true);
}
