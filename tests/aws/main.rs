//! The driver aws, and the AWS that its tests use: the driver of Nodepool 11 on moto, and one contract for moto and the
//! simulated EC2.

mod contract;
mod crashes;
mod credentials;
mod diskimage_builder;
mod driver;
mod ec2;
mod faults;
mod images;
mod launcher;
mod launcher_harness;
mod leaks;
mod nodepool11;
mod secrets;
mod simulated;
mod uploads;
mod zuul;
