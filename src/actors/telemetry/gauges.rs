//! Gauges that are computed from the snapshot at each scrape: nodes, requests, images, limits, quota.

use std::collections::BTreeMap;

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::metrics::prometheus_metrics;
use nodepool_model::metrics::prometheus_text::PrometheusText;
use nodepool_model::metrics::statsd_metrics::{self, Sample};
use nodepool_model::records::ids::{LabelName, PoolId, ProviderName};
use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::Snapshot;
use nodepool_policy::inputs::Inputs;

/// Writes all gauges.
pub fn write_gauges(inputs: &Inputs<'_>, out: &mut PrometheusText) {
    let samples =
        statsd_metrics::global_gauges(inputs.snapshot).into_iter().chain(statsd_metrics::limit_gauges(inputs.config));
    samples.for_each(|sample| write_sample(sample, out));
    write_requests(inputs, out);
    write_images(inputs.snapshot, out);
    write_quota(inputs, out);
    write_health(inputs, out);
    out.unlabeled(&prometheus_metrics::CONNECTED, f64::from(u8::from(inputs.snapshot.connected)));
}

fn write_sample(sample: Sample, out: &mut PrometheusText) {
    if let Some(series) = sample.series {
        out.number(series.metric, series.labels, sample.value);
    }
}

fn write_requests(inputs: &Inputs<'_>, out: &mut PrometheusText) {
    let states = [RequestState::Requested, RequestState::Pending, RequestState::Fulfilled, RequestState::Failed];
    let mut counts = states.map(|state| (state, 0.0));
    let mut oldest = 0.0_f64;
    for (_, stored) in inputs.snapshot.requests() {
        let request = &stored.record;
        if let Some((_, count)) = counts.iter_mut().find(|(state, _)| *state == request.state) {
            *count += 1.0;
        }
        if matches!(request.state, RequestState::Requested | RequestState::Pending) {
            oldest = oldest.max((inputs.now - request.created_time.unwrap_or(request.state_time)).0);
        }
    }
    counts.into_iter().for_each(|(state, count)| out.number(&prometheus_metrics::REQUESTS, [state.as_str()], count));
    out.unlabeled(&prometheus_metrics::OLDEST_REQUEST, oldest);
}

fn write_images(snapshot: &Snapshot, out: &mut PrometheusText) {
    let mut builds: BTreeMap<[String; 2], f64> = BTreeMap::new();
    let mut newest: BTreeMap<[String; 1], f64> = BTreeMap::new();
    for (key, stored) in snapshot.images.builds() {
        let build = &stored.record;
        *builds.entry([key.image.to_string(), build.state.as_str().to_owned()]).or_default() += 1.0;
        if build.state == BuildState::Ready {
            let at = newest.entry([key.image.to_string()]).or_insert(build.state_time.0);
            *at = at.max(build.state_time.0);
        }
    }
    newest.into_iter().for_each(|(labels, at)| out.number(&prometheus_metrics::NEWEST_BUILD, labels, at));
    let mut uploads: BTreeMap<[String; 3], f64> = BTreeMap::new();
    for (key, stored) in snapshot.images.uploads() {
        let labels = [key.image.to_string(), key.provider.to_string(), stored.record.state.as_str().to_owned()];
        *uploads.entry(labels).or_default() += 1.0;
    }
    builds.into_iter().for_each(|(labels, count)| out.number(&prometheus_metrics::BUILDS, labels, count));
    uploads.into_iter().for_each(|(labels, count)| out.number(&prometheus_metrics::UPLOADS, labels, count));
}

fn write_quota(inputs: &Inputs<'_>, out: &mut PrometheusText) {
    for (provider, facts) in inputs.facts {
        for quota in quotas(provider, facts, inputs.snapshot) {
            let labels = || [provider.to_string(), quota.resource.clone()];
            out.number(&prometheus_metrics::QUOTA_LIMIT, labels(), quota.limit.unwrap_or(f64::INFINITY));
            out.number(&prometheus_metrics::QUOTA_USED, labels(), quota.ours + quota.others);
        }
    }
}

fn write_health(inputs: &Inputs<'_>, out: &mut PrometheusText) {
    for (provider, facts) in inputs.facts.iter().filter(|(_, facts)| facts.launch_config.is_some()) {
        let health = &facts.health;
        let duration = |since: Option<Timestamp>| since.map_or(0.0, |since| (inputs.now - since).0.max(0.0));
        let outage = health.outage.as_ref().map(|outage| outage.since);
        let full = health.full.iter().chain(health.full_labels.values()).map(|refusal| refusal.since).min();
        out.number(&prometheus_metrics::OUTAGE, [provider.to_string()], duration(outage));
        out.number(&prometheus_metrics::FULL, [provider.to_string()], duration(full));
    }
}

/// One limit of a cloud and its usage.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Quota {
    pub resource: String,
    /// `None` if the cloud sets no limit.
    pub limit: Option<f64>,
    /// Used by nodes.
    pub ours: f64,
    /// Used by others in the same project and by leaked instances.
    pub others: f64,
}

/// Quotas as of the last refresh of the provider; empty before the first one.
pub fn quotas(provider: &ProviderName, facts: &ProviderFacts, snapshot: &Snapshot) -> Vec<Quota> {
    let mut others = facts.unmanaged.clone();
    others.add(&facts.leaked);
    let need = |pool: &PoolId, label: &LabelName| facts.need(&pool.pool, label);
    let ours = snapshot.usage_totals.used_by_provider(provider, need);
    let is_known = |name: &&str| facts.limits.get(name).is_finite() || ours.get(name) != 0.0 || others.get(name) != 0.0;
    let names = facts.limits.names().chain(ours.names()).chain(others.names()).filter(is_known);
    let names: std::collections::BTreeSet<&str> = names.collect();
    let finite = |name: &str, resources: &Resources| Some(resources.get(name)).filter(|amount| amount.is_finite());
    let quota = |name: &&str| Quota {
        resource: (*name).to_owned(),
        limit: finite(name, &facts.limits),
        ours: ours.get(name),
        others: others.get(name),
    };
    names.iter().map(quota).collect()
}
