//! The section of a kubernetes provider: its labels as bodies of pods, with what one node of each needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::calls::{GRACE_PERIOD_S, Source};
use super::names::{is_dns_label, is_label_key, is_label_value};
use super::objects::Access;
use super::quantity;
use super::variant::Variant;
use nodepool_driver::facts::{LaunchConfig, LaunchLabel, Login, Unavailable};
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, PoolName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::tree::{YamlKey, YamlNode, YamlValue};

/// Time for one attempt. Nodepool 11 waits 30 s for the token of the account and 300 s for a running pod.
const LAUNCH_TIMEOUT: Seconds = Seconds(330.0);
const DEFAULT_ATTEMPTS: i64 = 3;
/// The node id after the name of the pool in the name of a namespace.
const NODE_ID_LENGTH: usize = 11;
const MIB: f64 = 1_048_576.0;
const MB: f64 = 1e6;
/// The longest name of a namespace.
const MAX_NAME_LENGTH: usize = 63;

/// A parsed section.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The context of the kubeconfig; `None` is its current one.
    pub context: Option<String>,
    attempts: u32,
    pub variant: Variant,
    pub pools: BTreeMap<PoolName, BTreeMap<LabelName, Arc<PodLabel>>>,
    /// The objects that an inventory consists of.
    pub sources: Vec<Source>,
}

/// One label of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PodLabel {
    pub name: LabelName,
    /// The pod's specification; `None` for a label of whole namespaces.
    pub pod_spec: Option<Value>,
    pub labels: BTreeMap<String, String>,
    /// Labels with fields of the request in braces.
    pub dynamic_labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub python_path: Option<String>,
    pub shell_type: Option<String>,
    pub need: Resources,
    /// Why no node of this label can be launched.
    problem: Option<String>,
}

impl PodLabel {
    pub fn access(&self) -> Access {
        if self.pod_spec.is_some() { Access::Pod } else { Access::Whole }
    }
}

impl Settings {
    pub fn launch_config(&self) -> LaunchConfig {
        let label = |label: &Arc<PodLabel>| LaunchLabel {
            need: Some(label.need.clone()),
            image: None,
            // The connection is known only after the launch.
            login: Login { connection_port: 22, ..Login::default() },
            host_key_checking: false,
            console_log: false,
            unavailable: label.problem.clone().map(Unavailable::Permanent),
            backing: None,
        };
        let pools = self.pools.iter().map(|(pool, labels)| {
            (pool.clone(), labels.iter().map(|(name, of_pool)| (name.clone(), label(of_pool))).collect())
        });
        LaunchConfig {
            attempts: self.attempts,
            timeout: LAUNCH_TIMEOUT,
            boot_timeout: LAUNCH_TIMEOUT,
            zones: Vec::new(),
            resource_kinds: Vec::new(),
            labels: pools.collect(),
        }
    }
}

pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Settings {
    let node = &provider.section;
    let attempts = diagnostics.or_default(node.integer("launch-retries")).unwrap_or(DEFAULT_ATTEMPTS).clamp(1, 1000);
    let variant = Variant::of_driver(&provider.driver);
    let pools = provider.pools.values().map(|pool| (pool.name.clone(), labels(pool, variant, diagnostics)));
    let pools: BTreeMap<PoolName, BTreeMap<LabelName, Arc<PodLabel>>> = pools.collect();
    let context = diagnostics.or_default(node.text("context"));
    if variant.is_openshift() && context.is_none() {
        let help = "add `context: NAME`, a context of the kubeconfig";
        diagnostics.error(node.at, format!("provider {} has no context", provider.name), help);
    }
    let has_pods = pools.values().flat_map(BTreeMap::values).any(|label| label.pod_spec.is_some());
    let sources = match variant {
        Variant::Kubernetes if has_pods => vec![Source::Namespaces, Source::Pods],
        Variant::Kubernetes => vec![Source::Namespaces],
        Variant::OpenShift => vec![Source::Projects],
        Variant::OpenShiftPods => pools.keys().map(|project| Source::PodsOf(project.to_string())).collect(),
    };
    Settings { context, attempts: attempts as u32, variant, pools, sources }
}

fn labels(pool: &PoolConfig, variant: Variant, diagnostics: &mut Diagnostics) -> BTreeMap<LabelName, Arc<PodLabel>> {
    let section = &pool.section;
    let mut pool_problem = None;
    let (suffix, part) = match variant {
        Variant::Kubernetes | Variant::OpenShift => (NODE_ID_LENGTH, "part of"),
        Variant::OpenShiftPods => (0, "all of"),
    };
    if !is_dns_label(pool.name.as_str()) || pool.name.as_str().len() + suffix > MAX_NAME_LENGTH {
        let at = section.get("name").map_or(section.at, |name| name.at);
        let problem = format!("pool {} cannot be {part} a {}'s name", pool.name, variant.home_word());
        let longest = MAX_NAME_LENGTH - suffix;
        let help =
            format!("use at most {longest} lower-case letters, digits and hyphens; all its labels are out of service");
        diagnostics.warning(at, problem.clone(), help);
        pool_problem = Some(problem);
    }
    let defaults = PoolDefaults::read(section, diagnostics);
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(section, "labels", "a label") {
        let Some(name) = diagnostics.required(node, "name", "a label").map(LabelName::from) else { continue };
        let mut reader = LabelReader { node, name: &name, variant, diagnostics, problem: pool_problem.clone() };
        let label = reader.read(&defaults);
        labels.insert(name, Arc::new(label));
    }
    labels
}

/// The `default-label-…` keys of a pool.
struct PoolDefaults {
    requests: [Option<i64>; 3],
    limits: [Option<i64>; 3],
    extra_resources: BTreeMap<String, i64>,
}

/// Resources of containers: the key of a label, the name in Kubernetes and its unit, the name in Nodepool.
const RESOURCES: [(&str, &str, &str, &str); 3] = [
    ("cpu", "cpu", "", "cores"),
    ("memory", "memory", "Mi", "ram"),
    ("storage", "ephemeral-storage", "M", "ephemeral-storage"),
];

impl PoolDefaults {
    fn read(section: &YamlNode, diagnostics: &mut Diagnostics) -> Self {
        let mut integers = |suffix: &str| {
            RESOURCES.map(|(key, ..)| {
                diagnostics
                    .or_default(section.integer(&format!("default-label-{key}{suffix}")))
                    .filter(|amount| *amount != 0)
            })
        };
        let (requests, limits) = (integers(""), integers("-limit"));
        // The loader of Nodepool 11 reads only the misspelt key.
        let mut extra_resources = counts(section, "default-label-extra_resources", diagnostics);
        extra_resources.extend(counts(section, "default-label-extra-resources", diagnostics));
        Self { requests, limits, extra_resources }
    }
}

fn counts(node: &YamlNode, key: &str, diagnostics: &mut Diagnostics) -> BTreeMap<String, i64> {
    let entries = diagnostics.or_default(node.map(key).map(<[_]>::to_vec));
    let count = |(key, value): &(YamlKey, YamlNode)| match value.value {
        YamlValue::Int(count) => Some((key.text.clone(), count)),
        _ => None,
    };
    entries.iter().filter_map(count).collect()
}

/// Reads one label. What Kubernetes would refuse at each launch puts the label out of service.
struct LabelReader<'a, 'd> {
    node: &'a YamlNode,
    name: &'a LabelName,
    variant: Variant,
    diagnostics: &'d mut Diagnostics,
    problem: Option<String>,
}

impl LabelReader<'_, '_> {
    fn read(&mut self, defaults: &PoolDefaults) -> PodLabel {
        let is_pod = self.is_pod();
        self.check_name(is_pod);
        let (requests, limits) = (self.amounts("", &defaults.requests), self.limits(defaults));
        // The records of Nodepool 11 always have these, also as 0.
        let mut need = Resources::none().with("instances", 1.0).with("cores", 0.0).with("ram", 0.0);
        for ((_, _, _, name), amount) in RESOURCES.iter().zip(requests) {
            need = amount.map_or(need.clone(), |amount| need.with(name, amount as f64));
        }
        let mut extra = defaults.extra_resources.clone();
        extra.extend(counts(self.node, "extra-resources", self.diagnostics));
        extra.iter().for_each(|(name, count)| need.set(name, *count as f64));
        let spec = self.node.given("spec").map(YamlNode::to_json);
        if let (Some(spec), true) = (&spec, requests.iter().all(Option::is_none)) {
            add_requests(&mut need, spec);
        }
        let gpu = self.gpu();
        if let (Some((resource, amount)), None) = (&gpu, &spec) {
            need.set(resource, *amount);
        }
        let pod_spec = is_pod.then(|| spec.unwrap_or_else(|| self.generated_spec(&requests, &limits, &gpu)));
        PodLabel {
            name: self.name.clone(),
            pod_spec,
            labels: self.label_texts("labels", true),
            dynamic_labels: self.label_texts("dynamic-labels", false),
            annotations: self.label_texts("annotations", false),
            python_path: Some(self.text("python-path").unwrap_or_else(|| "auto".to_owned())),
            shell_type: self.text("shell-type"),
            need,
            problem: self.problem.take(),
        }
    }

    fn is_pod(&mut self) -> bool {
        let Some(whole) = self.variant.whole_type() else { return true };
        let kind = self.text("type").unwrap_or_else(|| "pod".to_owned());
        // The drivers of Nodepool 11 know only one of the two types and take everything else for the other.
        let is_pod = if self.variant == Variant::Kubernetes { kind != whole } else { kind == "pod" };
        if kind != whole && kind != "pod" {
            let taken = if is_pod { "pod" } else { whole };
            let help = format!("write pod or {whole}");
            self.diagnostics.warning(self.at("type"), format!("type {kind} is treated as {taken}"), help);
        }
        is_pod
    }

    fn at(&self, key: &str) -> python_yaml::tree::Position {
        self.node.get(key).map_or(self.node.at, |value| value.at)
    }

    fn text(&mut self, key: &str) -> Option<String> {
        self.diagnostics.or_default(self.node.text(key))
    }

    /// Puts the label out of service.
    fn refuse(&mut self, at: python_yaml::tree::Position, problem: String, help: &str) {
        let help = format!("{help}; label {} is out of service", self.name);
        self.diagnostics.warning(at, problem.clone(), help);
        self.problem.get_or_insert(problem);
    }

    fn check_name(&mut self, is_pod: bool) {
        let name = self.name.as_str();
        if is_pod && !is_dns_label(name) {
            let help =
                "a pod's label is also the name of the pod: use at most 63 lower-case letters, digits and hyphens";
            self.refuse(self.at("name"), format!("Kubernetes accepts no pod of the name {name}"), help);
        } else if !is_label_value(name) {
            let help = "use at most 63 letters, digits, `-`, `_` and `.`";
            self.refuse(self.at("name"), format!("Kubernetes accepts no label of the value {name}"), help);
        }
    }

    /// The amounts of the label, or those of the pool. Zero is absent.
    fn amounts(&mut self, suffix: &str, defaults: &[Option<i64>; 3]) -> [Option<i64>; 3] {
        let mut amounts = *defaults;
        for ((key, ..), amount) in RESOURCES.iter().zip(&mut amounts) {
            let own = self.diagnostics.or_default(self.node.integer(&format!("{key}{suffix}")));
            *amount = own.or(*amount).filter(|amount| *amount != 0);
        }
        amounts
    }

    /// A request without a limit is also the limit.
    fn limits(&mut self, defaults: &PoolDefaults) -> [Option<i64>; 3] {
        let (own, requests) = (self.amounts("-limit", &defaults.limits), self.amounts("", &defaults.requests));
        std::array::from_fn(|index| own[index].or(requests[index]))
    }

    fn gpu(&mut self) -> Option<(String, f64)> {
        let amount = self.diagnostics.or_default(self.node.number("gpu")).filter(|amount| *amount != 0.0)?;
        let Some(resource) = self.text("gpu-resource") else {
            self.diagnostics.warning(self.at("gpu"), "gpu has no effect", "name the resource: gpu-resource");
            return None;
        };
        if amount.fract() != 0.0 {
            let help = "most device plugins accept whole numbers only";
            self.diagnostics.warning(self.at("gpu"), format!("gpu is {amount}, not a whole number"), help);
        }
        Some((resource, amount))
    }

    /// The specification of a pod with one container, which waits.
    fn generated_spec(
        &mut self,
        requests: &[Option<i64>; 3],
        limits: &[Option<i64>; 3],
        gpu: &Option<(String, f64)>,
    ) -> Value {
        let Some(image) = self.text("image") else {
            self.refuse(self.node.at, format!("label {} has no image", self.name), "add `image` or `spec`");
            return Value::Null;
        };
        let pull = self.text("image-pull").unwrap_or_else(|| "IfNotPresent".to_owned());
        let mut container = json!({
            "name": self.name, "image": image, "imagePullPolicy": pull, "command": ["/bin/sh", "-c"],
            "args": ["while true; do sleep 30; done;"],
            "env": self.node.given("env").map_or(json!([]), YamlNode::to_json),
        });
        let mut resources = Map::new();
        for (kind, amounts) in [("requests", requests), ("limits", limits)] {
            let mut own = Map::new();
            for ((_, name, unit, _), amount) in RESOURCES.iter().zip(amounts) {
                if let Some(amount) = amount {
                    let quantity = if unit.is_empty() { (*amount).into() } else { format!("{amount}{unit}").into() };
                    own.insert((*name).to_owned(), quantity);
                }
            }
            if let Some((resource, amount)) = gpu {
                own.insert(resource.clone(), format!("{amount:.2}").into());
            }
            if !own.is_empty() {
                resources.insert(kind.to_owned(), own.into());
            }
        }
        if !resources.is_empty() {
            container["resources"] = resources.into();
        }
        let given = |key: &str| self.node.given(key).filter(|node| node.is_truthy()).map(YamlNode::to_json);
        if let Some(mounts) = given("volume-mounts") {
            container["volumeMounts"] = mounts;
        }
        if let Some(privileged) = self.node.boolean("privileged") {
            container["securityContext"] = json!({"privileged": privileged});
        }
        let mut spec = json!({"containers": [container], "terminationGracePeriodSeconds": GRACE_PERIOD_S});
        if self.variant.is_openshift() {
            // Also sent if empty, as Nodepool 11 does.
            spec["imagePullSecrets"] = self.node.given("image-pull-secrets").map_or(json!([]), YamlNode::to_json);
        }
        for (key, name) in
            [("node-selector", "nodeSelector"), ("scheduler-name", "schedulerName"), ("volumes", "volumes")]
        {
            if let Some(value) = given(key) {
                spec[name] = value;
            }
        }
        spec
    }

    /// A mapping of texts. Kubernetes refuses other types of values, so numbers and booleans become texts.
    fn label_texts(&mut self, key: &str, is_checked: bool) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for (name, value) in self.diagnostics.or_default(self.node.map(key).map(<[_]>::to_vec)) {
            let Some(text) = value.scalar_text() else {
                self.diagnostics.warning(value.at, format!("{key}: {} has no text", name.text), "it is left out");
                continue;
            };
            if value.as_text().is_none() {
                let help = format!("write \"{text}\" in quotes");
                self.diagnostics.warning(value.at, format!("{key}: {} is not a text", name.text), help);
            }
            if !is_label_key(&name.text) {
                let help = "use at most 63 letters, digits, `-`, `_` and `.`, perhaps after a domain and a slash";
                self.refuse(name.at, format!("{key}: Kubernetes accepts no key {}", name.text), help);
            } else if is_checked && !is_label_value(&text) {
                let help = "use at most 63 letters, digits, `-`, `_` and `.`";
                self.refuse(value.at, format!("{key}: Kubernetes accepts no value {text}"), help);
            }
            texts.insert(name.text, text);
        }
        texts
    }
}

/// Adds what the containers of a specification request.
fn add_requests(need: &mut Resources, spec: &Value) {
    let containers = spec.get("containers").and_then(Value::as_array);
    for container in containers.into_iter().flatten() {
        let requests = container.pointer("/resources/requests").or_else(|| container.pointer("/resources/limits"));
        for (name, amount) in requests.and_then(Value::as_object).into_iter().flatten() {
            let amount = amount.as_f64().or_else(|| quantity::parse(amount.as_str()?));
            let Some(amount) = amount else { continue };
            let (name, amount) = match name.as_str() {
                "cpu" => ("cores", amount),
                "memory" => ("ram", amount / MIB),
                "ephemeral-storage" => ("ephemeral-storage", amount / MB),
                other => (other, amount),
            };
            need.set(name, need.get(name) + amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BUILT_IN_DRIVERS;
    use nodepool_model::config::diagnostics::Source as Document;
    use nodepool_model::config::resolve::resolve;

    /// The labels of a pool with these keys, and the messages about them.
    fn labels(pool: &str, labels: &[&str]) -> (Vec<Arc<PodLabel>>, Vec<String>) {
        let names = ["l0", "l1", "l2"].map(|name| format!("{{name: {name}}}")).join(", ");
        let named = (0..).zip(labels).map(|(number, keys)| match keys.starts_with("name:") {
            true => format!("{{{keys}}}"),
            false => format!("{{name: l{number}, {keys}}}"),
        });
        let listed = named.collect::<Vec<_>>().join(", ");
        let text = format!(
            "labels: [{names}, {{name: Fedora_28}}]\nproviders: [{{name: p, driver: kubernetes, pools: [{{name: main, {pool}labels: \
             [{listed}]}}]}}]\n"
        );
        let root = python_yaml::parse::parse(&text, &mut Vec::new()).unwrap();
        let config = resolve(Document { file: "nodepool.yaml", root: &root }, None, BUILT_IN_DRIVERS).config.unwrap();
        let mut diagnostics = Diagnostics::default();
        let settings = read(config.providers.values().next().unwrap(), &mut diagnostics);
        let labels = settings.pools.into_values().flat_map(BTreeMap::into_values).collect();
        (labels, diagnostics.items.iter().map(|item| item.message.clone()).collect())
    }

    fn resources(label: &PodLabel) -> Value {
        label.pod_spec.as_ref().unwrap()["containers"][0]["resources"].clone()
    }

    #[test]
    fn requests_and_limits_are_those_of_label_or_pool() {
        let pool = "default-label-cpu: 2, default-label-memory: 1024, default-label-storage: 10, \
                    default-label-cpu-limit: 8, default-label-memory-limit: 4196, default-label-storage-limit: 40, ";
        let own = "type: pod, image: i, cpu: 4, memory: 2048, storage: 20, cpu-limit: 4, memory-limit: 2048, storage-limit: 20";
        let (found, _) = labels(pool, &["type: pod, image: i", own]);
        let requests = json!({"cpu": 2, "memory": "1024Mi", "ephemeral-storage": "10M"});
        let limits = json!({"cpu": 8, "memory": "4196Mi", "ephemeral-storage": "40M"});
        assert_eq!(resources(&found[0]), json!({"requests": requests, "limits": limits}));
        let both = json!({"cpu": 4, "memory": "2048Mi", "ephemeral-storage": "20M"});
        assert_eq!(resources(&found[1]), json!({"requests": both, "limits": both}));
        let need = |name: &str| found[0].need.get(name);
        assert_eq!(
            (need("cores"), need("ram"), need("ephemeral-storage"), need("instances")),
            (2.0, 1024.0, 10.0, 1.0)
        );
        let (found, _) = labels("", &["type: pod, image: i, cpu: 3, memory: 0"]);
        assert_eq!(resources(&found[0]), json!({"requests": {"cpu": 3}, "limits": {"cpu": 3}}));
        assert_eq!(found[0].need.get("ram"), 0.0);
    }

    #[test]
    fn extra_resources_and_gpus_count() {
        let pool = "default-label-extra-resources: {disk: 1, net: 2}, ";
        let gpu = "type: pod, image: i, gpu: 0.5, gpu-resource: vendor.example/gpu, extra-resources: {net: 5}";
        let (found, messages) = labels(pool, &[gpu, "type: pod, image: i"]);
        let amounts = json!({"vendor.example/gpu": "0.50"});
        assert_eq!(resources(&found[0]), json!({"requests": amounts, "limits": amounts}));
        let need = |index: usize, name: &str| found[index].need.get(name);
        assert_eq!((need(0, "vendor.example/gpu"), need(0, "disk"), need(0, "net")), (0.5, 1.0, 5.0));
        assert_eq!((need(1, "disk"), need(1, "net")), (1.0, 2.0));
        assert_eq!(messages, ["gpu is 0.5, not a whole number"]);
    }

    #[test]
    fn a_specification_counts_what_it_requests_or_the_defaults_of_the_pool() {
        let spec = "type: pod, spec: {containers: [{name: a, resources: {requests: {cpu: 500m, memory: 1Gi}}}, \
                    {name: b, resources: {limits: {cpu: 1}}}]}";
        let (found, _) = labels("", &[spec, "type: pod, spec: {containers: []}"]);
        assert_eq!((found[0].need.get("cores"), found[0].need.get("ram")), (1.5, 1024.0));
        assert_eq!(found[1].need.iter().collect::<Vec<_>>(), [("cores", 0.0), ("instances", 1.0), ("ram", 0.0)]);
        let (found, _) = labels("default-label-cpu: 2, ", &[spec]);
        assert_eq!(found[0].need.iter().collect::<Vec<_>>(), [("cores", 2.0), ("instances", 1.0), ("ram", 0.0)]);
        assert!(found[0].pod_spec.as_ref().unwrap()["containers"][0]["resources"].get("limits").is_none());
    }

    #[test]
    fn what_kubernetes_would_refuse_puts_the_label_out_of_service() {
        let numbers = "type: pod, image: i, labels: {n: 5, yes: true}";
        let (found, messages) = labels("", &["name: Fedora_28, type: pod, image: i", numbers, "type: pod"]);
        assert_eq!(found[0].problem.as_deref(), Some("Kubernetes accepts no pod of the name Fedora_28"));
        assert_eq!((&*found[1].labels["n"], &found[1].problem), ("5", &None));
        assert_eq!(found[2].problem.as_deref(), Some("label l2 has no image"));
        assert!(messages.contains(&"labels: n is not a text".to_owned()), "{messages:?}");
        let (found, _) = labels("", &["name: Fedora_28, type: namespace", "type: pod, image: i, labels: {a: 'b c'}"]);
        assert_eq!(found[0].problem, None);
        assert_eq!(found[1].problem.as_deref(), Some("labels: Kubernetes accepts no value b c"));
    }
}
