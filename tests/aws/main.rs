//! The driver aws, and the AWS that its tests use: the driver of Nodepool 11 on moto, and one contract for moto and any
//! simulation.

mod contract;
mod driver;
mod ec2;
mod faults;
mod images;
mod nodepool11;
mod secrets;
mod uploads;
