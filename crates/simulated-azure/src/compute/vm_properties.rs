//! The properties that the body of a virtual machine may have. Azure refuses others.

use serde_json::Value;

use crate::server::response::{ApiError, ApiResult};
use crate::server::versions::NESTED_TAGS;

/// Path of an object within the body, its type, and the properties that it may have. `*` stands for items of a list.
const OBJECTS: &[(&str, &str, &str)] = &[
    (
        "",
        "VirtualMachine",
        "id name type tags location properties plan resources identity zones extendedLocation placement etag",
    ),
    (
        "properties",
        "VirtualMachineProperties",
        "hardwareProfile scheduledEventsPolicy storageProfile additionalCapabilities osProfile networkProfile \
         securityProfile diagnosticsProfile availabilitySet virtualMachineScaleSet proximityPlacementGroup priority \
         evictionPolicy billingProfile host hostGroup licenseType extensionsTimeBudget platformFaultDomain \
         scheduledEventsProfile userData capacityReservation applicationProfile provisioningState vmId timeCreated \
         instanceView",
    ),
    ("properties/hardwareProfile", "HardwareProfile", "vmSize vmSizeProperties"),
    (
        "properties/osProfile",
        "OSProfile",
        "computerName adminUsername adminPassword customData windowsConfiguration linuxConfiguration secrets \
         allowExtensionOperations requireGuestProvisionSignal",
    ),
    (
        "properties/osProfile/linuxConfiguration",
        "LinuxConfiguration",
        "disablePasswordAuthentication ssh provisionVMAgent patchSettings enableVMAgentPlatformUpdates",
    ),
    ("properties/osProfile/linuxConfiguration/ssh", "SshConfiguration", "publicKeys"),
    ("properties/osProfile/linuxConfiguration/ssh/publicKeys/*", "SshPublicKey", "path keyData"),
    ("properties/storageProfile", "StorageProfile", "imageReference osDisk dataDisks diskControllerType"),
    (
        "properties/storageProfile/imageReference",
        "ImageReference",
        "id publisher offer sku version exactVersion sharedGalleryImageId communityGalleryImageId",
    ),
    (
        "properties/storageProfile/osDisk",
        "OSDisk",
        "osType encryptionSettings name vhd image caching writeAcceleratorEnabled diffDiskSettings createOption \
         diskSizeGB managedDisk deleteOption",
    ),
    (
        "properties/networkProfile",
        "NetworkProfile",
        "networkInterfaces networkApiVersion networkInterfaceConfigurations",
    ),
    (
        "properties/networkProfile/networkInterfaceConfigurations/*",
        "VirtualMachineNetworkInterfaceConfiguration",
        "name properties",
    ),
    (
        "properties/networkProfile/networkInterfaceConfigurations/*/properties",
        "VirtualMachineNetworkInterfaceConfigurationProperties",
        "primary deleteOption enableAcceleratedNetworking disableTcpStateTracking enableFpga enableIPForwarding \
         networkSecurityGroup dnsSettings ipConfigurations dscpConfiguration auxiliaryMode auxiliarySku",
    ),
    (
        "properties/networkProfile/networkInterfaceConfigurations/*/properties/ipConfigurations/*",
        "VirtualMachineNetworkInterfaceIPConfiguration",
        "name properties",
    ),
    (
        "properties/networkProfile/networkInterfaceConfigurations/*/properties/ipConfigurations/*/properties",
        "VirtualMachineNetworkInterfaceIPConfigurationProperties",
        "subnet primary publicIPAddressConfiguration privateIPAddressVersion applicationSecurityGroups \
         applicationGatewayBackendAddressPools loadBalancerBackendAddressPools",
    ),
    (
        "properties/networkProfile/networkInterfaceConfigurations/*/properties/ipConfigurations/*/properties/\
         publicIPAddressConfiguration",
        "VirtualMachinePublicIPAddressConfiguration",
        "name properties sku",
    ),
    (
        "properties/networkProfile/networkInterfaceConfigurations/*/properties/ipConfigurations/*/properties/\
         publicIPAddressConfiguration/properties",
        "VirtualMachinePublicIPAddressConfigurationProperties",
        "idleTimeoutInMinutes deleteOption dnsSettings ipTags publicIPPrefix publicIPAddressVersion \
         publicIPAllocationMethod",
    ),
];

/// Types that have tags from a version on.
const TYPES_WITH_TAGS: [&str; 2] =
    ["VirtualMachineNetworkInterfaceConfiguration", "VirtualMachinePublicIPAddressConfiguration"];

/// Refuses a body with a property that its version does not have.
pub fn check_properties(body: &Value, version: &str) -> ApiResult<()> {
    for (path, type_name, allowed) in OBJECTS {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        check_object(body, &parts, "", &|property| {
            let is_tag = property == "tags" && TYPES_WITH_TAGS.contains(type_name) && version >= NESTED_TAGS;
            is_tag || allowed.split(' ').any(|one| one.eq_ignore_ascii_case(property))
        })
        .map_err(|path| {
            let property = path.rsplit('.').next().unwrap_or_default();
            let text = format!(
                "The request content was invalid and could not be deserialized: 'Could not find member '{property}' on \
                 object of type '{type_name}'. Path '{path}', line 1, position 1.'."
            );
            ApiError { target: Some(path.clone()), ..ApiError::new("InvalidRequestContent", text) }
        })?;
    }
    Ok(())
}

/// Checks the objects at a path. The error is the path of the first property that is not allowed.
fn check_object(value: &Value, parts: &[&str], at: &str, is_allowed: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let dotted = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    match (parts, value) {
        ([], Value::Object(object)) => match object.keys().find(|name| !is_allowed(name)) {
            Some(name) => Err(dotted(name)),
            None => Ok(()),
        },
        (["*", rest @ ..], Value::Array(items)) => {
            let mut indexed = items.iter().enumerate();
            indexed.try_for_each(|(index, item)| check_object(item, rest, &format!("{at}[{index}]"), is_allowed))
        }
        ([name, rest @ ..], Value::Object(object)) => match object.get(*name) {
            Some(inner) => check_object(inner, rest, &dotted(name), is_allowed),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}
