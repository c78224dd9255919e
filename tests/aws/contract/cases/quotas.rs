//! Service Quotas.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::contract::peer::Peer;

/// Values of all quotas of a service by their codes, in pages of this size.
async fn listed(peer: &Peer, action: &str, service: &str, size: usize) -> BTreeMap<String, f64> {
    let (mut quotas, mut token) = (BTreeMap::new(), Value::Null);
    loop {
        let mut parameters = json!({"ServiceCode": service, "MaxResults": size});
        if !token.is_null() {
            parameters["NextToken"] = token;
        }
        let mut answer = peer.quotas(action, parameters).await.expect_ok();
        let page = answer["Quotas"].as_array().unwrap();
        assert!(page.len() <= size, "{answer}");
        for quota in page {
            assert_eq!(quota["ServiceCode"], service);
            let code = quota["QuotaCode"].as_str().unwrap().to_owned();
            let repeated = quotas.insert(code, quota["Value"].as_f64().unwrap());
            assert_eq!(repeated, None, "{quota}");
        }
        token = answer["NextToken"].take();
        if token.is_null() {
            return quotas;
        }
    }
}

pub async fn values(peer: Arc<Peer>) {
    for action in ["ListServiceQuotas", "ListAWSDefaultServiceQuotas"] {
        let of_instances = listed(&peer, action, "ec2", 100).await;
        assert!(of_instances["L-1216C47A"] > 0.0, "{of_instances:?}");
        assert_eq!(listed(&peer, action, "ec2", 1).await, of_instances);
        let of_volumes = listed(&peer, action, "ebs", 100).await;
        assert!(of_volumes["L-7A658B76"] > 0.0, "{of_volumes:?}");
    }
}

pub async fn unknown(peer: Arc<Peer>) {
    let answer = peer.quotas("ListServiceQuotas", json!({"ServiceCode": "no-such-service"})).await;
    answer.expect_error("NoSuchResourceException");
}
