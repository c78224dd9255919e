"""Instances, fleets and hosts of EC2 as a node manager needs them, where moto 5.2.5 lacks something."""

import copy
import itertools

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.ec2 import utils
from moto.ec2.exceptions import (
    EC2ClientError, InvalidInstanceIdError, InvalidInstanceTypeError, InvalidSecurityGroupNotFoundError,
)
from moto.ec2.models import EC2Backend, elastic_network_interfaces, vpcs
from moto.ec2.models.instances import InstanceState, StateReason
from moto.ec2.responses import EC2Response, instances
from moto.ec2.utils import parse_user_data
from moto.moto_api._internal import mock_random
from werkzeug.exceptions import HTTPException

from aws_knobs import KNOBS
from aws_tokens import idempotent, mismatch

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
DEFAULT_VOLUME_GB = 8
PAGED = {
    "describe_hosts": "Hosts", "describe_images": "Images", "describe_launch_templates": "LaunchTemplates",
    "describe_snapshots": "Snapshots", "describe_volumes": "Volumes", "describe_instance_types": "InstanceTypes",
}
public_addresses = itertools.count(1)


def check_reservation(reservation):
    """Refuses the token of a terminated instance."""
    if any(instance.state == "terminated" for instance in reservation.instances):
        text = "The client token was used by a request whose instance has been terminated"
        raise EC2ClientError("IdempotentInstanceTerminated", text)


def public_address():
    """An address that is reachable only on this machine."""
    number = next(public_addresses)
    return f"127.78.{number // 250 % 250}.{number % 250 + 1}"


def ipv6_network():
    """A network that is routed nowhere: IPv6 has one loopback address only."""
    digits = mock_random.get_random_hex(10)
    return f"fd77:{digits[:4]}:{digits[4:8]}:{digits[8:]}00::/56"


# --- block devices ----------------------------------------------------------------------------------------------------


def mappings(backend, image_id, requested):
    """The block devices of an image, changed and extended by those of a request."""
    image = backend.amis.get(image_id)
    devices = {}
    for mapping in [*copy.deepcopy(getattr(image, "mappings", [])), *requested]:
        name, ebs = mapping["DeviceName"], mapping.get("Ebs")
        if mapping.get("NoDevice") is not None:
            devices.pop(name, None)
        elif ebs is not None:
            known = devices.setdefault(name, {})
            if "VolumeType" in ebs and ebs["VolumeType"] != known.get("VolumeType"):
                known.pop("Iops", None)
                known.pop("Throughput", None)
            known.update({key: value for key, value in ebs.items() if value is not None})
    root = image.root_device_name if image else "/dev/sda1"
    if not devices and not requested:
        devices[root] = {"VolumeSize": DEFAULT_VOLUME_GB}
    for name, ebs in devices.items():
        ebs.setdefault("DeleteOnTermination", name == root)
    return devices


def attach(backend, instance, devices, tags):
    for name, ebs in devices.items():
        volume = backend.create_volume(
            size=ebs.get("VolumeSize"), zone_name=instance.availability_zone, snapshot_id=ebs.get("SnapshotId"),
            encrypted=ebs.get("Encrypted", False), kms_key_id=ebs.get("KmsKeyId"), volume_type=ebs.get("VolumeType"),
            iops=ebs.get("Iops"), throughput=ebs.get("Throughput"),
        )
        volume.add_tags(tags)
        backend.attach_volume(volume.id, instance.id, name, ebs["DeleteOnTermination"])


def security_groups(backend, ids):
    """The groups; moto invents those that do not exist."""
    groups = {group_id: backend.get_security_group_from_id(group_id) for group_id in ids}
    if missing := [group_id for group_id, group in groups.items() if group is None]:
        raise InvalidSecurityGroupNotFoundError(missing[0])
    return list(groups.values())


moto_run_instances = EC2Backend.run_instances


def run_instances(self, image_id, count, user_data, security_group_names, **arguments):
    """Creates the volumes itself: moto's have neither the image's devices nor IOPS and throughput."""
    devices = mappings(self, image_id, arguments.pop("block_device_mappings", None) or [])
    tags = arguments.get("tags") or {}
    nics = arguments.get("nics") or [{}]
    groups = security_groups(self, nics[0].get("Groups") or arguments.get("security_group_ids") or [])
    arguments["ipv6_address_count"] = nics[0].get("Ipv6AddressCount") or arguments.get("ipv6_address_count")
    try:
        reservation = moto_run_instances(
            self, image_id, count, user_data, security_group_names, block_device_mappings=[], **arguments
        )
    except InvalidInstanceTypeError:
        text = f"Invalid value '{arguments['instance_type']}' for InstanceType."
        raise EC2ClientError("InvalidParameterValue", text) from None
    for instance in reservation.instances:
        try:
            attach(self, instance, devices, tags.get("volume", {}))
        except EC2ClientError:
            self.reservations.pop(reservation.id)
            raise
        instance.security_groups = groups or instance.security_groups
        if instance.placement.host_id:
            instance.placement.tenancy = "host"
        if instance.lifecycle == "spot":
            instance.spot_instance_request_id = f"sir-{mock_random.get_random_hex(8)}"
        begin(instance)
    return reservation


moto_instance_profile = instances.filter_iam_instance_profiles


def instance_profile(account, *, iam_instance_profile_arn, iam_instance_profile_name, **arguments):
    """An instance profile; an unknown one is an error of EC2, not of IAM."""
    try:
        return moto_instance_profile(
            account, iam_instance_profile_arn=iam_instance_profile_arn,
            iam_instance_profile_name=iam_instance_profile_name, **arguments,
        )
    except (ServiceException, HTTPException):
        key = "name" if iam_instance_profile_name else "arn"
        value = iam_instance_profile_name or iam_instance_profile_arn
        text = f"Value ({value}) for parameter iamInstanceProfile.{key} is invalid. Invalid IAM Instance Profile {key}"
        raise EC2ClientError("InvalidParameterValue", text) from None


# --- states -----------------------------------------------------------------------------------------------------------


class Life:
    """The polls in which an instance still is hidden, pending or shutting down, and its state after pending."""

    def __init__(self, knobs):
        self.hidden, self.pending, self.shutting_down = knobs["hidden_polls"], knobs["pending_polls"], 0
        self.end = None
        end = knobs["end"]
        if end and end.get("times", 1) > 0:
            end["times"] = end.get("times", 1) - 1
            self.end = end


def begin(instance):
    instance.life = Life(KNOBS["instances"])
    # An empty reason would be listed.
    instance.state_reason = None
    instance._state = InstanceState("pending", CODES["pending"])


def set_state(instance, state, code=None, message=""):
    """Changes the state of an instance; the volumes of a terminated one are deleted."""
    if state == "terminated" and instance.state not in ("shutting-down", "terminated"):
        instance.terminate()
    instance._state = InstanceState(state, CODES[state])
    if code:
        instance.state_reason = StateReason(f"{code}: {message}" if message else code, code)


def poll(instance):
    """Advances an instance by one poll; returns whether the answer lists it."""
    life = getattr(instance, "life", None)
    if life is None:
        return True
    if life.hidden > 0:
        life.hidden -= 1
        return False
    if instance.state == "pending":
        if life.pending > 0:
            life.pending -= 1
        elif life.end:
            set_state(instance, life.end["state"], life.end.get("code"), life.end.get("message", ""))
        else:
            set_state(instance, "running")
    elif instance.state == "shutting-down":
        if life.shutting_down > 0:
            life.shutting_down -= 1
        else:
            set_state(instance, "terminated")
    return True


moto_describe_instances = EC2Response.describe_instances
moto_terminate_instances = EC2Response.terminate_instances


def describe_instances(self):
    ids = self._get_param("InstanceIds", [])
    hidden = set()
    if not self._get_param("NextToken"):
        asked = [one for one in self.ec2_backend.all_instances() if not ids or one.id in ids]
        hidden = {instance.id for instance in asked if not poll(instance)}
    if missing := [one for one in ids if one in hidden]:
        raise InvalidInstanceIdError(missing)
    answer = moto_describe_instances(self)
    for reservation in answer.result["Reservations"]:
        reservation.instances = [one for one in reservation.instances if one.id not in hidden]
    answer.result["Reservations"] = [one for one in answer.result["Reservations"] if one.instances]
    return answer


def terminate_instances(self):
    answer = moto_terminate_instances(self)
    for instance_id in self._get_param("InstanceIds", []):
        instance = self.ec2_backend.get_instance(instance_id)
        if polls := KNOBS["instances"]["shutting_down_polls"]:
            instance._state = InstanceState("shutting-down", CODES["shutting-down"])
            instance.life.shutting_down = polls
    return answer


def forget(backend, instance_id):
    """Removes a terminated instance, as AWS does after an hour."""
    for reservation in list(backend.reservations.values()):
        for instance in reservation.instances:
            if instance.id == instance_id:
                if instance.state not in ("shutting-down", "terminated"):
                    instance.terminate()
                backend.reservations.pop(reservation.id)
                return
    raise InvalidInstanceIdError(instance_id)


# --- fleets -----------------------------------------------------------------------------------------------------------


moto_create_fleet = EC2Response.create_fleet


def create_fleet(self):
    """An instant fleet: one instance of the first type that can be launched; errors for those before it.

    moto's fleet ignores what the launch template says about volumes, groups and metadata.
    """
    if self._get_param("Type") != "instant":
        return moto_create_fleet(self)
    capacity = self._get_param("TargetCapacitySpecification", {})
    lifecycle = capacity.get("DefaultTargetCapacityType", "on-demand")
    fleet_id = f"fleet-{mock_random.uuid4()}"
    count = int(capacity.get("TotalTargetCapacity", 1))
    errors, launched = [], []
    for config in self._get_param("LaunchTemplateConfigs", []):
        specification = dict(config["LaunchTemplateSpecification"])
        version = template_version(self.ec2_backend, specification)
        specification["LaunchTemplateId"], specification["Version"] = version.template.id, str(version.number)
        for override in sorted(config.get("Overrides") or [{}], key=priority):
            if launched:
                break
            used = {"LaunchTemplateSpecification": specification, "Overrides": override}
            entry = {"LaunchTemplateAndOverrides": used, "Lifecycle": lifecycle}
            merged = {**version.data, **override}
            if code := KNOBS["fleets"]["unavailable"].get(merged.get("InstanceType")):
                errors.append({**entry, "ErrorCode": code, "ErrorMessage": f"{merged['InstanceType']} is unavailable"})
                continue
            try:
                found = launch(self, fleet_id, version, merged, lifecycle, count)
            except EC2ClientError as error:
                errors.append({**entry, "ErrorCode": error.code, "ErrorMessage": error.message})
                continue
            ids = [instance.id for instance in found]
            launched.append({**entry, "InstanceIds": ids, "InstanceType": merged["InstanceType"]})
    return ActionResult({"FleetId": fleet_id, "Errors": errors, "Instances": launched})


def priority(override):
    """The first of these is tried first; without a priority, the order is that of the call."""
    return float(override.get("Priority", "inf"))


moto_delete_launch_template = EC2Backend.delete_launch_template
moto_describe_launch_templates = EC2Response.describe_launch_templates


def delete_launch_template(self, name, template_id):
    if name:
        template_id = self.get_launch_template_by_name(name).id
    return moto_delete_launch_template(self, None, template_id)


def describe_launch_templates(self):
    """All templates: moto leaves out those after `MaxResults`, or after 15."""
    number = self._get_int_param
    self._get_int_param = lambda name, default=None: None if name == "MaxResults" else number(name, default)
    try:
        return moto_describe_launch_templates(self)
    finally:
        del self._get_int_param


def template_version(backend, specification):
    if name := specification.get("LaunchTemplateName"):
        template = backend.get_launch_template_by_name(name)
    else:
        template = backend.get_launch_template(specification["LaunchTemplateId"])
    version = specification.get("Version", "$Default")
    numbers = {"$Latest": template.latest_version_number, "$Default": template.default_version_number}
    return template.get_version(str(numbers.get(version, version)))


def launch(self, fleet_id, version, merged, lifecycle, count):
    tags = utils.convert_tag_spec(merged.get("TagSpecifications", []))
    for resource, own in self._parse_tag_specification().items():
        tags[resource] = {**tags.get(resource, {}), **own}
    template_tags = {
        "aws:ec2:fleet-id": fleet_id, "aws:ec2launchtemplate:id": version.template.id,
        "aws:ec2launchtemplate:version": str(version.number),
    }
    tags["instance"] = {**tags.get("instance", {}), **template_tags}
    user_data = merged.get("UserData")
    reservation = self.ec2_backend.run_instances(
        merged.get("ImageId"), count, parse_user_data(user_data) if isinstance(user_data, (str, bytes)) else user_data,
        [], instance_type=merged["InstanceType"], is_instance_type_default=False, region_name=self.region,
        placement=merged.get("Placement", {}).get("AvailabilityZone") or merged.get("AvailabilityZone"),
        subnet_id=merged.get("SubnetId"), key_name=merged.get("KeyName"), nics=merged.get("NetworkInterfaces", []),
        security_group_ids=list(merged.get("SecurityGroupIds", [])), tags=tags, associate_public_ip=None,
        ebs_optimized=merged.get("EbsOptimized", False), metadata_options=merged.get("MetadataOptions", {}),
        instance_market_options="spot" if lifecycle == "spot" else None,
        block_device_mappings=merged.get("BlockDeviceMappings", []),
    )
    return reservation.instances


# --- hosts ------------------------------------------------------------------------------------------------------------


moto_allocate_hosts = EC2Backend.allocate_hosts
moto_describe_hosts = EC2Response.describe_hosts


def allocate_hosts(self, *arguments):
    ids = moto_allocate_hosts(self, *arguments)
    for host_id in ids:
        host = self.hosts[host_id]
        host.pending_polls, host.end = KNOBS["hosts"]["pending_polls"], KNOBS["hosts"]["end"]
        host.state = "pending"
    return ids


def describe_hosts(self):
    if unknown := [one for one in self._get_param("HostIds", []) if one not in self.ec2_backend.hosts]:
        raise EC2ClientError("InvalidHostID.NotFound", f"The host ID '{unknown[0]}' does not exist")
    for host in self.ec2_backend.hosts.values():
        if host.state == "pending":
            if host.pending_polls > 0:
                host.pending_polls -= 1
            else:
                host.state = host.end
    return moto_describe_hosts(self)


def release_hosts(self):
    """Refuses hosts that are unknown or occupied, each for itself, as AWS does."""
    backend = self.ec2_backend
    occupied = {one.placement.host_id for one in backend.all_instances() if one.state != "terminated"}
    successful, unsuccessful = [], []
    for host_id in self._get_param("HostIds", []):
        code = None
        if host_id not in backend.hosts:
            code, message = "Client.InvalidHostID.NotFound", "The specified host ID does not exist"
        elif host_id in occupied:
            code, message = "Client.InvalidHost.Occupied", "Dedicated host cannot be released as it is occupied"
        if code:
            unsuccessful.append({"ResourceId": host_id, "Error": {"Code": code, "Message": message}})
        else:
            backend.hosts[host_id].release()
            successful.append(host_id)
    return ActionResult({"Successful": successful, "Unsuccessful": unsuccessful})


# --- pages ------------------------------------------------------------------------------------------------------------


def paged(method, key):
    """A listing with pages of `MaxResults`, which moto ignores."""

    def call(self):
        answer = method(self)
        limit, start = self._get_int_param("MaxResults"), int(self._get_param("NextToken") or 0)
        if not limit and not start:
            return answer
        items = list(answer.result[key])
        end = len(items) if not limit else start + limit
        token = str(end) if end < len(items) else None
        return ActionResult({**answer.result, key: items[start:end], "NextToken": token})

    call.__name__ = method.__name__
    return call


def patch():
    """Replaces methods of moto. The images' methods must be replaced before."""
    utils.filter_dict_attribute_mapping["client-token"] = "client_token"
    elastic_network_interfaces.random_public_ip = public_address
    vpcs.random_ipv6_cidr = ipv6_network
    instances.filter_iam_instance_profiles = instance_profile
    EC2Backend.run_instances = run_instances
    EC2Backend.allocate_hosts = allocate_hosts
    EC2Response._parse_block_device_mapping = lambda self: self._get_param("BlockDeviceMappings", [])
    EC2Response.describe_instances = describe_instances
    EC2Response.terminate_instances = terminate_instances
    EC2Response.describe_hosts = describe_hosts
    EC2Response.release_hosts = release_hosts
    EC2Response.allocate_hosts = idempotent(EC2Response.allocate_hosts, mismatch)
    EC2Backend.delete_launch_template = delete_launch_template
    EC2Response.describe_launch_templates = describe_launch_templates
    EC2Response.create_fleet = idempotent(create_fleet, mismatch)
    EC2Response.run_instances = idempotent(EC2Response.run_instances, mismatch, check_reservation)
    EC2Response.create_launch_template = idempotent(EC2Response.create_launch_template, mismatch)
    for name, key in PAGED.items():
        setattr(EC2Response, name, paged(getattr(EC2Response, name), key))
