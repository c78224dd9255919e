"""Operations of a node pool on a cloud, through openstacksdk; prints one JSON value with the results.

usage: openstack_cloud.py CLOUD CLOUDS_YAML
"""

import io
import json
import os
import sys

import openstack


def use_server(cloud, seen, image, flavor, network):
    server = cloud.create_server(
        "sdk-server", image=image, flavor=flavor, nics=[{"net-id": network.id}], meta={"nodepool_node_id": "0000000042"},
        auto_ip=False, wait=True, timeout=120)
    seen["server"] = [server.status, server.metadata["nodepool_node_id"], bool(server.private_v4), server.public_v4]
    seen["listed"] = [one.name for one in cloud.list_servers(bare=True)].count("sdk-server")
    try:
        cloud.add_auto_ip(server, wait=True, timeout=60)
        server = cloud.get_server_by_id(server.id)
        floating = [ip for ip in cloud.list_floating_ips() if ip["floating_ip_address"] == server.public_v4]
        seen["floating_ip"] = [len(floating), floating[0]["status"]]
        seen["ports"] = [port.status for port in cloud.list_ports(filters={"device_id": server.id})]
        seen["console"] = isinstance(cloud.get_server_console(server), str)
        seen["deleted"] = cloud.delete_server(server.id, wait=True, timeout=60, delete_ips=True)
        seen["left"] = [
            len([one for one in cloud.list_servers(bare=True) if one.id == server.id]),
            len([ip for ip in cloud.list_floating_ips() if ip["id"] == floating[0]["id"]]),
        ]
        seen["deleted_again"] = cloud.delete_server(server.id)
    except BaseException:
        cloud.delete_server(server.id, delete_ips=True)
        raise


def main(name, clouds_yaml):
    os.environ["OS_CLIENT_CONFIG_FILE"] = clouds_yaml
    cloud = openstack.connect(cloud=name)
    seen = {}
    limits = cloud.get_compute_limits()
    seen["limits"] = [limits["max_total_instances"], limits["max_total_cores"], limits["max_total_ram_size"]]
    seen["volume_limits"] = cloud.get_volume_limits()["absolute"]["maxTotalVolumes"]
    flavors = {flavor.name: flavor for flavor in cloud.list_flavors(get_extra=False)}
    image = cloud.get_image("raw-1M")
    network = cloud.get_network("private")
    seen["flavor"] = [flavors["medium"].vcpus, flavors["medium"].ram]
    seen["image"] = image.status
    seen["zones"] = cloud.list_availability_zone_names()
    use_server(cloud, seen, image, flavors["tiny"], network)
    uploaded = cloud.create_image(
        "sdk-image", data=io.BytesIO(b"not much of an image"), disk_format="raw", container_format="bare",
        nodepool_build_id="0000000007", wait=True)
    seen["uploaded"] = [uploaded.status, uploaded.properties["nodepool_build_id"], uploaded.size]
    seen["image_deleted"] = cloud.delete_image(uploaded.id)
    try:
        cloud.create_server("sdk-wrong", image=image.id, flavor="no-such-flavor", network=network.id)
    except openstack.exceptions.SDKException as error:
        seen["unknown_flavor"] = "no-such-flavor" in str(error)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
