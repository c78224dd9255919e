"""Holds a simulated IBM VPC against IBM's own clients, and checks each answer by their models.

usage: ibm_client.py BASE_URL

Prints one line of JSON per case, and ends with status 1 at the first difference. Without --anonymous, the simulation
has to issue tokens, and to refuse calls without one.
"""

import datetime
import inspect
import json
import re
import sys
import time
import urllib.error
import urllib.request

import ibm_vpc
import ibm_vpc.vpc_v1 as models
from ibm_cloud_sdk_core import ApiException, get_query_param
from ibm_cloud_sdk_core.authenticators import IAMAuthenticator, NoAuthAuthenticator
from ibm_platform_services import ResourceControllerV2, ResourceManagerV2

VERSION, ZONE, REGION = "2025-06-03", "us-south-1", "us-south"
APIKEY = "simulated-api-key"
FOREIGN = 230
PYTHON_TYPES = {"str": str, "bool": bool, "int": int, "float": (int, float), "datetime": datetime.datetime}
# Fields whose models are alternatives, which the client leaves unread.
ALTERNATIVES = {
    ("InstanceProfile", "availability_class"): "InstanceProfileAvailabilityClass",
    ("InstanceProfile", "bandwidth"): "InstanceProfileBandwidth",
    ("InstanceProfile", "cluster_network_attachment_count"): "InstanceProfileClusterNetworkAttachmentCount",
    ("InstanceProfile", "memory"): "InstanceProfileMemory",
    ("InstanceProfile", "network_attachment_count"): "InstanceProfileNetworkAttachmentCount",
    ("InstanceProfile", "network_bandwidth_mode"): "InstanceProfileNetworkBandwidthMode",
    ("InstanceProfile", "network_interface_count"): "InstanceProfileNetworkInterfaceCount",
    ("InstanceProfile", "port_speed"): "InstanceProfilePortSpeed",
    ("InstanceProfile", "total_volume_bandwidth"): "InstanceProfileVolumeBandwidth",
    ("InstanceProfile", "vcpu_burst_limit"): "InstanceProfileVCPUBurstLimit",
    ("InstanceProfile", "vcpu_count"): "InstanceProfileVCPU",
    ("InstanceProfile", "vcpu_manufacturer"): "InstanceProfileVCPUManufacturer",
    ("InstanceProfile", "volume_bandwidth_qos_modes"): "InstanceProfileVolumeBandwidthQoSModes",
    ("FloatingIP", "target"): "FloatingIPTarget",
    ("VPCDNS", "resolver"): "VPCDNSResolver",
}


class Difference(Exception):
    """The simulation answers something that IBM does not document."""


def expect(condition, what):
    if not condition:
        raise Difference(what)


def camel(name):
    return "".join(part.capitalize() for part in name.split("_"))


def check(model, value, path=None):
    """Checks required fields, names of fields, types and enumerations of an answer."""
    cls = getattr(models, model) if isinstance(model, str) else model
    path = path or cls.__name__
    expect(isinstance(value, dict), f"{path} is {value!r}")
    try:
        parsed = cls.from_dict(value)
    except (ValueError, KeyError, TypeError) as error:
        raise Difference(f"{path}: {error}") from error
    check_names(value, parsed.to_dict(), path)
    check_object(parsed, path)
    return value


def check_names(sent, read, path):
    """Checks that the client has read all fields."""
    if isinstance(sent, dict) and isinstance(read, dict):
        unknown = set(sent) - set(read)
        expect(not unknown, f"{path} has the unknown fields {unknown}")
        for name, value in sent.items():
            check_names(value, read[name], f"{path}.{name}")
    elif isinstance(sent, list):
        for index, (one, other) in enumerate(zip(sent, read)):
            check_names(one, other, f"{path}[{index}]")


def check_object(parsed, path):
    cls = type(parsed)
    types = {name: kind for kind, name in re.findall(r":param ([\w\[\], ]+?) (\w+):", inspect.getdoc(cls.__init__))}
    for name, value in vars(parsed).items():
        field = f"{path}.{name}"
        alternative = ALTERNATIVES.get((cls.__name__, name))
        if alternative and value is not None:
            check_alternative(alternative, value, field)
            continue
        kind = types.get(name.rstrip("_"), types.get(name, ""))
        expected = PYTHON_TYPES.get(kind.removeprefix("List[").rstrip("]"))
        enum = getattr(cls, f"{camel(name.rstrip('_'))}Enum", None)
        for item in value if isinstance(value, list) else [value]:
            if item is None:
                continue
            if hasattr(item, "from_dict"):
                check_object(item, field)
            if expected:
                is_wrong_boolean = isinstance(item, bool) and expected is not bool
                expect(isinstance(item, expected) and not is_wrong_boolean, f"{field} is {item!r}, not {kind}")
            if enum:
                allowed = [member.value for member in enum]
                expect(item in allowed, f"{field} is {item!r}, none of {allowed}")
    for kind in ("href", "crn"):
        text = getattr(parsed, kind, None)
        beginning = {"href": "http", "crn": "crn:v1:bluemix:public:"}[kind]
        expect(text is None or text.startswith(beginning), f"{path}.{kind} is {text!r}")


def check_alternative(base, value, path):
    """Checks that the value is one of the models that extend the base."""
    errors = []
    for cls in getattr(models, base).__subclasses__():
        try:
            return check(cls, value, path)
        except Difference as error:
            errors.append(str(error))
    raise Difference(f"{path} is no {base}: {errors}")


def refused(call, status, code):
    """Checks an error: its status, its code, and the form of its body."""
    try:
        call()
    except ApiException as error:
        body = error.http_response.json()
        first = body["errors"][0]
        expect((error.code, first["code"]) == (status, code), f"expected {status} {code}, got {error.code} {body}")
        expect(body["trace"] and first["message"] and first["more_info"].startswith("https://"), f"the body is {body}")
        expect(error.message == first["message"], error.message)
        return error
    raise Difference(f"expected {status} {code}, but the call succeeded")


def sim(base, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base}/sim/{path}", data, method=method)) as answer:
        return json.load(answer)


def pages(function, key, **parameters):
    """All items of a list, read page by page as Nodepool 11 does, and the sizes of the pages."""
    items, sizes, start = [], [], None
    while True:
        page = function(start=start, **parameters).get_result()
        items += page[key]
        sizes.append(len(page[key]))
        if "next" not in page:
            return items, sizes
        start = get_query_param(page["next"]["href"], "start")


class Cases:
    def __init__(self, base, vpc, manager, controller):
        self.base, self.vpc, self.manager, self.controller = base, vpc, manager, controller
        self.ids = {}

    def wait(self, read, *statuses):
        """Waits for a status, and returns the resource with the statuses that it had."""
        seen = []
        for _ in range(400):
            found = read().get_result()
            if not seen or seen[-1] != found["status"]:
                seen.append(found["status"])
            if found["status"] in statuses:
                return found, seen
            time.sleep(0.01)
        raise Difference(f"the statuses are {seen}, none of {statuses}")

    def gone(self, read):
        for _ in range(400):
            try:
                read()
            except ApiException as error:
                expect(error.code == 404, error)
                return
            time.sleep(0.01)
        raise Difference("the resource does not go")

    def groups(self):
        groups = self.manager.list_resource_groups().get_result()["resources"]
        expect([group["name"] for group in groups] == ["Default"] and groups[0]["default"] is True, groups)
        created = self.manager.create_resource_group(name="np_ibm_main").get_result()
        expect(set(created) == {"id", "crn"}, created)
        named = self.manager.list_resource_groups(name="np_ibm_main").get_result()["resources"]
        expect([group["id"] for group in named] == [created["id"]], named)
        try:
            self.manager.create_resource_group(name="np_ibm_main")
            raise Difference("a second group of the name")
        except ApiException as error:
            expect(error.code == 409, error)
        self.ids["group"] = created["id"]

    def storage(self):
        found = self.controller.list_resource_instances(name="nodepool-cos", type="service_instance").get_result()
        expect(found["rows_count"] == 1 and found["next_url"] is None, found)
        expect(found["resources"][0]["crn"].split(":")[4] == "cloud-object-storage", found)
        none = self.controller.list_resource_instances(name="none").get_result()
        expect(none["resources"] == [], none)

    def places(self):
        check("RegionCollection", self.vpc.list_regions().get_result())
        check("Region", self.vpc.get_region(REGION).get_result())
        zones = check("ZoneCollection", self.vpc.list_region_zones(REGION).get_result())
        expect([zone["name"] for zone in zones["zones"]] == [f"{REGION}-{n}" for n in (1, 2, 3)], zones)
        check("Zone", self.vpc.get_region_zone(REGION, ZONE).get_result())
        refused(lambda: self.vpc.get_region("mars"), 404, "not_found")

    def profiles(self):
        profiles = check("InstanceProfileCollection", self.vpc.list_instance_profiles().get_result())["profiles"]
        sizes = {profile["name"]: profile for profile in profiles}
        cx2 = sizes["cx2-2x4"]
        expect((cx2["vcpu_count"]["value"], cx2["memory"]["value"]) == (2, 4), cx2)
        expect("value" not in sizes["sim-range"]["memory"], sizes["sim-range"])
        expect(sizes["sim-dependent"]["vcpu_count"] == {"type": "dependent"}, sizes["sim-dependent"])
        check("InstanceProfile", self.vpc.get_instance_profile("bx2-2x8").get_result())
        refused(lambda: self.vpc.get_instance_profile("zx9-1x1"), 404, "not_found")

    def networks(self):
        vpcs = check("VPCCollection", self.vpc.list_vpcs().get_result())["vpcs"]
        self.ids["vpc"] = next(vpc["id"] for vpc in vpcs if vpc["name"] == "nodepool")
        self.ids["other_vpc"] = next(vpc["id"] for vpc in vpcs if vpc["name"] == "other")
        subnets = check("SubnetCollection", self.vpc.list_subnets().get_result())["subnets"]
        self.ids["subnets"] = {subnet["name"]: subnet["id"] for subnet in subnets}
        found = self.vpc.list_subnets(zone_name=f"{REGION}-2").get_result()["subnets"]
        expect([subnet["name"] for subnet in found] == ["nodepool-2"], found)
        check("SecurityGroupCollection", self.vpc.list_security_groups(vpc_id=self.ids["vpc"]).get_result())
        keys = check("KeyCollection", self.vpc.list_keys().get_result())["keys"]
        self.ids["key"] = next(key["id"] for key in keys if key["name"] == "nodepool")
        check("VPC", self.vpc.get_vpc(self.ids["vpc"]).get_result())
        check("Subnet", self.vpc.get_subnet(self.ids["subnets"]["nodepool-1"]).get_result())

    def images(self):
        systems = check("OperatingSystemCollection", self.vpc.list_operating_systems().get_result())
        expect(any(system["name"] == "debian-12-amd64" for system in systems["operating_systems"]), systems)
        public = check("ImageCollection", self.vpc.list_images(visibility="public").get_result())["images"]
        debian = [image for image in public if image["operating_system"]["name"] == "debian-12-amd64"]
        newest = max(debian, key=lambda image: image["created_at"])
        expect(newest["name"] == "ibm-debian-12-9-minimal-amd64-2" == debian[0]["name"], debian)
        self.ids["image"] = newest["id"]
        refused(lambda: self.vpc.delete_image(newest["id"]), 400, "invalid_action_for_public_image")

    def image_import(self):
        prototype = {
            "name": "npimage0000000001",
            "resource_group": {"id": self.ids["group"]},
            "file": {"href": "cos://us-south/bucket/npimage0000000001.qcow2"},
            "operating_system": {"name": "debian-12-amd64"},
        }
        created = self.vpc.create_image(prototype)
        image = check("Image", created.get_result())
        expect(created.get_status_code() == 201 and image["status"] == "pending", image)
        expect("minimum_provisioned_size" not in image and image["visibility"] == "private", image)
        refused(lambda: self.vpc.create_image(prototype), 400, "validation_unique_failed")
        refused(lambda: self.vpc.delete_image(image["id"]), 409, "invalid_state")
        image, seen = self.wait(lambda: self.vpc.get_image(image["id"]), "available")
        expect(seen == ["pending", "available"], seen)
        check("Image", image)
        expect(image["minimum_provisioned_size"] == 10 and image["file"]["size"] > 0, image)
        mine = self.vpc.list_images(resource_group_id=self.ids["group"]).get_result()["images"]
        expect([one["id"] for one in mine] == [image["id"]], mine)
        renamed = check("Image", self.vpc.update_image(image["id"], {"name": "npimage-renamed"}).get_result())
        expect(renamed["name"] == "npimage-renamed", renamed["name"])
        sim(self.base, "PUT", "knobs", {"image_faults": ["image_data_corrupted times=1"]})
        failed = self.vpc.create_image(dict(prototype, name="npimage0000000002")).get_result()
        failed, _ = self.wait(lambda: self.vpc.get_image(failed["id"]), "available", "failed")
        check("Image", failed)
        expect([reason["code"] for reason in failed["status_reasons"]] == ["image_data_corrupted"], failed)
        for changes, code in (
            ({"name": "Wrong"}, "validation_invalid_name"),
            ({"name": "ibm-mine"}, "validation_invalid_name"),
            ({"file": {"href": "https://host/file"}}, "validation_invalid_ref"),
            ({"operating_system": {"name": "plan-9-amd64"}}, "bad_field"),
            ({"operating_system": {"name": "ibm-restricted-amd64"}}, "operating_system_restricted"),
        ):
            refused(lambda: self.vpc.create_image(dict(prototype, **dict({"name": "x"}, **changes))), 400, code)
        for one in (image, failed):
            deleted = self.vpc.delete_image(one["id"])
            expect(deleted.get_status_code() == 202, deleted.get_status_code())
            self.gone(lambda: self.vpc.get_image(one["id"]))

    def prototype(self, hostname, **changes):
        """The body that Nodepool 11 sends."""
        body = {
            "keys": [{"id": self.ids["key"]}],
            "name": hostname,
            "profile": {"name": "cx2-2x4"},
            "resource_group": {"id": self.ids["group"]},
            "vpc": {"id": self.ids["vpc"]},
            "image": {"id": self.ids["image"]},
            "primary_network_interface": {"name": "eth0", "subnet": {"id": self.ids["subnets"]["nodepool-1"]}},
            "zone": {"name": ZONE},
            "boot_volume_attachment": {
                "volume": {"name": hostname, "profile": {"name": "general-purpose"}},
                "delete_volume_on_instance_delete": True,
            },
            "user_data": "#cloud-config",
        }
        body.update(changes)
        return {field: value for field, value in body.items() if value is not None}

    def create(self):
        created = self.vpc.create_instance(self.prototype("np0000000001"))
        instance = check("Instance", created.get_result())
        expect(created.get_status_code() == 201 and instance["status"] == "pending", instance["status"])
        expect(instance["resource_group"]["name"] == "np_ibm_main", instance["resource_group"])
        refused(lambda: self.vpc.delete_instance(instance["id"]), 409, "instance_delete_conflict")
        instance, seen = self.wait(lambda: self.vpc.get_instance(instance["id"]), "running", "failed")
        expect(seen[-2:] == ["starting", "running"] and set(seen) <= {"pending", "starting", "running"}, seen)
        check("Instance", instance)
        interface = instance["primary_network_interface"]
        expect(interface["primary_ip"]["address"].startswith("127."), interface)
        expect("primary_ipv4_address" not in interface, interface)
        expect((instance["memory"], instance["vcpu"]["count"]) == (4, 2), instance["vcpu"])
        self.ids["one"], self.ids["interface"] = instance["id"], interface["id"]

    def parts(self):
        one, vpc = self.ids["one"], self.vpc
        interfaces = vpc.list_instance_network_interfaces(one).get_result()
        check("NetworkInterfaceUnpaginatedCollection", interfaces)
        check("NetworkInterface", vpc.get_instance_network_interface(one, self.ids["interface"]).get_result())
        volumes = check("VolumeAttachmentCollection", vpc.list_instance_volume_attachments(one).get_result())
        volume = check("Volume", vpc.get_volume(volumes["volume_attachments"][0]["volume"]["id"]).get_result())
        expect(volume["name"] == "np0000000001" and volume["attachment_state"] == "attached", volume)
        refused(lambda: vpc.delete_volume(volume["id"]), 409, "volume_in_use")
        check("VolumeCollection", vpc.list_volumes(name="np0000000001").get_result())
        check("InstanceInitialization", vpc.get_instance_initialization(one).get_result())

    def old_versions(self):
        self.vpc.version = "2022-03-28"
        try:
            instance = self.vpc.get_instance(self.ids["one"]).get_result()
        finally:
            self.vpc.version = VERSION
        interface = instance["primary_network_interface"]
        expect(interface["primary_ipv4_address"].startswith("127.") and "primary_ip" not in interface, interface)

    def invalid(self):
        subnets = self.ids["subnets"]

        def interface(name):
            return {"primary_network_interface": {"subnet": {"id": subnets[name]}}}

        volume = {"volume": {"name": "np0000000001", "profile": {"name": "general-purpose"}}}
        for changes, code in (
            ({"name": "np_1"}, "validation_invalid_name"),
            ({"name": "np0000000001", "boot_volume_attachment": None}, "validation_unique_failed"),
            ({"boot_volume_attachment": volume}, "validation_unique_failed"),
            ({"profile": {"name": "zx9-1x1"}}, "bad_field"),
            ({"image": {"id": "r006-none"}}, "bad_field"),
            ({"keys": [{"id": "r006-none"}]}, "bad_field"),
            ({"resource_group": {"id": "none"}}, "bad_field"),
            ({"zone": {"name": "mars-1"}}, "bad_field"),
            (interface("nodepool-2"), "invalid_zone"),
            (interface("other-1"), "bad_field"),
            ({"primary_network_interface": None}, "validation_required_field"),
            ({"image": None}, "validation_required_field"),
            ({"flavor": "small"}, "invalid_request_field"),
        ):
            refused(lambda: self.vpc.create_instance(self.prototype("np0000000009", **changes)), 400, code)
        refused(lambda: self.vpc.list_instances(limit=101), 400, "bad_query_parameter")
        refused(lambda: self.vpc.list_instances(start="!"), 400, "bad_query_parameter")
        for version, generation, code in (
            ("yesterday", 2, "invalid_version"),
            ("2018-12-31", 2, "invalid_version_range"),
            ("2999-01-01", 2, "invalid_version_range"),
            ("", 2, "missing_version"),
            (VERSION, 1, "invalid_generation_parameter"),
            (VERSION, "", "missing_generation_parameter"),
        ):
            self.vpc.version, self.vpc.generation = version, generation
            try:
                refused(self.vpc.list_vpcs, 400, code)
            finally:
                self.vpc.version, self.vpc.generation = VERSION, 2

    def floating_ip(self):
        prototype = {
            "name": "np0000000001",
            "resource_group": {"id": self.ids["group"]},
            "zone": {"name": ZONE},
        }
        created = check("FloatingIP", self.vpc.create_floating_ip(prototype).get_result())
        expect(created["status"] == "pending" and "target" not in created, created)
        refused(lambda: self.vpc.delete_floating_ip(created["id"]), 409, "invalid_state")
        refused(lambda: self.vpc.create_floating_ip(prototype), 400, "validation_unique_failed")
        found, _ = self.wait(lambda: self.vpc.get_floating_ip(created["id"]), "available")
        expect(found["address"].startswith("127."), found)
        place = (self.ids["one"], self.ids["interface"])
        attached = self.vpc.add_instance_network_interface_floating_ip(*place, created["id"])
        expect(attached.get_status_code() == 201, attached.get_status_code())
        found = check("FloatingIP", self.vpc.get_floating_ip(created["id"]).get_result())
        expect(found["target"]["id"] == self.ids["interface"], found)
        check("NetworkInterface", self.vpc.get_instance_network_interface(*place).get_result())
        of_target = self.vpc.list_floating_ips(target_id=self.ids["interface"]).get_result()
        check("FloatingIPCollection", of_target)
        expect(of_target["total_count"] == 1, of_target)
        target = {"target": {"id": self.ids["interface"]}}
        refused(lambda: self.vpc.create_floating_ip(target), 409, "target_in_use")
        self.vpc.remove_instance_network_interface_floating_ip(*place, created["id"])
        found = self.vpc.update_floating_ip(created["id"], target).get_result()
        expect(check("FloatingIP", found)["target"]["id"] == self.ids["interface"], found)
        self.vpc.delete_floating_ip(created["id"])
        self.gone(lambda: self.vpc.get_floating_ip(created["id"]))

    def attachment(self):
        attachment = {
            "name": "eth0",
            "virtual_network_interface": {"name": "vni", "subnet": {"id": self.ids["subnets"]["nodepool-1"]}},
        }
        body = self.prototype("two", primary_network_interface=None, primary_network_attachment=attachment)
        instance = check("Instance", self.vpc.create_instance(body).get_result())
        attached = instance["primary_network_attachment"]
        expect(attached["id"] == instance["primary_network_interface"]["id"], attached)
        one = self.vpc.get_instance_network_attachment(instance["id"], attached["id"]).get_result()
        check("InstanceNetworkAttachment", one)
        refused(lambda: self.vpc.create_floating_ip({"target": {"id": attached["id"]}}), 400, "bad_field")
        target = {"target": {"id": attached["virtual_network_interface"]["id"]}}
        found = check("FloatingIP", self.vpc.create_floating_ip(target).get_result())
        expect(found["target"]["resource_type"] == "virtual_network_interface", found)
        self.wait(lambda: self.vpc.get_instance(instance["id"]), "running")
        self.vpc.delete_instance(instance["id"])
        self.gone(lambda: self.vpc.get_instance(instance["id"]))
        found = self.vpc.get_floating_ip(found["id"]).get_result()
        expect("target" not in found, found)
        self.vpc.delete_floating_ip(found["id"])

    def actions(self):
        one, vpc = self.ids["one"], self.vpc
        refused(lambda: vpc.create_instance_action(one, "start"), 409, "invalid_state")
        action = check("InstanceAction", vpc.create_instance_action(one, "stop", force=True).get_result())
        expect(action["type"] == "stop" and action["force"] is True, action)
        _, seen = self.wait(lambda: vpc.get_instance(one), "stopped")
        expect(seen[0] == "stopping", seen)
        vpc.create_instance_action(one, "start")
        self.wait(lambda: vpc.get_instance(one), "running")

    def shortage(self):
        knobs = {"launch_faults": ["cannot_start_capacity times=1"], "quotas": {}}
        sim(self.base, "PUT", "knobs", knobs)
        instance = self.vpc.create_instance(self.prototype("three")).get_result()
        instance, _ = self.wait(lambda: self.vpc.get_instance(instance["id"]), "failed", "running")
        check("Instance", instance)
        expect([reason["code"] for reason in instance["status_reasons"]] == ["cannot_start_capacity"], instance)
        self.vpc.delete_instance(instance["id"])
        self.gone(lambda: self.vpc.get_instance(instance["id"]))
        sim(self.base, "PUT", "knobs", {"quotas": {"instances": 1}})
        refused(lambda: self.vpc.create_instance(self.prototype("three")), 403, "over_quota")
        sim(self.base, "PUT", "knobs", {"quotas": {}, "throttle_every": 1})
        error = refused(self.vpc.list_instances, 429, "too_many_requests")
        expect(error.http_response.headers["retry-after"] == "1", error.http_response.headers)
        sim(self.base, "PUT", "knobs", {"throttle_every": 0, "faults": ["503 times=1"]})
        refused(self.vpc.list_instances, 503, "service_unavailable")

    def lists(self):
        sim(self.base, "POST", f"foreign?count={FOREIGN}&group=others")
        instances, sizes = pages(self.vpc.list_instances, "instances", limit=100)
        expect(sizes == [100, 100, FOREIGN + 1 - 200], f"pages of {sizes} instances")
        expect(len({instance["id"] for instance in instances}) == FOREIGN + 1, "an instance is missing or repeated")
        created = [instance["created_at"] for instance in instances]
        expect(created == sorted(created, reverse=True), "the newest instance is not the first one")
        _, sizes = pages(self.vpc.list_instances, "instances")
        expect(sizes == [50] * 4 + [FOREIGN + 1 - 200], f"pages of {sizes} instances")
        page = check("InstanceCollection", self.vpc.list_instances(limit=3).get_result())
        expect(page["total_count"] == FOREIGN + 1 and page["limit"] == 3, page["total_count"])
        pager = ibm_vpc.vpc_v1.InstancesPager(client=self.vpc, limit=100, vpc_id=self.ids["vpc"])
        expect(len(pager.get_all()) == FOREIGN + 1, "the pager misses instances")
        for parameters, count in (
            ({"name": "np0000000001"}, 1),
            ({"name": "none"}, 0),
            ({"resource_group_id": self.ids["group"]}, 1),
            ({"vpc_name": "nodepool"}, FOREIGN + 1),
            ({"vpc_id": self.ids["other_vpc"]}, 0),
        ):
            found = self.vpc.list_instances(**parameters).get_result()
            expect(found["total_count"] == count, f"{parameters}: {found['total_count']}")

    def delete(self):
        deleted = self.vpc.delete_instance(self.ids["one"])
        expect(deleted.get_status_code() == 204, deleted.get_status_code())
        instance = check("Instance", self.vpc.get_instance(self.ids["one"]).get_result())
        expect((instance["status"], instance["lifecycle_state"]) == ("deleting", "deleting"), instance["status"])
        refused(lambda: self.vpc.delete_instance(self.ids["one"]), 409, "instance_delete_conflict")
        self.gone(lambda: self.vpc.get_instance(self.ids["one"]))
        refused(lambda: self.vpc.get_instance(self.ids["one"]), 404, "not_found")
        refused(lambda: self.vpc.delete_instance(self.ids["one"]), 404, "not_found")
        volumes = self.vpc.list_volumes(name="np0000000001").get_result()
        expect(volumes["volumes"] == [], volumes)


CASES = """
    groups storage places profiles networks images image_import create parts old_versions invalid floating_ip attachment
    actions shortage lists delete
""".split()


def clients(base, authenticator):
    vpc = ibm_vpc.VpcV1(version=VERSION, authenticator=authenticator)
    vpc.set_service_url(f"{base}/v1")
    manager = ResourceManagerV2(authenticator=authenticator)
    controller = ResourceControllerV2(authenticator=authenticator)
    for service in (manager, controller):
        service.set_service_url(base)
    return vpc, manager, controller


def check_tokens(base):
    """The client gets tokens for the right API key only, and calls with a revoked one are refused."""
    vpc, manager, _ = clients(base, IAMAuthenticator(APIKEY, url=base))
    vpc.list_vpcs()
    manager.list_resource_groups()
    info = vpc.authenticator.token_manager.token_info
    expect(info["expires_in"] == 3600 and info["expiration"] > time.time() + 3500, info)
    sim(base, "POST", "revoke-tokens")
    refused(vpc.list_vpcs, 401, "not_authorized")
    try:
        clients(base, IAMAuthenticator("wrong", url=base))[0].list_vpcs()
    except ApiException as error:
        body = error.http_response.json()
        expect((error.code, body["errorCode"]) == (400, "BXNIM0415E") and body["context"]["requestId"], body)
    else:
        raise Difference("a wrong API key is accepted")
    known, _, _ = clients(base, IAMAuthenticator(APIKEY, url=base, client_id="bx", client_secret="bx"))
    known.list_vpcs()
    refresh = known.authenticator.token_manager.refresh_token
    form = f"grant_type=refresh_token&refresh_token={refresh}".encode()
    with urllib.request.urlopen(f"{base}/identity/token", form) as answer:
        expect(json.load(answer)["access_token"].count(".") == 2, "the refreshed token")


def needs_tokens(base):
    try:
        with urllib.request.urlopen(f"{base}/v1/regions?version={VERSION}&generation=2"):
            return False
    except urllib.error.HTTPError as error:
        found = json.load(error)["errors"][0]
        expect((error.code, found["code"]) == (401, "not_authorized"), found)
        return True


def run(case, function):
    try:
        function()
    except Exception as error:  # pylint: disable=broad-exception-caught
        print(json.dumps({"case": case, "ok": False, "error": f"{type(error).__name__}: {error}"}))
        sys.exit(1)
    print(json.dumps({"case": case, "ok": True}), flush=True)


def main():
    base = sys.argv[1].rstrip("/")
    sim(base, "POST", "reset")
    knobs = {"boot_s": 0.5, "delete_s": 0.3, "stop_s": 0.2, "fail_s": 0.1, "image_s": 0.2, "image_delete_s": 0.1}
    sim(base, "PUT", "knobs", knobs)
    authenticator = NoAuthAuthenticator()
    if needs_tokens(base):
        run("tokens", lambda: check_tokens(base))
        authenticator = IAMAuthenticator(APIKEY, url=base)
    cases = Cases(base, *clients(base, authenticator))
    for case in CASES:
        run(case, getattr(cases, case))
    sim(base, "POST", "reset")
    print('"ok"')


if __name__ == "__main__":
    main()
