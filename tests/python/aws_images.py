"""Images, snapshots and import tasks of EC2, and EBS direct, as a node manager needs them, where moto 5.2.5 lacks
something."""

import base64
import hashlib

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.ebs.responses import EBSResponse
from moto.ec2.exceptions import EC2ClientError, InvalidSnapshotIdError
from moto.ec2.models import EC2Backend
from moto.ec2.models.amis import Ami
from moto.ec2.responses import EC2Response
from moto.moto_api._internal import mock_random
from moto.s3.models import s3_backends

from aws_knobs import KNOBS
from aws_tokens import idempotent, mismatch

BLOCK = 512 * 1024
GIB = 1024**3
TASKS = {}

# --- images -----------------------------------------------------------------------------------------------------------

moto_mappings = Ami.block_device_mappings


def block_device_mappings(self):
    registered = getattr(self, "mappings", None)
    return moto_mappings.fget(self) if registered is None else registered


def register_image(self):
    """Registers an image with all its parameters. moto keeps only its name."""
    backend, name = self.ec2_backend, self._get_param("Name")
    if any(image.name == name and image.owner_id == self.current_account for image in backend.amis.values()):
        raise EC2ClientError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by another AMI")
    root = self._get_param("RootDeviceName") or "/dev/sda1"
    mappings = [described(backend, root, mapping) for mapping in self._get_param("BlockDeviceMappings", [])]
    image = backend.register_image(name, self._get_param("Description", ""))
    image.architecture = self._get_param("Architecture") or "i386"
    image.virtualization_type = self._get_param("VirtualizationType") or "paravirtual"
    image.ena_support = bool(self._get_param("EnaSupport"))
    image.imds_support = self._get_param("ImdsSupport")
    image.root_device_name = root
    image.add_tags(self._parse_tag_specification().get("image", {}))
    use_mappings(backend, image, mappings)
    return ActionResult({"ImageId": image.id})


def described(backend, root, mapping):
    """A mapping as DescribeImages returns it."""
    ebs = mapping.get("Ebs")
    if ebs is None:
        return mapping
    snapshot = backend.snapshots.get(ebs.get("SnapshotId"))
    if ebs.get("SnapshotId") and not snapshot:
        raise EC2ClientError("InvalidSnapshot.NotFound", f"The snapshot '{ebs['SnapshotId']}' does not exist.")
    shown = {key: value for key, value in ebs.items() if value is not None}
    shown.setdefault("DeleteOnTermination", mapping["DeviceName"] == root)
    shown.setdefault("VolumeType", "gp2")
    shown.setdefault("Encrypted", False)
    if snapshot:
        shown.setdefault("VolumeSize", snapshot.volume_size)
    return {"DeviceName": mapping["DeviceName"], "Ebs": shown}


def use_mappings(backend, image, mappings):
    """Replaces the volume that moto invents. A snapshot that an image uses cannot be deleted."""
    backend.snapshots.pop(image.ebs_snapshot.id, None)
    image.mappings = mappings
    image.root_device_type = "ebs" if mappings else "instance-store"
    for mapping in mappings:
        if snapshot := backend.snapshots.get(mapping.get("Ebs", {}).get("SnapshotId")):
            snapshot.from_ami = image.id


# --- import tasks -----------------------------------------------------------------------------------------------------


class Task:
    """The import of an object into a snapshot or an image."""

    def __init__(self, response, kind, container):
        self.kind, self.backend, self.polls = kind, response.ec2_backend, 0
        self.id = f"import-{'snap' if kind == 'snapshot' else 'ami'}-{mock_random.get_random_hex(17)}"
        self.tags = response._parse_tag_specification().get(f"import-{kind}-task", {})
        self.state, self.message = "active", "pending"
        self.snapshot = self.image = None
        self.format = (container.get("Format") or "RAW").upper()
        self.bucket = container.get("UserBucket", {})
        self.architecture = response._get_param("Architecture") or "x86_64"
        self.size = object_size(response, self.bucket)
        self.failure = KNOBS["imports"]["failure"]
        if self.size is None:
            self.failure = "ClientError: The object in the bucket does not exist"

    def poll(self):
        """Advances the task by one poll."""
        self.polls += 1
        if self.state != "active" or self.polls < KNOBS["imports"]["polls"]:
            return
        if self.failure:
            self.state, self.message = "deleted", self.failure
            return
        self.state, self.message = "completed", None
        description = f"Created by AWS-VMImport service for {self.id}"
        self.snapshot = new_snapshot(self.backend, -(-self.size // GIB), description)
        if self.kind == "image":
            self.import_image()

    def import_image(self):
        # AWS names the image after the task, and does not tag it.
        self.image = self.backend.register_image(self.id, "AWS-VMImport service: Linux")
        self.image.architecture, self.image.virtualization_type = self.architecture, "hvm"
        self.image.ena_support = True
        root = {"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": self.snapshot.id}}
        use_mappings(self.backend, self.image, [described(self.backend, "/dev/sda1", root)])

    def described(self):
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        detail = {
            "Format": self.format, "UserBucket": self.bucket, "DiskImageSize": float(self.size or 0),
            "SnapshotId": self.snapshot and self.snapshot.id, "Status": self.state, "StatusMessage": self.message,
            "Progress": None if self.state == "completed" else "19",
        }
        task = {"ImportTaskId": self.id, "Tags": tags}
        if self.kind == "snapshot":
            return {**task, "SnapshotTaskDetail": detail}
        return {
            **task, "Status": self.state, "StatusMessage": self.message, "Progress": detail["Progress"],
            "Architecture": self.architecture, "ImageId": self.image and self.image.id,
            "SnapshotDetails": [{**detail, "DeviceName": "/dev/sda1"}],
        }


def object_size(response, bucket):
    try:
        backend = s3_backends[response.current_account][response.partition]
        return backend.get_object(bucket.get("S3Bucket"), bucket.get("S3Key")).size
    except (ServiceException, AttributeError, KeyError):
        return None
    except Exception as error:
        # moto's S3 raises HTTP exceptions.
        if type(error).__name__ in ("MissingBucket", "MissingKey"):
            return None
        raise


def new_snapshot(backend, size, description):
    volume = backend.create_volume(size=max(size, 1), zone_name=f"{backend.region_name}a")
    snapshot = backend.create_snapshot(volume.id, description)
    backend.delete_volume(volume.id)
    return snapshot


def tasks(kind):
    return [task for task in TASKS.values() if task.kind == kind]


def import_into(self, kind, container):
    unfinished = [task for task in TASKS.values() if task.state == "active"]
    limit = KNOBS["imports"]["limit"]
    if limit is not None and len(unfinished) >= limit:
        raise EC2ClientError("ResourceCountLimitExceeded", "The number of import tasks exceeds the limit")
    task = Task(self, kind, container)
    TASKS[task.id] = task
    return ActionResult(task.described())


def import_snapshot(self):
    return import_into(self, "snapshot", self._get_param("DiskContainer", {}))


def import_image(self):
    return import_into(self, "image", (self._get_param("DiskContainers") or [{}])[0])


def describe_tasks(self, kind, key):
    ids = self._get_param("ImportTaskIds", [])
    known = {task.id: task for task in tasks(kind)}
    if unknown := [one for one in ids if one not in known]:
        raise EC2ClientError("InvalidConversionTaskId.Malformed", f"The task ID {unknown[0]} is invalid")
    chosen = [known[one] for one in ids] or list(known.values())
    limit, start = self._get_int_param("MaxResults") or len(chosen), int(self._get_param("NextToken") or 0)
    page = chosen[start:start + limit]
    for task in page:
        task.poll()
    token = str(start + limit) if start + limit < len(chosen) else None
    return ActionResult({key: [task.described() for task in page], "NextToken": token})


def describe_import_snapshot_tasks(self):
    return describe_tasks(self, "snapshot", "ImportSnapshotTasks")


def describe_import_image_tasks(self):
    return describe_tasks(self, "image", "ImportImageTasks")


# --- EBS direct -------------------------------------------------------------------------------------------------------

moto_start_snapshot = EBSResponse.start_snapshot
moto_complete_snapshot = EBSResponse.complete_snapshot
moto_put_snapshot_block = EBSResponse.put_snapshot_block


class EbsError(ServiceException):
    """An error of EBS direct."""


def token_conflict(token):
    return EbsError("ConflictException", f"The token {token} was used with other parameters")


def started(self, method):
    """The snapshot of a call; refuses one that was not started or is completed."""
    snapshot = self.ebs_backend.snapshots.get(self._get_param("SnapshotId"))
    if snapshot is None:
        raise EbsError("ResourceNotFoundException", "The snapshot does not exist")
    if snapshot.status != "pending" and method == "put":
        raise EbsError("ValidationException", "The snapshot is not pending")
    return snapshot


def start_snapshot(self):
    answer = moto_start_snapshot(self)
    # A pending snapshot cannot be used; DescribeSnapshots lists it with its tags.
    snapshot = self.ebs_backend.ec2_backend.snapshots[answer.result["SnapshotId"]]
    snapshot.status = "pending"
    snapshot.description = snapshot.description or ""
    # moto creates a volume for each snapshot, which a node manager would find.
    self.ebs_backend.ec2_backend.delete_volume(snapshot.volume.id)
    tags = self._get_param("Tags") or []
    snapshot.add_tags({tag["Key"]: tag["Value"] for tag in tags})
    answer.result["Tags"] = tags
    return answer


def put_snapshot_block(self):
    started(self, "put")
    data = self._get_param("BlockData")
    data = data.read() if hasattr(data, "read") else data
    data = data.encode() if isinstance(data, str) else data
    if len(data) != BLOCK or self._get_int_param("DataLength") != BLOCK:
        raise EbsError("ValidationException", f"A block has {BLOCK} bytes, not {len(data)}")
    checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
    if self._get_param("Checksum") != checksum or self._get_param("ChecksumAlgorithm") != "SHA256":
        raise EbsError("ValidationException", "The checksum does not match the data")
    # moto would keep the data in memory.
    snapshot = self.ebs_backend.snapshots[self._get_param("SnapshotId")]
    snapshot.put_block(int(self._get_param("BlockIndex")), b"", checksum, "SHA256", BLOCK)
    return ActionResult({"Checksum": checksum, "ChecksumAlgorithm": "SHA256"})


def complete_snapshot(self):
    """Completes a snapshot at the second poll; a wrong number of blocks is an error."""
    snapshot = started(self, "complete")
    in_ec2 = self.ebs_backend.ec2_backend.snapshots.get(snapshot.snapshot_id)
    if self._get_int_param("ChangedBlocksCount") != len(snapshot.blocks):
        raise EbsError("ValidationException", f"{len(snapshot.blocks)} blocks were put")
    if snapshot.status == "pending" and not getattr(snapshot, "is_completing", False):
        snapshot.is_completing = True
        return ActionResult({"Status": "pending"})
    answer = moto_complete_snapshot(self)
    if in_ec2 is not None:
        in_ec2.status = "completed"
    return answer


def describe_snapshots_of(method):
    """DescribeSnapshots with the parameter OwnerIds, which moto ignores."""

    def describe_snapshots(self):
        owners = [self.current_account if one == "self" else one for one in self._get_param("OwnerIds", [])]
        answer = method(self)
        snapshots = [one for one in answer.result["Snapshots"] if not owners or one.owner_id in owners]
        return ActionResult({"Snapshots": snapshots})

    return describe_snapshots


def delete_snapshot(self, snapshot_id):
    """A snapshot that any image uses is in use, although another image used it later."""
    for image in self.amis.values():
        used = [one.get("Ebs", {}).get("SnapshotId") for one in image.block_device_mappings]
        if snapshot_id in used:
            text = f"The snapshot {snapshot_id} is currently in use by {image.id}"
            raise EC2ClientError("InvalidSnapshot.InUse", text)
    if snapshot_id not in self.snapshots:
        raise InvalidSnapshotIdError()
    return self.snapshots.pop(snapshot_id)


def patch():
    Ami.block_device_mappings = property(block_device_mappings)
    EC2Backend.delete_snapshot = delete_snapshot
    EC2Response.register_image = register_image
    EC2Response.import_snapshot = idempotent(import_snapshot, mismatch)
    EC2Response.import_image = idempotent(import_image, mismatch)
    EC2Response.describe_import_snapshot_tasks = describe_import_snapshot_tasks
    EC2Response.describe_import_image_tasks = describe_import_image_tasks
    EC2Response.describe_snapshots = describe_snapshots_of(EC2Response.describe_snapshots)
    EBSResponse.start_snapshot = idempotent(start_snapshot, token_conflict)
    EBSResponse.put_snapshot_block = put_snapshot_block
    EBSResponse.complete_snapshot = complete_snapshot
