"""Settings that openstacksdk reads from clouds files. A command has a directory, an environment and a cloud; the reply has its settings.

Commands: {"do": "get_one", "directory": PATH, "variables": {NAME: VALUE}, "wanted": {"cloud": NAME, "region-name": NAME}}
and {"do": "profiles"}, the built-in public clouds of the SDK.
"""

import importlib
import os
import warnings

import lines

lines.log_to_stderr()
warnings.simplefilter("ignore")

SERVICES = ["compute", "network", "image", "block-storage", "identity"]


class Recorder:
    """Replaces a session: records the request that a login would send."""

    def __init__(self):
        self.body = None

    def post(self, url, json=None, **kwargs):
        self.body = json
        raise ConnectionError("recorded")


def login(region):
    plugin = region.get_auth()
    recorder = Recorder()
    if hasattr(plugin, "create_plugin"):
        plugin = plugin.create_plugin(recorder, (3, 0), plugin.auth_url)
    try:
        plugin.get_auth_ref(recorder)
    except ConnectionError:
        pass
    return {"auth_url": plugin.auth_url, "body": recorder.body}


def interfaces(value):
    """As keystoneauth accepts them: a list, with the names of version 3."""
    values = value if isinstance(value, list) else [value or "public"]
    return [value.removesuffix("URL") for value in values]


def floating_ips(source):
    return source.lower() if source else "none"


def statsd(region):
    config = region._statsd_config
    if not config.get("host") and not config.get("port"):
        return None
    # Host and port default to those of the statsd library.
    return {"host": config.get("host") or "localhost", "port": int(config.get("port") or 8125),
            "prefix": region.get_statsd_prefix()}


def settings(region):
    config = region.config
    verify, certificate = region.get_requests_verify_args()
    session = region.get_session()
    image = config["disable_vendor_agent"]
    return {
        "cloud": region.name,
        "region": region.get_region_name(),
        "login": login(region),
        "verify": verify,
        "certificate": list(certificate) if isinstance(certificate, tuple) else certificate,
        "api_timeout": session.timeout,
        "image_format": config["image_format"],
        "image_api_use_tasks": bool(config["image_api_use_tasks"]),
        "image_properties": {key: str(value) for key, value in image.items()},
        "floating_ips": floating_ips(config["floating_ip_source"]),
        "requires_floating_ip": region.requires_floating_ip(),
        "networks": config["networks"],
        "use_external_network": bool(config.get("use_external_network", True)),
        "use_internal_network": bool(config.get("use_internal_network", True)),
        "private": bool(config.get("private", False)),
        "force_ipv4": bool(region.force_ipv4),
        "statsd": statsd(region),
        "services": {
            service: {
                "enabled": region.has_service(service),
                "endpoint": region.get_endpoint(service),
                "region": region.get_region_name(service),
                "interfaces": interfaces(region.get_interface(service)),
                "api_version": region.get_api_version(service),
                "microversion": region.get_default_microversion(service),
                "service_type": region._get_config("service_type", service),
                "service_name": region.get_service_name(service),
            }
            for service in SERVICES
        },
    }


def get_one(directory, variables, wanted):
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(directory)
    # The search path is computed when the module is loaded.
    import openstack.config.loader as loader
    importlib.reload(loader)
    return settings(loader.OpenStackConfig().get_one(**wanted))


def profiles():
    from openstack.config import vendors
    return {name: vendors._get_vendor_defaults()[name] for name in vendors.profiles()}


lines.serve({"get_one": get_one, "profiles": profiles})
