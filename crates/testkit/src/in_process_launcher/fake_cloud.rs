//! Launchers with a provider of the fake cloud: their configurations and registrations.

use super::{Consumer, InProcessDaemon, until, zookeeper};
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::json;
use nodepool_zk::memory::MemoryZooKeeper;
use serde_json::{Value, json};

/// A provider of the fake cloud with one pool, which has the labels `a` and `b`. The keys are added to the sections of
/// the provider and of the pool.
pub fn provider(name: &str, provider_keys: Value, pool_keys: Value) -> Value {
    let label = |name: &str, flavor: &str| json!({"name": name, "cloud-image": "image", "flavor-name": flavor});
    let mut pool = json!({"name": "main", "labels": [label("a", "Fake Flavor"), label("b", "Unreal Flavor")]});
    merge(&mut pool, pool_keys);
    let images = json!([{"name": "image", "image-name": "Fake Precise", "username": "zuul"}]);
    let mut provider =
        json!({"name": name, "driver": "fake", "cloud": "fake", "cloud-images": images, "pools": [pool]});
    merge(&mut provider, provider_keys);
    provider
}

pub fn merge(to: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("the keys to add must be a mapping: {more}") };
    to.as_object_mut().expect("a section is a mapping").extend(more);
}

/// A configuration of these providers, with the labels `a` and `b`.
pub fn configuration(providers: &[Value]) -> Value {
    let labels = json!([{"name": "a"}, {"name": "b"}]);
    json!({"zookeeper-servers": [{"host": "localhost"}], "labels": labels, "providers": providers})
}

/// The configuration of one provider.
pub fn single_provider(provider_keys: Value, pool_keys: Value) -> Value {
    configuration(&[provider("lab", provider_keys, pool_keys)])
}

/// A launcher whose pools are registered.
pub async fn start_fake_launcher(configuration: &Value) -> (MemoryZooKeeper, Consumer, InProcessDaemon) {
    let zookeeper = zookeeper();
    let consumer = Consumer::of(&zookeeper);
    let mut process = InProcessDaemon::new(&configuration.to_string());
    process.run(&zookeeper);
    let providers = configuration["providers"].as_array().into_iter().flatten();
    let pools: usize = providers.map(|provider| provider["pools"].as_array().map_or(0, Vec::len)).sum();
    until("its pools to be registered", async || consumer.count("/nodepool/components/pool").await == pools).await;
    (zookeeper, consumer, process)
}

/// Whether a pool is registered as paused.
pub async fn is_paused(consumer: &Consumer, pool: &str) -> bool {
    registration(consumer, pool).await.0.paused
}

/// The registration of a pool, and the number of its changes.
pub async fn registration(consumer: &Consumer, pool: &str) -> (PoolComponent, i32) {
    let (names, _) = consumer.zk.children("/nodepool/components/pool").await.unwrap();
    for name in names {
        let (data, stat) = consumer.zk.get(&format!("/nodepool/components/pool/{name}")).await.unwrap();
        let component: PoolComponent = json::from_bytes(&data).unwrap();
        if component.name.as_ref().is_some_and(|name| name.as_str() == pool) {
            return (component, stat.version);
        }
    }
    panic!("no pool {pool} is registered");
}

/// The configuration of a pool `main` with the label `small`. The keys are added to the sections of the provider, the
/// pool and the label.
pub fn small_label_configuration(of_provider: &str, of_pool: &str, of_label: &str) -> String {
    format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: small}}, {{name: other}}]\nproviders:\n  - name: lab\n    \
         driver: fake\n    cloud: fake\n{of_provider}    cloud-images:\n      - {{name: image, image-name: Fake Precise}}\n      \
         - {{name: by-id, image-id: some-id}}\n      - {{name: missing}}\n    pools:\n      - name: main\n{of_pool}        \
         labels:\n          - {{name: small, cloud-image: image, flavor-name: Fake Flavor{of_label}}}\n"
    )
}
