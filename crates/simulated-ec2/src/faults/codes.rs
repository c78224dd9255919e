//! Codes of errors: their status, and the code that stands for a status or for throttling in each service.

use crate::server::call::Service;

/// The HTTP status of an error with this code.
pub fn status(code: &str) -> u16 {
    match code {
        "AuthFailure" => 401,
        "UnauthorizedOperation"
        | "OptInRequired"
        | "Blocked"
        | "PendingVerification"
        | "SignatureDoesNotMatch"
        | "InvalidClientTokenId"
        | "InvalidAccessKeyId"
        | "AccessDenied"
        | "MissingAuthenticationToken"
        | "UnrecognizedClientException"
        | "RequestTimeTooSkewed" => 403,
        "NoSuchBucket" | "NoSuchKey" | "NoSuchUpload" | "ResourceNotFoundException" => 404,
        "MethodNotAllowed" => 405,
        "BucketAlreadyOwnedByYou" | "BucketNotEmpty" | "ConflictException" => 409,
        "DryRunOperation" | "PreconditionFailed" => 412,
        "InvalidRange" => 416,
        "TooManyRequestsException" => 429,
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientAddressCapacity"
        | "InsufficientVolumeCapacity"
        | "InternalError"
        | "InternalFailure"
        | "InternalServerException"
        | "ServiceException" => 500,
        "RequestLimitExceeded" | "Unavailable" | "ServiceUnavailable" | "SlowDown" | "Server.ServiceUnavailable" => 503,
        _ => 400,
    }
}

/// The code of an error with this status.
pub fn code(status: u16, service: Service) -> &'static str {
    match (status, service) {
        (400, Service::Ec2) => "InvalidParameterValue",
        (400, Service::S3) => "InvalidArgument",
        (400, _) => "ValidationException",
        (401, _) => "AuthFailure",
        (403, Service::Ec2) => "UnauthorizedOperation",
        (403, Service::S3 | Service::Sts) => "AccessDenied",
        (403, _) => "AccessDeniedException",
        (404, Service::S3) => "NoSuchKey",
        (404, _) => "ResourceNotFoundException",
        (429, _) => "TooManyRequestsException",
        (402..=499, _) => "InvalidRequest",
        (500, Service::Ec2 | Service::S3) => "InternalError",
        (500, _) => "InternalServerException",
        (503, Service::Ec2) => "Unavailable",
        _ => "ServiceUnavailable",
    }
}

/// The code of a throttled call.
pub fn throttled(service: Service) -> &'static str {
    match service {
        Service::Ec2 => "RequestLimitExceeded",
        Service::S3 => "SlowDown",
        Service::Ebs => "RequestThrottledException",
        Service::Quotas => "TooManyRequestsException",
        Service::Sts | Service::Metadata | Service::Control => "Throttling",
    }
}

/// The message that AWS sends most often with a code.
pub fn message(code: &str) -> String {
    let text = match code {
        "RequestLimitExceeded" => "Request limit exceeded.",
        "SlowDown" => "Please reduce your request rate.",
        "Throttling" | "RequestThrottledException" | "TooManyRequestsException" => "Rate exceeded",
        "UnauthorizedOperation" => {
            "You are not authorized to perform this operation. Encoded authorization failure message: c2ltdWxhdGVk"
        }
        "AuthFailure" => "AWS was not able to validate the provided access credentials",
        "InsufficientInstanceCapacity" => {
            "We currently do not have sufficient capacity in the Availability Zone you requested. Our system will be \
             working on provisioning additional capacity."
        }
        "Unavailable" | "ServiceUnavailable" => "The service is unavailable. Please try again shortly.",
        "InternalError" | "InternalServerException" => "An internal error has occurred",
        "VolumeLimitExceeded" => "You have exceeded the maximum gp3 storage limit",
        "VcpuLimitExceeded" => "You have requested more vCPU capacity than your current vCPU limit allows.",
        "MaxSpotInstanceCountExceeded" => "Max spot instance count exceeded",
        _ => return format!("injected fault {code}"),
    };
    text.to_owned()
}

/// The message of a state reason, as DescribeInstances shows it.
pub fn state_reason(code: &str) -> String {
    let text = match code {
        "Client.UserInitiatedShutdown" => "User initiated shutdown",
        "Client.VolumeLimitExceeded" => "Volume limit exceeded",
        "Client.InternalError" => "Client error on launch",
        "Client.InvalidSnapshot.NotFound" => "The specified snapshot was not found",
        "Server.InternalError" => "Internal error on launch",
        "Server.InsufficientInstanceCapacity" => "Insufficient capacity to launch the instance",
        "Server.SpotInstanceTermination" => "Spot instance termination",
        "Server.SpotInstanceShutdown" => "Spot instance shutdown",
        _ => "The instance ended",
    };
    format!("{code}: {text}")
}
