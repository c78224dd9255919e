//! Service Quotas: lists of applied and default values.

use serde_json::{Value, json};

use crate::region::quotas::{Quota, defaults};
use crate::region::world::World;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};

/// Maximum number of quotas on a page.
const PAGE: usize = 100;

impl World {
    pub fn service_quotas(&self, call: &Call) -> ApiResult<Response> {
        let invalid = |text: String| ApiError::new("IllegalArgumentException", text);
        let input: Value = serde_json::from_slice(&call.body).map_err(|error| invalid(error.to_string()))?;
        if self.knobs.refuse_quotas {
            let text = format!(
                "User: arn:aws:iam::{}:user/simulated is not authorized to perform: servicequotas:{}",
                self.options.account, call.action
            );
            return Err(ApiError { status: 400, ..ApiError::new("AccessDeniedException", text) });
        }
        let service = input["ServiceCode"].as_str().unwrap_or_default();
        let mut quotas = defaults(service);
        if quotas.is_empty() {
            let text = "The specified service code doesn't exist.";
            return Err(ApiError::new("NoSuchResourceException", text));
        }
        let values = &self.knobs.quotas.0;
        if call.action != "ListAWSDefaultServiceQuotas" {
            for quota in &mut quotas {
                quota.value = values.get(quota.code).copied().unwrap_or(quota.value);
            }
        }
        match call.action.as_str() {
            "ListServiceQuotas" if self.knobs.list_changed_quotas => {
                quotas.retain(|quota| values.contains_key(quota.code));
                self.page(&input, call, &quotas)
            }
            "ListServiceQuotas" | "ListAWSDefaultServiceQuotas" => self.page(&input, call, &quotas),
            "GetServiceQuota" => {
                let code = input["QuotaCode"].as_str().unwrap_or_default();
                let unknown = || ApiError::new("NoSuchResourceException", "The specified quota doesn't exist.");
                let quota = quotas.iter().find(|quota| quota.code == code).ok_or_else(unknown)?;
                Ok(response(&json!({"Quota": self.quota_json(quota, call)})))
            }
            action => Err(ApiError::new("UnknownOperationException", format!("unknown action {action}"))),
        }
    }

    fn page(&self, input: &Value, call: &Call, quotas: &[Quota]) -> ApiResult<Response> {
        let start = match input["NextToken"].as_str() {
            None => 0,
            Some(token) => token
                .strip_prefix("page-from-")
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| ApiError::new("InvalidPaginationTokenException", "The pagination token is not valid"))?,
        };
        let wanted = input["MaxResults"].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(PAGE);
        let limit = if self.knobs.page_limit == 0 { PAGE } else { self.knobs.page_limit };
        let end = quotas.len().min(start + wanted.clamp(1, PAGE).min(limit));
        let listed = quotas.get(start..end).unwrap_or_default();
        let mut output = json!({"Quotas": listed.iter().map(|one| self.quota_json(one, call)).collect::<Vec<_>>()});
        if end < quotas.len() {
            output["NextToken"] = json!(format!("page-from-{end}"));
        }
        Ok(response(&output))
    }

    fn quota_json(&self, quota: &Quota, call: &Call) -> Value {
        let Quota { service, code, name, value } = quota;
        let arn = format!("arn:aws:servicequotas:{}:{}:{service}/{code}", call.region, self.options.account);
        json!({
            "ServiceCode": service, "ServiceName": service.to_uppercase(), "QuotaArn": arn, "QuotaCode": code,
            "QuotaName": name, "Value": value, "Unit": "None", "Adjustable": true, "GlobalQuota": false,
        })
    }
}

fn response(body: &Value) -> Response {
    Response::new(200, "application/x-amz-json-1.1", body.to_string())
}
