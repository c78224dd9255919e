//! Network: interfaces, public IPs and subnets.

pub mod nics;
pub mod public_ips;
pub mod subnets;
