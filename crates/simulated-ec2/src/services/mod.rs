//! The services besides EC2: S3, EBS direct, Service Quotas, STS, and the credentials of instances and containers.

pub mod bucket;
pub mod ebs;
pub mod metadata;
pub mod quotas;
pub mod s3;
pub mod s3_uploads;
pub mod sts;
