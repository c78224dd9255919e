"""Uploads and deletes images with the driver aws of Nodepool 11, on the AWS for tests.

usage: aws_reference.py ENDPOINT BUCKET

It uploads an image of 9 MiB with each import method, into an existing bucket. For each one, it prints the image as
DescribeImages returns it, the tags of its snapshot, the resources that the driver lists, the objects in the bucket, and
the numbers of images and snapshots that are left after the driver has deleted the image.
"""

import json
import os
import sys
import tempfile

import lines

SIZE = 9 * 1024 * 1024
METHODS = ["snapshot", "ebs-direct", "image"]
METADATA = {"nodepool_provider_name": "west", "nodepool_build_id": "1", "nodepool_upload_id": "0000000001"}


def configuration(bucket, method):
    image = {
        "name": "disk", "import-method": method, "volume-type": "gp3", "volume-size": 12, "iops": 3100,
        "throughput": 140, "tags": {"team": "ci"},
    }
    if method != "image":
        image["imds-support"] = "v2.0"
    label = {"name": "small", "diskimage": "disk", "instance-type": "t3.small", "key-name": "zuul"}
    provider = {
        "name": "west", "driver": "aws", "region-name": os.environ["AWS_REGION"], "rate": 50, "diskimages": [image],
        "object-storage": {"bucket-name": bucket}, "pools": [{"name": "main", "labels": [label]}],
    }
    return {
        "zookeeper-servers": [{"host": "127.0.0.1", "port": 1}], "labels": [{"name": "small"}],
        "diskimages": [{"name": "disk"}], "providers": [provider],
    }


def provider(bucket, method, home):
    from nodepool import config

    path = os.path.join(home, f"{method}.yaml")
    with open(path, "w") as file:
        json.dump(configuration(bucket, method), file)
    [section] = config.loadConfig(path).providers.values()
    return section


def upload(section, bucket, method, path):
    from nodepool.driver.aws.adapter import AwsAdapter

    AwsAdapter.IMAGE_UPLOAD_SLEEP = 0.1
    adapter = AwsAdapter(section)
    [image] = section.diskimages.values()
    metadata = {**METADATA, **image.meta}
    image_id = adapter.uploadImage(image, f"disk-{method}", path, "raw", metadata, None, None)
    client = adapter.ec2_client
    [described] = client.describe_images(ImageIds=[image_id])["Images"]
    for key in ("ImageId", "CreationDate", "OwnerId"):
        described.pop(key)
    [mapping] = described["BlockDeviceMappings"]
    [snapshot] = client.describe_snapshots(SnapshotIds=[mapping["Ebs"].pop("SnapshotId")])["Snapshots"]
    listed = sorted(resource.type for resource in adapter.listResources())
    objects = adapter.s3_client.list_objects_v2(Bucket=bucket).get("KeyCount")
    # Another adapter, because this one lists from a cache.
    AwsAdapter(section).deleteImage(image_id)
    return {
        "method": method, "image": described, "snapshot tags": snapshot["Tags"], "listed": listed, "objects": objects,
        "images left": len(client.describe_images(Owners=["self"])["Images"]),
        "snapshots left": len(client.describe_snapshots(OwnerIds=["self"])["Snapshots"]),
    }


def main(endpoint, bucket):
    os.environ.update({
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "us-west-2", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    })
    with tempfile.TemporaryDirectory() as home:
        path = os.path.join(home, "disk.raw")
        with open(path, "wb") as file:
            file.write(os.urandom(SIZE))
        for method in METHODS:
            print(json.dumps(upload(provider(bucket, method, home), bucket, method, path)), flush=True)
    # The adapters keep threads.
    os._exit(0)


if __name__ == "__main__":
    lines.log_to_stderr()
    main(*sys.argv[1:])
