"""openstacksdk on a cloud with odd answers: the calls of a node pool, and what the SDK makes of the answers.

Command: {"do": "use", "clouds_yaml": PATH, "cloud": NAME, "group": NAME or null}; the reply is true, or the SDK's error.
"""

import logging
import os
import warnings

import lines

lines.log_to_stderr(logging.WARNING)
warnings.simplefilter("ignore")
os.environ["OS_CLIENT_CONFIG_FILE"] = "/nowhere"

import openstack


def use(clouds_yaml, cloud, group):
    os.environ["OS_CLIENT_CONFIG_FILE"] = clouds_yaml
    connection = openstack.connect(cloud=cloud)
    connection.get_compute_limits()
    connection.get_volume_limits()
    flavor = [flavor for flavor in connection.list_flavors(get_extra=False) if flavor.name == "tiny"][0]
    image = connection.get_image("raw-1M")
    nics = {}
    if connection.has_service("network"):
        nics = {"nics": [{"net-id": connection.get_network("private").id}]}
    groups = {"security_groups": [group]} if group else {}
    server = connection.create_server(
        "sdk", image=image, flavor=flavor, auto_ip=False, **nics, **groups)
    connection.list_servers(bare=True)
    connection.delete_server(server.id)
    return True


if __name__ == "__main__":
    lines.serve({"use": use})
