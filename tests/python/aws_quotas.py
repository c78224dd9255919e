"""Service Quotas with values that a test sets; moto 5.2.5 has none of EC2 and EBS."""

import json

from moto.core.exceptions import JsonRESTError
from moto.servicequotas.responses import ServiceQuotasResponse

from aws_knobs import KNOBS

PAGE = 100


class QuotasError(JsonRESTError):
    """An error with a status of its own."""

    def __init__(self, status, code, message):
        super().__init__(code, message)
        self.code = status


def listed(self, kind):
    if KNOBS["quotas"]["denied"]:
        action = "ListServiceQuotas" if kind == "applied" else "ListAWSDefaultServiceQuotas"
        text = f"User: arn:aws:iam::123456789012:user/nodepool is not authorized to perform: servicequotas:{action}"
        raise QuotasError(403, "AccessDeniedException", text)
    parameters = json.loads(self.body)
    service = parameters.get("ServiceCode")
    if service not in KNOBS["quotas"][kind]:
        raise QuotasError(400, "NoSuchResourceException", "The request failed because the service does not exist")
    values = sorted(KNOBS["quotas"][kind][service].items())
    start, limit = int(parameters.get("NextToken") or 0), parameters.get("MaxResults") or PAGE
    quotas = [
        {
            "ServiceCode": service, "ServiceName": service, "QuotaCode": code, "QuotaName": code, "Value": value,
            "Unit": "None", "Adjustable": True, "GlobalQuota": False,
            "QuotaArn": f"arn:aws:servicequotas:{self.region}:{self.current_account}:{service}/{code}",
        }
        for code, value in values[start:start + limit]
    ]
    answer = {"Quotas": quotas}
    if start + limit < len(values):
        answer["NextToken"] = str(start + limit)
    return json.dumps(answer)


def patch():
    ServiceQuotasResponse.list_service_quotas = lambda self: listed(self, "applied")
    ServiceQuotasResponse.list_aws_default_service_quotas = lambda self: listed(self, "default")
