//! Codes of errors with their status and message, and the reasons of instances and images that failed.

/// The HTTP status of an error with this code.
pub fn status(code: &str) -> u16 {
    match code {
        "not_authorized" | "token_missing" | "token_invalid" => 401,
        "over_quota" | "forbidden" => 403,
        "not_found" | "invalid_route" => 404,
        "invalid_state" | "instance_delete_conflict" | "floating_ip_in_use" | "target_in_use" | "volume_in_use" => 409,
        "too_many_requests" => 429,
        "internal_error" => 500,
        "service_unavailable" | "insufficient_capacity" => 503,
        _ => 400,
    }
}

/// The code of an error with this status.
pub fn code(status: u16) -> &'static str {
    match status {
        401 => "not_authorized",
        403 => "forbidden",
        404 => "not_found",
        409 => "invalid_state",
        429 => "too_many_requests",
        400..=499 => "bad_request",
        500 => "internal_error",
        _ => "service_unavailable",
    }
}

/// The message of an error with this code, as IBM's documentation has it.
pub fn message(code: &str) -> String {
    let text = match code {
        "not_authorized" => "The request is not authorized.",
        "token_missing" => "The service token was empty or did not exist in the request.",
        "token_invalid" => "The service token was expired or invalid.",
        "forbidden" => "You are not authorized to perform this operation.",
        "over_quota" => "The request would exceed the quota for a resource type.",
        "not_found" => "Please check whether the resource you are requesting exists.",
        "invalid_route" => "The requested route does not exist.",
        "invalid_state" => {
            "An action was requested on a resource which is not supported at the current status of the resource."
        }
        "instance_delete_conflict" => "The instance cannot be deleted in the current status.",
        "floating_ip_in_use" => "The floating IP is in use.",
        "target_in_use" => "The target already has floating IP attached.",
        "volume_in_use" => "The volume is in use.",
        "too_many_requests" => "Too many requests. Please retry later.",
        "internal_error" => "An internal error occurred.",
        "service_unavailable" => "The service is temporarily unavailable. Please retry later.",
        "insufficient_capacity" => "Insufficient capacity in the selected zone.",
        "invalid_zone" => "Please check whether the resources you are requesting are in the same zone.",
        "missing_version" => "The `version` parameter is required, and it must be of the form `YYYY-MM-DD`.",
        "invalid_version" => "The `version` parameter is invalid, it must be of the form `YYYY-MM-DD`.",
        "invalid_version_range" => "The `version` value cannot be set at a future date nor before `2019-01-01`.",
        "missing_generation_parameter" => "The generation query parameter is required.",
        "invalid_generation_parameter" => "The generation query parameter is invalid.",
        "invalid_action_for_public_image" => "The action cannot be performed on a public image.",
        "operating_system_restricted" => "You cannot use this operating system to create a custom image.",
        "subnet_out_of_ip_addresses" => "There are no more IP addresses available in the subnet.",
        _ => return format!("injected fault {code}"),
    };
    text.to_owned()
}

/// The codes of an instance's `status_reasons`.
pub const INSTANCE_REASONS: [&str; 13] = [
    "cannot_start",
    "cannot_start_capacity",
    "cannot_start_compute",
    "cannot_start_ip_address",
    "cannot_start_network",
    "cannot_start_placement_group",
    "cannot_start_reservation_capacity",
    "cannot_start_reservation_expired",
    "cannot_start_storage",
    "encryption_key_deleted",
    "stopped_by_host_failure",
    "stopped_by_preemption",
    "stopped_for_image_creation",
];

/// The codes of an image's `status_reasons`.
pub const IMAGE_REASONS: [&str; 7] = [
    "encrypted_data_key_invalid",
    "encryption_key_deleted",
    "encryption_key_disabled",
    "image_data_corrupted",
    "image_provisioned_size_unsupported",
    "image_request_in_progress",
    "image_request_queued",
];

/// The message of a reason in `status_reasons`.
pub fn reason_message(code: &str) -> &'static str {
    match code {
        "cannot_start_capacity" => "Can't start instance because resource capacity is unavailable.",
        "cannot_start_reservation_capacity" => {
            "Can't start instance because the reservation has no capacity available."
        }
        "cannot_start_reservation_expired" => "Can't start instance because the reservation has expired.",
        "cannot_start_network" => "Can't start instance because network resources can't be provisioned.",
        "cannot_start_ip_address" => "Can't start instance because the network interface IP address isn't available.",
        "cannot_start_storage" => "Can't start instance because storage wasn't provisioned.",
        "cannot_start_placement_group" => "Can't start instance in the placement group.",
        "encryption_key_deleted" => "Instance can't start because the encryption key for the boot volume was deleted.",
        "stopped_by_host_failure" => "Host not responding: instance stopped.",
        "stopped_by_preemption" => "Instance was stopped by preemption.",
        "stopped_for_image_creation" => "Instance was stopped because a new image was created.",
        "image_data_corrupted" => "The image file could not be read, or is not a valid image.",
        "image_provisioned_size_unsupported" => "The provisioned size of the image is not supported.",
        "image_request_in_progress" => "The image request is in progress.",
        "image_request_queued" => "The image request is queued.",
        "encrypted_data_key_invalid" => "The encrypted data key is not valid.",
        "encryption_key_disabled" => "The encryption key is disabled.",
        _ => "Can't start instance because provisioning failed.",
    }
}
