"""Runs the validator and the loader of an installed Nodepool over every configuration it ships, as JSON lines.

With file names as arguments, over those instead. Each line: file, text, validator (exit status),
loader ("ok" or what it raised), facts (a summary of what was loaded).
"""
import glob
import io
import json
import logging
import os
import sys
import tempfile

import nodepool
from nodepool import config as npconfig
from nodepool.cmd.config_validator import ConfigValidator

ENVIRONMENT = {"NODEPOOL_PORT": "8005"}
PLACEHOLDERS = dict(
    images_dir="/images", build_log_dir="/logs", zookeeper_host="zk.test", zookeeper_port=2281,
    zookeeper_chroot="/test", zookeeper_ca="/ca.pem", zookeeper_cert="/cert.pem", zookeeper_key="/key.pem",
    subnet_id="subnet-1", security_group_id="sg-1", auth_path="/auth.json", context_name="admin-cluster.local",
    instance_profile_name="profile", instance_profile_arn="arn:profile",
)


def facts(config):
    """What both loaders must agree on."""
    return {
        "labels": {l.name: [l.min_ready, l.max_ready_age or 0] for l in config.labels.values()},
        "zookeeper": config.zookeeper_servers or "",
        "timeout": config.zookeeper_timeout,
        "webapp": [config.webapp["port"], config.webapp["listen_address"]],
        "diskimages": {
            d.name: {
                "elements": d.elements, "formats": sorted(d.image_types), "env": d.env_vars,
                "release": d.release, "command": d.dib_cmd, "pause": bool(d.pause), "username": d.username,
                "rebuild_age": d.rebuild_age, "timeout": d.build_timeout, "metadata": d.meta,
                "keep": sorted(d.keep_image_types), "delete": bool(d.delete_after_upload),
                "python": d.python_path, "shell": d.shell_type,
            } for d in config.diskimages.values()},
        "providers": {
            p.name: {
                "driver": p.driver.name, "concurrency": p.max_concurrency,
                "pools": {
                    name: {
                        "labels": sorted(pool.labels),
                        "max_servers": None if pool.max_servers == float("inf") else pool.max_servers,
                        "priority": pool.priority or p.priority or 100,
                        "attributes": pool.node_attributes,
                    } for name, pool in p.pools.items()},
            } for p in config.providers.values()},
        "tenants": {
            name: {key: None if value == float("inf") else value for key, value in limits.items()}
            for name, limits in config.tenant_resource_limits.items()},
    }


def examine(name, text):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        try:
            status = ConfigValidator(f.name).validate(env=ENVIRONMENT)
        except Exception:
            status = 1
        loaded, summary = "ok", None
        try:
            summary = facts(npconfig.loadConfig(f.name, env=ENVIRONMENT))
        except (Exception, SystemExit) as error:
            loaded = "%s: %s" % (type(error).__name__, error)
    for variable, value in ENVIRONMENT.items():
        text = text.replace("%(" + variable + ")", value)
    line = dict(file=name, text=text, validator=status, loader=loaded, facts=summary)
    print(json.dumps(line, default=str))


def main():
    logging.disable(logging.CRITICAL)
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            examine(name, io.open(name, encoding="utf-8").read())
        return
    fixtures = os.path.join(os.path.dirname(nodepool.__file__), "tests", "fixtures")
    os.environ["OS_CLIENT_CONFIG_FILE"] = os.path.join(fixtures, "clouds.yaml")
    found = sorted(glob.glob(os.path.join(fixtures, "**", "*.yaml"), recursive=True))
    for path in found:
        text = io.open(path, encoding="utf-8").read()
        name = os.path.relpath(path, fixtures)
        if not name.startswith("config_validate"):
            try:
                text = text.format(**PLACEHOLDERS)
            except (KeyError, ValueError, IndexError):
                pass  # a file that is used as it is
        examine(name, text)


main()
