//! Codes of errors: their status, the code that stands for a status, and the message that Azure sends most often.

/// The HTTP status of an error with this code.
pub fn status(code: &str) -> u16 {
    match code {
        "AuthenticationFailed"
        | "ExpiredAuthenticationToken"
        | "InvalidAuthenticationToken"
        | "InvalidAuthenticationTokenTenant" => 401,
        "AuthorizationFailed" | "RequestDisallowedByPolicy" | "LinkedAuthorizationFailed" => 403,
        "ResourceNotFound"
        | "ResourceGroupNotFound"
        | "SubscriptionNotFound"
        | "NotFound"
        | "ImageNotFound"
        | "GalleryImageNotFound"
        | "PlatformImageNotFound"
        | "InvalidResourceNamespace" => 404,
        "MethodNotAllowed" => 405,
        "OperationNotAllowed"
        | "QuotaExceeded"
        | "SkuNotAvailable"
        | "AllocationFailed"
        | "ZonalAllocationFailed"
        | "OverconstrainedAllocationRequest"
        | "OverconstrainedZonalAllocationRequest"
        | "Conflict"
        | "ConflictingUserInput"
        | "OperationPreempted"
        | "AnotherOperationInProgress"
        | "PropertyChangeNotAllowed"
        | "ResourceGroupBeingDeleted"
        | "InvalidResourceLocation" => 409,
        "PreconditionFailed" => 412,
        "TooManyRequests" | "SubscriptionRequestsThrottled" | "ResourceRequestsThrottled" => 429,
        "InternalServerError" | "InternalExecutionError" | "InternalOperationError" => 500,
        "ServiceUnavailable" | "ServerTimeout" | "ServerBusy" => 503,
        "GatewayTimeout" => 504,
        _ => 400,
    }
}

/// The code of an error with this status.
pub fn code(status: u16) -> &'static str {
    match status {
        400 => "BadRequest",
        401 => "ExpiredAuthenticationToken",
        403 => "AuthorizationFailed",
        404 => "ResourceNotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        412 => "PreconditionFailed",
        429 => "TooManyRequests",
        402..=499 => "InvalidRequest",
        503 => "ServiceUnavailable",
        504 => "GatewayTimeout",
        _ => "InternalServerError",
    }
}

/// The message that Azure sends most often with a code.
pub fn message(code: &str) -> String {
    let text = match code {
        "TooManyRequests" | "ResourceRequestsThrottled" => {
            "The request is being throttled as the limit has been reached for the operation type."
        }
        "SubscriptionRequestsThrottled" => {
            "Number of requests for subscription has been exceeded the limit for time interval '01:00:00'. Please try \
             again later."
        }
        "AllocationFailed" => {
            "Allocation failed. We do not have sufficient capacity for the requested VM size in this region. Read more \
             about improving likelihood of allocation success at http://aka.ms/allocation-guidance"
        }
        "ZonalAllocationFailed" => {
            "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone. Read more \
             about improving likelihood of allocation success at http://aka.ms/allocation-guidance"
        }
        "OverconstrainedAllocationRequest" | "OverconstrainedZonalAllocationRequest" => {
            "Allocation failed. VM(s) with the following constraints cannot be allocated, because the condition is too \
             restrictive. Please remove some constraints and try again."
        }
        "SkuNotAvailable" => {
            "The requested VM size is currently not available in this location. Please try another size or deploy to a \
             different location or different zone."
        }
        "OperationNotAllowed" => {
            "Operation could not be completed as it results in exceeding approved Total Regional Cores quota. Submit a \
             request for Quota increase."
        }
        "AuthorizationFailed" => "The client does not have authorization to perform this action over the scope.",
        "ExpiredAuthenticationToken" => "The access token expiry is earlier than the current time.",
        "Conflict" | "AnotherOperationInProgress" => {
            "Another operation on this or dependent resource is in progress. To retry, try again later."
        }
        "OperationPreempted" => "The operation has been preempted by a more recent operation.",
        "InternalServerError" | "InternalExecutionError" => "An internal execution error occurred. Please retry later.",
        "ServiceUnavailable" => "The service is temporarily unavailable. Please try again later.",
        _ => return format!("injected fault {code}"),
    };
    text.to_owned()
}
