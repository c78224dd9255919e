//! The JSON of `GET /sim/state`: the current resources and the counters.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cloud::cloud::Cloud;

impl Cloud {
    pub fn state_json(&self) -> Value {
        let mut by_state: BTreeMap<&str, u64> = BTreeMap::new();
        let mut deleting = 0_u64;
        for server in self.servers.values() {
            *by_state.entry(server.stage().status.name()).or_default() += 1;
            deleting += u64::from(server.stage().deleting);
        }
        let mut state = json!(self.stats);
        let associated = self.floating_ips.values().filter(|ip| ip.port.is_some()).count();
        let present = json!({
            "control": self.control_base, "seconds": self.now.as_secs_f64(),
            "servers": self.servers.len(), "servers_by_state": by_state,
            "servers_deleting": deleting, "cores": self.usage.cores, "ram_mib": self.usage.ram_mib,
            "ports": self.ports.len(), "ports_down": self.ports.values().filter(|port| !port.active).count(),
            "floating_ips": self.floating_ips.len(), "floating_ips_associated": associated,
            "volumes": self.volumes.len(), "images": self.images.len(), "tokens": self.tokens.len(),
        });
        let Value::Object(present) = present else { unreachable!("it was written as an object") };
        for (key, value) in present {
            state[key] = value;
        }
        state
    }
}
