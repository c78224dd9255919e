"""Holds a simulated GCE against Google's own client, and checks each answer by the discovery document.

usage: gce_client.py BASE_URL

Prints one line of JSON per case, and ends with status 1 at the first difference. Without --anonymous, the simulation
has to accept the tokens of its service account and of its metadata server as well.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

import google.auth.credentials
import google.auth.transport.requests
import google.oauth2.service_account
import googleapiclient.discovery
import googleapiclient.errors
from googleapiclient.discovery_cache import get_static_doc

PROJECT, ZONE, REGION = "simulated", "us-central1-a", "us-central1"
PLACE = {"project": PROJECT, "zone": ZONE}
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
SCHEMAS = json.loads(get_static_doc("compute", "v1"))["schemas"]
PYTHON_TYPES = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict}
FOREIGN = 1200


class Difference(Exception):
    """The simulation answers something that Google does not document."""


def expect(condition, what):
    if not condition:
        raise Difference(what)


def check(schema, value, path="answer"):
    """Checks types, formats, enumerations and names of fields."""
    if "$ref" in schema:
        return check(SCHEMAS[schema["$ref"]], value, path)
    kind = schema.get("type", "any")
    if kind == "any":
        return None
    expected = PYTHON_TYPES[kind]
    is_wrong_boolean = isinstance(value, bool) and kind != "boolean"
    expect(isinstance(value, expected) and not is_wrong_boolean, f"{path} is {value!r}, not {kind}")
    if "enum" in schema:
        expect(value in schema["enum"], f"{path} is {value!r}, none of {schema['enum']}")
    if kind == "string" and schema.get("format") in ("uint64", "int64"):
        expect(value.isdigit(), f"{path} is {value!r}, not a number as text")
    if kind == "array":
        for index, item in enumerate(value):
            check(schema["items"], item, f"{path}[{index}]")
    if kind == "object":
        check_object(schema, value, path)
    return None


def check_object(schema, value, path):
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    if "kind" in properties and "default" in properties["kind"]:
        expect(value.get("kind") == properties["kind"]["default"], f"{path} has the kind {value.get('kind')!r}")
    for name, item in value.items():
        field = properties.get(name, others)
        expect(field is not None, f"{path} has the unknown field {name!r}")
        check(field, item, f"{path}.{name}")


def execute(request, schema):
    answer = request.execute()
    check({"$ref": schema}, answer, schema)
    return answer


def refused(request, status, reason):
    """Checks an error: its status, its reason, and the form of its body."""
    try:
        request.execute()
    except googleapiclient.errors.HttpError as error:
        found = json.loads(error.content)["error"]
        first = found["errors"][0]
        expect((error.resp.status, first["reason"]) == (status, reason), f"expected {status} {reason}, got {found}")
        expect(found["code"] == status and found["message"] and first["message"], f"the body is {found}")
        return error
    raise Difference(f"expected {status} {reason}, but the call succeeded")


def sim(base, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base}/sim/{path}", data, method=method)) as answer:
        return json.load(answer)


def body_of(instance, **changes):
    params = {
        "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
        "diskType": f"zones/{ZONE}/diskTypes/pd-ssd",
        "diskSizeGb": "20",
    }
    body = {
        "name": instance,
        "machineType": f"zones/{ZONE}/machineTypes/e2-medium",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
        "networkInterfaces": [
            {
                "network": "global/networks/default",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }
        ],
        "serviceAccounts": [],
        "metadata": {"items": [{"key": "nodepool_node_id", "value": "0000000001"}]},
        "labels": {"team": "ci"},
        "tags": {"items": ["ssh"]},
    }
    body.update(changes)
    return body


class Cases:
    def __init__(self, base, compute):
        self.base, self.compute = base, compute
        self.instances, self.operations = compute.instances(), compute.zoneOperations()

    def wait(self, operation):
        """Waits for an operation as gcloud does."""
        for _ in range(20):
            operation = execute(self.operations.wait(operation=operation["name"], **PLACE), "Operation")
            if operation["status"] == "DONE":
                return operation
        raise Difference(f"{operation['name']} is not DONE")

    def create(self):
        request = str(uuid.uuid4())
        operation = execute(self.instances.insert(body=body_of("one"), requestId=request, **PLACE), "Operation")
        expect(operation["operationType"] == "insert" and operation["status"] == "PENDING", operation)
        expect("startTime" not in operation and "endTime" not in operation, operation)
        again = execute(self.instances.insert(body=body_of("one"), requestId=request, **PLACE), "Operation")
        expect(again["name"] == operation["name"], "the same request is another operation")
        instance = execute(self.instances.get(instance="one", **PLACE), "Instance")
        expect(instance["status"] == "PROVISIONING", instance["status"])
        expect("natIP" not in instance["networkInterfaces"][0]["accessConfigs"][0], "natIP while PROVISIONING")
        running = execute(self.operations.get(operation=operation["name"], **PLACE), "Operation")
        expect(running["targetId"] == instance["id"] and running["targetLink"] == instance["selfLink"], running)
        done = self.wait(operation)
        expect(done["progress"] == 100 and "error" not in done, done)
        listed = execute(self.operations.list(filter=f"name={done['name']}", **PLACE), "OperationList")
        expect([item["name"] for item in listed["items"]] == [done["name"]], listed)

    def get(self):
        instance = execute(self.instances.get(instance="one", **PLACE), "Instance")
        interface = instance["networkInterfaces"][0]
        expect(instance["status"] == "RUNNING", instance["status"])
        expect(interface["networkIP"].startswith("127."), interface)
        expect(interface["accessConfigs"][0]["natIP"].startswith("127."), interface)
        expect(instance["machineType"].endswith(f"/zones/{ZONE}/machineTypes/e2-medium"), instance["machineType"])
        expect(instance["disks"][0]["diskSizeGb"] == "20", instance["disks"])
        expect(instance["labels"] == {"team": "ci"} and instance["tags"]["items"] == ["ssh"], instance)
        expect("serviceAccounts" not in instance, "an empty list of accounts")

    def conflict(self):
        refused(self.instances.insert(body=body_of("one"), **PLACE), 409, "alreadyExists")

    def invalid(self):
        for changes in (
            {"name": "One"},
            {"machineType": f"zones/{ZONE}/machineTypes/e9-huge"},
            {"disks": []},
            {"disks": [{"boot": True, "initializeParams": {"sourceImage": "global/images/none"}}]},
            {"disks": [{"boot": True, "initializeParams": {"sourceImage": "global/images/large", "diskSizeGb": "9"}}]},
            {"networkInterfaces": [{"network": "global/networks/none"}]},
            {"metadata": {"items": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}},
            {"scheduling": {"provisioningModel": "SPOT", "automaticRestart": True}},
        ):
            refused(self.instances.insert(body=body_of("two", **changes), **PLACE), 400, "invalid")
        refused(self.instances.insert(body=body_of("two"), requestId="1", **PLACE), 400, "invalid")
        refused(self.instances.list(project=PROJECT, zone="mars-1a"), 400, "invalid")
        refused(self.instances.list(pageToken="!", **PLACE), 400, "invalid")
        refused(self.instances.list(filter="name like one", **PLACE), 400, "invalid")

    def spot(self):
        scheduling = {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
        self.wait(execute(self.instances.insert(body=body_of("spot", scheduling=scheduling), **PLACE), "Operation"))
        sim(self.base, "POST", "preempt?instance=spot")
        for _ in range(100):
            instance = execute(self.instances.get(instance="spot", **PLACE), "Instance")
            if instance["status"] != "STOPPING":
                break
            time.sleep(0.05)
        expect(instance["status"] == "TERMINATED" and instance["scheduling"]["preemptible"], instance["status"])
        preempted = self.operations.list(filter="operationType=compute.instances.preempted", **PLACE)
        events = execute(preempted, "OperationList")
        expect(len(events["items"]) == 1, events)
        self.wait(execute(self.instances.delete(instance="spot", **PLACE), "Operation"))

    def pages(self):
        sim(self.base, "POST", f"foreign?count={FOREIGN}&zone={ZONE}")
        request, names, sizes = self.instances.list(**PLACE), [], []
        while request is not None:
            page = execute(request, "InstanceList")
            names += [item["name"] for item in page["items"]]
            sizes.append(len(page["items"]))
            request = self.instances.list_next(request, page)
        expect(sizes == [500, 500, FOREIGN + 1 - 1000], f"pages of {sizes} instances")
        expect(len(set(names)) == FOREIGN + 1 and "one" in names, "an instance is missing or repeated")
        small = execute(self.instances.list(maxResults=7, **PLACE), "InstanceList")
        expect(len(small["items"]) == 7 and small["nextPageToken"], small.get("nextPageToken"))
        for text in ("name=one", "name eq o.e", "(name=one) (status=RUNNING)"):
            found = execute(self.instances.list(filter=text, **PLACE), "InstanceList")
            expect([item["name"] for item in found["items"]] == ["one"], text)
        empty = execute(self.instances.list(project=PROJECT, zone="europe-west1-b"), "InstanceList")
        expect("items" not in empty, empty)

    def aggregated(self):
        request, count = self.instances.aggregatedList(project=PROJECT), 0
        while request is not None:
            page = execute(request, "InstanceAggregatedList")
            count += sum(len(scope.get("instances", [])) for scope in page["items"].values())
            warning = page["items"]["zones/europe-west1-b"]["warning"]
            expect(warning["code"] == "NO_RESULTS_ON_PAGE", warning)
            request = self.instances.aggregatedList_next(request, page)
        expect(count == FOREIGN + 1, f"{count} instances")

    def places(self):
        region = execute(self.compute.regions().get(project=PROJECT, region=REGION), "Region")
        quotas = {quota["metric"]: quota for quota in region["quotas"]}
        expect(quotas["INSTANCES"]["usage"] == FOREIGN + 1, quotas["INSTANCES"])
        expect(isinstance(quotas["CPUS"]["limit"], float) and quotas["N2_CPUS"]["usage"] == 0, quotas)
        zones = execute(self.compute.zones().list(project=PROJECT), "ZoneList")
        expect(len(zones["items"]) == 7, zones)
        expect(execute(self.compute.zones().get(**PLACE), "Zone")["status"] == "UP", "the zone is not UP")
        execute(self.compute.regions().list(project=PROJECT), "RegionList")
        execute(self.compute.projects().get(project=PROJECT), "Project")
        execute(self.compute.diskTypes().get(diskType="pd-ssd", **PLACE), "DiskType")
        refused(self.compute.regions().get(project=PROJECT, region="mars"), 404, "notFound")

    def images(self):
        images = self.compute.images()
        image = execute(images.getFromFamily(project="debian-cloud", family="debian-12"), "Image")
        expect(image["family"] == "debian-12", image)
        sim(self.base, "POST", "image?project=debian-cloud&family=debian-12&name=debian-12-new")
        newer = execute(images.getFromFamily(project="debian-cloud", family="debian-12"), "Image")
        expect(newer["name"] == "debian-12-new", newer["name"])
        sim(self.base, "POST", "deprecate?project=debian-cloud&name=debian-12-new")
        older = execute(images.getFromFamily(project="debian-cloud", family="debian-12"), "Image")
        expect(older == image, older["name"])
        execute(images.get(project="debian-cloud", image="debian-12-new"), "Image")
        execute(images.list(project="debian-cloud"), "ImageList")
        refused(images.get(project=PROJECT, image="none"), 404, "notFound")
        refused(images.getFromFamily(project=PROJECT, family="none"), 404, "notFound")

    def machine_types(self):
        types = self.compute.machineTypes()
        for name, cpus, memory in (
            ("n1-standard-1", 1, 3840),
            ("n2-standard-4", 4, 16384),
            ("e2-medium", 2, 4096),
            ("custom-4-8192", 4, 8192),
            ("n2-custom-4-8192", 4, 8192),
        ):
            found = execute(types.get(machineType=name, **PLACE), "MachineType")
            expect((found["guestCpus"], found["memoryMb"]) == (cpus, memory), found)
        refused(types.get(machineType="e9-huge", **PLACE), 404, "notFound")
        execute(types.list(**PLACE), "MachineTypeList")

    def serial_port(self):
        output = execute(self.instances.getSerialPortOutput(instance="one", **PLACE), "SerialPortOutput")
        expect("one" in output["contents"], output)
        rest = self.instances.getSerialPortOutput(instance="one", start=output["next"], **PLACE)
        rest = execute(rest, "SerialPortOutput")
        expect(rest["contents"] == "" and rest["start"] == output["next"], rest)

    def shortage(self):
        sim(self.base, "PUT", "knobs", {"full_zones": [ZONE], "fail_s": 0.1})
        operation = execute(self.instances.insert(body=body_of("two"), **PLACE), "Operation")
        done = self.wait(operation)
        code = done["error"]["errors"][0]["code"]
        expect((code, done["httpErrorStatusCode"]) == ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503), done)
        refused(self.instances.get(instance="two", **PLACE), 404, "notFound")
        sim(self.base, "PUT", "knobs", {"full_zones": [], "quotas": {"INSTANCES": 1}})
        done = self.wait(execute(self.instances.insert(body=body_of("two"), **PLACE), "Operation"))
        expect(done["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED", done)
        sim(self.base, "PUT", "knobs", {"refuse_above_quota": True})
        refused(self.instances.insert(body=body_of("two"), **PLACE), 403, "quotaExceeded")
        sim(self.base, "PUT", "knobs", {"faults": ["403 reason=rateLimitExceeded times=1"]})
        error = refused(self.instances.list(**PLACE), 403, "rateLimitExceeded")
        expect("Quota exceeded for quota metric" in error.reason, error.reason)

    def delete(self):
        operation = execute(self.instances.delete(instance="one", **PLACE), "Operation")
        refused(self.instances.delete(instance="one", **PLACE), 400, "resourceNotReady")
        expect(execute(self.instances.get(instance="one", **PLACE), "Instance")["status"] == "STOPPING", "not STOPPING")
        done = self.wait(operation)
        expect(done["operationType"] == "delete" and "error" not in done, done)
        refused(self.instances.get(instance="one", **PLACE), 404, "notFound")
        refused(self.instances.delete(instance="one", **PLACE), 404, "notFound")


CASES = """
    create get conflict invalid spot pages aggregated places images machine_types serial_port shortage delete
""".split()


def client(base, credentials):
    endpoint = {"api_endpoint": f"{base}/compute/v1/"}
    return googleapiclient.discovery.build(
        "compute", "v1", credentials=credentials, client_options=endpoint, static_discovery=True
    )


def status_without_token(base):
    """The status of a call without a token. The client itself would try to refresh its credentials."""
    try:
        with urllib.request.urlopen(f"{base}/compute/v1/projects/{PROJECT}/zones") as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        found = json.load(error)["error"]
        expect((found["status"], found["errors"][0]["reason"]) == ("UNAUTHENTICATED", "required"), found)
        expect(error.headers["www-authenticate"].startswith("Bearer "), error.headers)
        return error.code


def check_tokens(base, account):
    """The client gets a new token after a revocation, and the metadata server issues tokens as well."""
    compute = client(base, account)
    execute(compute.zones().list(project=PROJECT), "ZoneList")
    sim(base, "POST", "revoke-tokens")
    execute(compute.zones().list(project=PROJECT), "ZoneList")
    os.environ["GCE_METADATA_HOST"] = os.environ["GCE_METADATA_IP"] = base.split("//")[1]
    os.environ["GCE_METADATA_ROOT"] = base.split("//")[1]
    from google.auth import compute_engine
    from google.auth.compute_engine import _metadata

    transport = google.auth.transport.requests.Request()
    expect(_metadata.ping(transport), "the metadata server does not answer")
    expect(_metadata.get_project_id(transport) == PROJECT, "another project")
    execute(client(base, compute_engine.Credentials()).zones().list(project=PROJECT), "ZoneList")


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
    sim(base, "PUT", "knobs", {"boot_s": 0.5, "delete_s": 0.3, "stop_s": 0.2, "operation_s": 0.1})
    credentials = google.auth.credentials.AnonymousCredentials()
    if status_without_token(base) == 401:
        key = sim(base, "GET", "service-account-key")
        credentials = google.oauth2.service_account.Credentials.from_service_account_info(key, scopes=SCOPES)
        run("tokens", lambda: check_tokens(base, credentials))
    cases = Cases(base, client(base, credentials))
    for case in CASES:
        run(case, getattr(cases, case))
    sim(base, "POST", "reset")
    print('"ok"')


if __name__ == "__main__":
    main()
