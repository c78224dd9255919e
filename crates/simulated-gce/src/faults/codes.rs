//! Reasons of errors with their status and message, and the codes of operations' errors.

/// The HTTP status of an error with this reason.
pub fn status(reason: &str) -> u16 {
    match reason {
        "authError" | "required" => 401,
        "forbidden"
        | "accessNotConfigured"
        | "insufficientPermissions"
        | "quotaExceeded"
        | "rateLimitExceeded"
        | "userRateLimitExceeded" => 403,
        "notFound" => 404,
        "alreadyExists" | "conflict" => 409,
        "conditionNotMet" => 412,
        "internalError" => 500,
        "backendError" => 503,
        _ => 400,
    }
}

/// The reason of an error with this status.
pub fn reason(status: u16) -> &'static str {
    match status {
        401 => "authError",
        403 => "forbidden",
        404 => "notFound",
        409 => "alreadyExists",
        412 => "conditionNotMet",
        429 => "rateLimitExceeded",
        400..=499 => "invalid",
        500 => "internalError",
        _ => "backendError",
    }
}

pub fn domain(reason: &str) -> &'static str {
    match reason {
        "accessNotConfigured" | "rateLimitExceeded" | "userRateLimitExceeded" => "usageLimits",
        _ => "global",
    }
}

/// The status of gRPC, which only the front end of Google's APIs adds: for credentials, rates and its own failures.
pub fn rpc_status(status: u16, reason: &str) -> Option<&'static str> {
    match (status, reason) {
        (401, _) => Some("UNAUTHENTICATED"),
        (429, _) => Some("RESOURCE_EXHAUSTED"),
        (403, "accessNotConfigured" | "rateLimitExceeded" | "userRateLimitExceeded") => Some("PERMISSION_DENIED"),
        (400, "badRequest") => Some("INVALID_ARGUMENT"),
        (503, _) => Some("UNAVAILABLE"),
        _ => None,
    }
}

/// The message that Google sends most often with a reason.
pub fn message(reason: &str) -> String {
    let text = match reason {
        "authError" => {
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other \
             valid authentication credential. \
             See https://developers.google.com/identity/sign-in/web/devconsole-project."
        }
        "required" => {
            "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or \
             other valid authentication credential. \
             See https://developers.google.com/identity/sign-in/web/devconsole-project."
        }
        "forbidden" => "Required 'compute.instances.list' permission for 'projects/simulated'",
        "accessNotConfigured" => {
            "Compute Engine API has not been used in project 1000000000001 before or it is disabled. Enable it by \
             visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview then retry."
        }
        "quotaExceeded" => "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1.",
        "rateLimitExceeded" | "userRateLimitExceeded" => {
            "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service \
             'compute.googleapis.com' for consumer 'project_number:1000000000001'."
        }
        "backendError" => "The service is currently unavailable.",
        "internalError" => "Internal error. Please try again or contact Google Support. (Code: '5F2C1D8E7B3A4')",
        _ => return format!("injected fault {reason}"),
    };
    text.to_owned()
}

/// HTTP status and message of an operation that ended with this code.
pub fn operation_status(code: &str) -> (u16, &'static str) {
    match code {
        "QUOTA_EXCEEDED" | "PERMISSIONS_ERROR" => (403, "FORBIDDEN"),
        "RESOURCE_NOT_FOUND" => (404, "NOT FOUND"),
        "RESOURCE_ALREADY_EXISTS" => (409, "CONFLICT"),
        "INTERNAL_ERROR" => (500, "INTERNAL SERVER ERROR"),
        code if is_shortage(code) => (503, "SERVICE UNAVAILABLE"),
        _ => (400, "BAD REQUEST"),
    }
}

/// Whether the code says that a zone has no capacity.
pub fn is_shortage(code: &str) -> bool {
    code.contains("RESOURCE_POOL_EXHAUSTED") || code == "STOCKOUT"
}

/// The message of an operation that ended with this code. `zone` is the path of the zone.
pub fn operation_message(code: &str, zone: &str, target: &str) -> String {
    match code {
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" => format!(
            "The zone '{zone}' does not have enough resources available to fulfill the request.  '(resource \
             type:compute)'."
        ),
        code if is_shortage(code) => format!(
            "The zone '{zone}' does not have enough resources available to fulfill the request.  Try a different zone, \
             or try again later."
        ),
        "QUOTA_EXCEEDED" => "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1.".to_owned(),
        "RESOURCE_NOT_FOUND" => format!("The resource '{target}' was not found"),
        "RESOURCE_ALREADY_EXISTS" => format!("The resource '{target}' already exists"),
        "OPERATION_CANCELED_BY_USER" => "The operation was canceled by the user.".to_owned(),
        "INTERNAL_ERROR" => message("internalError"),
        _ => format!("injected fault {code}"),
    }
}
