"""Microsoft's own Python clients on the simulated Azure: prints `"ok"`, or fails.

    azure_client.py http://127.0.0.1:8903

The simulation must have its default options, except for short times. Its state is reset at the beginning.
"""

import base64
import hashlib
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from azure.core.credentials import AccessToken, AccessTokenInfo
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient
from azure.storage.blob import BlobClient

BASE = sys.argv[1].rstrip("/")
GROUP = "nodepool"
LOCATION = "eastus"
MIB = 1024 * 1024
KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519" + b"k" * 36).decode() + " nodepool"
PLAIN = {"enforce_https": False}


def control(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{BASE}/sim/{path}", data=data, method=method)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


class Credential:
    """Tokens of the simulation's endpoint, version 2."""

    def __init__(self, auth):
        self.auth = auth

    def get_token(self, *scopes, **_):
        form = {
            "grant_type": "client_credentials",
            "client_id": self.auth["clientId"],
            "client_secret": self.auth["clientSecret"],
            "scope": scopes[0],
        }
        url = f"{BASE}/{self.auth['tenantId']}/oauth2/v2.0/token"
        data = urllib.parse.urlencode(form).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data=data)) as response:
            answer = json.load(response)
        return AccessToken(answer["access_token"], int(time.time()) + answer["expires_in"])

    def get_token_info(self, *scopes, **_):
        token = self.get_token(*scopes)
        return AccessTokenInfo(token.token, token.expires_on)


def clients(credential, subscription):
    arguments = {"base_url": BASE, "credential_scopes": ["https://management.azure.com/.default"]}
    arguments.update(polling_interval=0, retry_total=0)
    return (
        ComputeManagementClient(credential, subscription, **arguments),
        NetworkManagementClient(credential, subscription, **arguments),
        ResourceManagementClient(credential, subscription, **arguments),
    )


def ip_configuration(name, version, subnet):
    return {
        "name": f"{name}-config",
        "properties": {
            "privateIPAddressVersion": version,
            "primary": version == "IPv4",
            "subnet": {"id": subnet},
            "publicIPAddressConfiguration": {
                "name": f"{name}-ip",
                "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
                "sku": {"name": "Standard"},
                "tags": {"owner": "ip"},
            },
        },
    }


def machine(name, subnet, **more):
    """The body of a virtual machine."""
    image = {"publisher": "Debian", "offer": "debian-12", "sku": "12-gen2", "version": "latest"}
    configurations = [ip_configuration(f"{name}-v4", "IPv4", subnet), ip_configuration(f"{name}-v6", "IPv6", subnet)]
    properties = {
        "hardwareProfile": {"vmSize": "Standard_D2s_v3"},
        "osProfile": {
            "computerName": name,
            "adminUsername": "zuul",
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [{"path": "/home/zuul/.ssh/authorized_keys", "keyData": KEY}]},
            },
        },
        "storageProfile": {
            "imageReference": image,
            "osDisk": {"createOption": "FromImage", "deleteOption": "Delete", "diskSizeGB": 40},
        },
        "networkProfile": {
            "networkApiVersion": "2022-11-01",
            "networkInterfaceConfigurations": [
                {
                    "name": f"{name}-nic",
                    "tags": {"owner": "nic"},
                    "properties": {"deleteOption": "Delete", "primary": True, "ipConfigurations": configurations},
                }
            ],
        },
    }
    properties.update(more)
    return {"location": LOCATION, "tags": {"nodepool_node_id": "0000000001"}, "properties": properties}


def expect(error_type, code, call, *arguments, **more):
    """A call fails with this code."""
    try:
        result = call(*arguments, **more, **PLAIN)
        if hasattr(result, "result"):
            result.result()
    except error_type as error:
        found = error.error.code if getattr(error, "error", None) else error.message
        assert code in str(found), (code, found)
        return error
    raise AssertionError(f"{code} was expected")


def subnet_of(network):
    subnet = network.subnets.get(GROUP, "network", "default", **PLAIN)
    assert subnet.name == "default" and subnet.provisioning_state == "Succeeded"
    expect(ResourceNotFoundError, "NotFound", network.subnets.get, GROUP, "network", "other")
    return subnet.id


def create_machine(compute, network, subnet):
    control("PUT", "knobs", {"address_s": 0.3, "public_address_s": 0.5})
    poller = compute.virtual_machines.begin_create_or_update(GROUP, "np1", machine("np1", subnet), **PLAIN)
    assert poller.status() == "InProgress", poller.status()
    vm = poller.result()
    assert (vm.name, vm.provisioning_state, vm.tags) == ("np1", "Succeeded", {"nodepool_node_id": "0000000001"})
    assert vm.hardware_profile.vm_size == "Standard_D2s_v3"
    assert vm.os_profile.admin_username == "zuul" and vm.os_profile.admin_password is None
    assert vm.storage_profile.os_disk.disk_size_gb == 40
    while not all(ip.ip_address for ip in network.public_ip_addresses.list(GROUP, **PLAIN)):
        time.sleep(0.05)
    nics = list(network.network_interfaces.list(GROUP, **PLAIN))
    assert [nic.id for nic in nics] == [nic.id for nic in vm.network_profile.network_interfaces]
    assert nics[0].tags == {"owner": "nic"} and nics[0].virtual_machine.id == vm.id
    private = {one.private_ip_address_version: one.private_ip_address for one in nics[0].ip_configurations}
    assert private["IPv4"].startswith("127.") and private["IPv6"].startswith("fd00:"), private
    ips = {ip.id: ip for ip in network.public_ip_addresses.list(GROUP, **PLAIN)}
    for one in nics[0].ip_configurations:
        ip = ips[one.public_ip_address.id]
        assert ip.public_ip_address_version == one.private_ip_address_version
        assert ip.ip_configuration.id == one.id and ip.tags == {"owner": "ip"} and ip.sku.name == "Standard"
    disk = compute.disks.get(GROUP, vm.storage_profile.os_disk.name, **PLAIN)
    assert (disk.managed_by, disk.disk_state, disk.disk_size_gb) == (vm.id, "Attached", 40)
    return vm


def read_machine(compute, vm, subnet):
    seen = compute.virtual_machines.get(GROUP, "np1", expand="instanceView", **PLAIN)
    codes = [status.code for status in seen.instance_view.statuses]
    assert codes == ["ProvisioningState/succeeded", "PowerState/running"], codes
    view = compute.virtual_machines.instance_view(GROUP, "np1", **PLAIN)
    assert view.statuses[1].display_status == "VM running"
    for listed in (compute.virtual_machines.list(GROUP, **PLAIN), compute.virtual_machines.list_all(**PLAIN)):
        assert [one.id for one in listed] == [vm.id]
    again = compute.virtual_machines.begin_create_or_update(GROUP, "np1", machine("np1", subnet), **PLAIN).result()
    assert again.vm_id == vm.vm_id
    other = machine("np1", subnet)
    other["properties"]["osProfile"]["adminUsername"] = "other"
    other["properties"]["osProfile"]["linuxConfiguration"]["ssh"]["publicKeys"][0]["path"] = (
        "/home/other/.ssh/authorized_keys"
    )
    create = compute.virtual_machines.begin_create_or_update
    expect(HttpResponseError, "PropertyChangeNotAllowed", create, GROUP, "np1", other)


def delete_machine(compute, network, vm):
    nic = vm.network_profile.network_interfaces[0].id.split("/")[-1]
    expect(HttpResponseError, "NicInUse", network.network_interfaces.begin_delete, GROUP, nic)
    ip = next(network.public_ip_addresses.list(GROUP, **PLAIN)).name
    delete_ip = network.public_ip_addresses.begin_delete
    expect(HttpResponseError, "PublicIPAddressCannotBeDeleted", delete_ip, GROUP, ip)
    disk = vm.storage_profile.os_disk.name
    expect(HttpResponseError, "OperationNotAllowed", compute.disks.begin_delete, GROUP, disk)
    for style in ("location", "async", "both"):
        control("PUT", "knobs", {"operation_style": style})
        compute.virtual_machines.begin_delete(GROUP, "np1", **PLAIN).result()
        # Except for the first one, deletions find nothing.
    assert not list(compute.virtual_machines.list(GROUP, **PLAIN))
    assert not list(network.network_interfaces.list(GROUP, **PLAIN))
    assert not list(network.public_ip_addresses.list(GROUP, **PLAIN))
    assert not list(compute.disks.list_by_resource_group(GROUP, **PLAIN))


def styles_of_operations(compute, subnet):
    for style in ("location", "async", "both"):
        control("PUT", "knobs", {"operation_style": style, "operation_statuses": ["InProgress", "Updating"]})
        create = compute.virtual_machines.begin_create_or_update(GROUP, style, machine(style, subnet), **PLAIN)
        assert create.result().provisioning_state == "Succeeded"
        compute.virtual_machines.begin_delete(GROUP, style, **PLAIN).result()
    control("PUT", "knobs", {"operation_statuses": ["InProgress"]})


def failures(compute, network, subnet):
    create = compute.virtual_machines.begin_create_or_update
    control("PUT", "knobs", {"faults": ["AllocationFailed in=operation times=1 action=vm.create"]})
    expect(HttpResponseError, "AllocationFailed", create, GROUP, "np2", machine("np2", subnet))
    vm = compute.virtual_machines.get(GROUP, "np2", expand="instanceView", **PLAIN)
    assert vm.provisioning_state == "Failed"
    assert vm.instance_view.statuses[0].code == "ProvisioningState/failed/AllocationFailed"
    expect(HttpResponseError, "NicReservedForAnotherVm", network.network_interfaces.begin_delete, GROUP, "np2-nic")
    compute.virtual_machines.begin_delete(GROUP, "np2", **PLAIN).result()
    control("PUT", "knobs", {"limits": {"standardDSv3Family": 1}})
    error = expect(HttpResponseError, "OperationNotAllowed", create, GROUP, "np3", machine("np3", subnet))
    assert error.status_code == 409 and "exceeding approved standardDSv3Family Cores quota" in error.message
    control("PUT", "knobs", {"quota_in_operation": True})
    expect(HttpResponseError, "OperationNotAllowed", create, GROUP, "np3", machine("np3", subnet))
    compute.virtual_machines.begin_delete(GROUP, "np3", **PLAIN).result()
    control("PUT", "knobs", {"limits": {}, "quota_in_operation": False, "faults": []})
    wrong = machine("np4", subnet)
    wrong["properties"]["storageProfile"]["imageReference"]["offer"] = "debian-1"
    expect(ResourceNotFoundError, "PlatformImageNotFound", create, GROUP, "np4", wrong)
    wrong = machine("np4", subnet, hardwareProfile={"vmSize": "Standard_Q1"})
    expect(HttpResponseError, "InvalidParameter", create, GROUP, "np4", wrong)
    old = {"api_version": "2023-03-01"}
    expect(HttpResponseError, "InvalidRequestContent", create, GROUP, "np4", machine("np4", subnet), **old)
    expect(ResourceNotFoundError, "ResourceGroupNotFound", compute.virtual_machines.get, "other", "np4")
    expect(ResourceNotFoundError, "ResourceNotFound", compute.virtual_machines.get, GROUP, "np4")
    control("POST", "throttle?calls=1&retry_after_s=7")
    error = expect(HttpResponseError, "TooManyRequests", compute.virtual_machines.get, GROUP, "np4")
    assert error.response.headers["Retry-After"] == "7"


def upload(compute):
    """An image of a disk of 21 MiB, of which the first and the last pages are written."""
    size = 21 * MIB + 512
    footer = b"conectix" + bytes(504)
    creation = {"createOption": "Upload", "uploadSizeBytes": size}
    body = {"location": LOCATION, "tags": {"nodepool_upload_id": "1"}, "properties": {"creationData": creation}}
    disk = compute.disks.begin_create_or_update(GROUP, "image1", body, **PLAIN).result()
    assert (disk.disk_state, disk.creation_data.upload_size_bytes) == ("ReadyToUpload", size)
    grant = {"access": "Write", "durationInSeconds": 3600}
    sas = compute.disks.begin_grant_access(GROUP, "image1", grant, **PLAIN).result().access_sas
    pages = BlobClient.from_blob_url(sas)
    data = bytes(range(256)) * (4 * MIB // 256)
    pages.upload_page(data, offset=0, length=len(data))
    pages.upload_page(footer, offset=size - 512, length=512)
    assert pages.get_blob_properties().size == size
    expect_storage(sas.replace("sig=", "sig=0"), footer)
    blob = control("GET", "blob?disk=image1")
    content = hashlib.sha256(data + bytes(17 * MIB) + footer).hexdigest()
    assert (blob["sha256"], blob["written_pages"], blob["writes"]) == (content, 8193, 2), blob
    image = {
        "location": LOCATION,
        "tags": {"nodepool_upload_id": "1"},
        "properties": {
            "hyperVGeneration": "V2",
            "storageProfile": {
                "osDisk": {"osType": "Linux", "osState": "Generalized", "managedDisk": {"id": disk.id}},
                "zoneResilient": True,
            },
        },
    }
    create = compute.images.begin_create_or_update
    expect(HttpResponseError, "OperationNotAllowed", create, GROUP, "image1", image)
    compute.disks.begin_revoke_access(GROUP, "image1", **PLAIN).result()
    expect_storage(sas, footer)
    made = create(GROUP, "image1", image, **PLAIN).result()
    assert (made.provisioning_state, made.tags) == ("Succeeded", {"nodepool_upload_id": "1"})
    compute.disks.begin_delete(GROUP, "image1", **PLAIN).result()
    assert [one.id for one in compute.images.list_by_resource_group(GROUP, **PLAIN)] == [made.id]
    assert control("GET", "blob?image=image1")["sha256"] == content
    return made.id


def expect_storage(sas, page):
    try:
        BlobClient.from_blob_url(sas).upload_page(page, offset=0, length=512)
    except ClientAuthenticationError as error:
        assert error.error_code == "AuthenticationFailed", error
        return
    raise AssertionError("a wrong signature was accepted")


def own_image(compute, subnet, image):
    body = machine("np5", subnet)
    body["properties"]["storageProfile"]["imageReference"] = {"id": image}
    compute.virtual_machines.begin_create_or_update(GROUP, "np5", body, **PLAIN).result()
    compute.virtual_machines.begin_delete(GROUP, "np5", **PLAIN).result()
    for _ in range(2):
        compute.images.begin_delete(GROUP, "image1", **PLAIN).result()
    create = compute.virtual_machines.begin_create_or_update
    expect(ResourceNotFoundError, "ImageNotFound", create, GROUP, "np5", body)


def pages_and_usages(compute, network, resources):
    control("POST", "create?kind=vm&count=7&prefix=other&size=Standard_D4s_v3")
    control("PUT", "knobs", {"page": 3, "foreign_usage": {"cores": 5}})
    assert len(list(compute.virtual_machines.list(GROUP, **PLAIN))) == 7
    usages = {one.name.value: one for one in compute.usage.list(LOCATION, **PLAIN)}
    assert (usages["cores"].current_value, usages["virtualMachines"].current_value) == (33, 7)
    assert usages["standardDSv3Family"].current_value == 28
    assert any(one.name.value == "PublicIPAddresses" for one in network.usages.list(LOCATION, **PLAIN))
    control("PUT", "knobs", {"page": 0, "blocked_skus": ["Standard_D8s_v3@eastus"]})
    skus = {one.name: one for one in compute.resource_skus.list(filter=f"location eq '{LOCATION}'", **PLAIN)}
    capabilities = {one.name: one.value for one in skus["Standard_D8s_v3"].capabilities}
    assert (capabilities["vCPUs"], capabilities["MemoryGB"]) == ("8", "32")
    assert skus["Standard_D8s_v3"].restrictions[0].reason_code == "NotAvailableForSubscription"
    assert not skus["Standard_D2s_v3"].restrictions and skus["Standard_D2s_v3"].locations == [LOCATION]
    assert resources.resource_groups.get(GROUP, **PLAIN).location == LOCATION


def tokens(auth, compute):
    wrong = Credential({**auth, "clientSecret": "wrong"})
    try:
        wrong.get_token("https://management.azure.com/.default")
    except urllib.error.HTTPError as error:
        answer = json.load(error)
        assert (error.code, answer["error"]) == (401, "invalid_client"), answer
    else:
        raise AssertionError("a wrong secret was accepted")
    control("POST", "revoke-tokens")
    expect(ClientAuthenticationError, "ExpiredAuthenticationToken", compute.virtual_machines.get, GROUP, "other0")


def main():
    control("POST", "reset")
    control("PUT", "knobs", {"boot_s": 0.3, "delete_s": 0.2, "operation_s": 0.1, "poll_after_s": 0})
    auth = control("GET", "auth")
    compute, network, resources = clients(Credential(auth), auth["subscriptionId"])
    subnet = subnet_of(network)
    vm = create_machine(compute, network, subnet)
    read_machine(compute, vm, subnet)
    delete_machine(compute, network, vm)
    styles_of_operations(compute, subnet)
    failures(compute, network, subnet)
    image = upload(compute)
    own_image(compute, subnet, image)
    pages_and_usages(compute, network, resources)
    tokens(auth, compute)
    print('"ok"')


main()
