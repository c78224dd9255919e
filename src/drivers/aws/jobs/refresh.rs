//! Refresh of the provider facts: instance types, AMIs, quotas, volumes and instances.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::aws::api::api_types::{Ec2Instance, QuotasPage, Volume};
use crate::aws::api::calls::{self, Call, Reply, TYPES_PER_CALL};
use crate::aws::api::errors::failed;
use crate::aws::context::ProviderContext;
use crate::aws::instances;
use crate::aws::jobs::listing::InstancePages;
use crate::aws::label::ImageSource;
use crate::aws::quota_codes;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{ProviderFacts, Unavailable};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::resources::Resources;
use tracing::warn;

const GB_PER_TB: f64 = 1000.0;

pub struct RefreshProvider {
    context: Arc<ProviderContext>,
    queries: VecDeque<Query>,
    current: Option<Query>,
    pages: InstancePages,
    instances: Vec<Ec2Instance>,
    volumes: Vec<Volume>,
    limits: BTreeMap<String, f64>,
    /// Queries that failed; their earlier results are kept.
    failed: Vec<&'static str>,
    /// Services whose quotas were read, and those that refused to name them.
    quotas_read: BTreeSet<&'static str>,
    quotas_denied: BTreeMap<&'static str, String>,
    reads_limits: bool,
    has_planned_defaults: bool,
}

/// One call of a refresh.
#[derive(Clone, Debug)]
enum Query {
    Instances(Option<Call>),
    Types(Vec<String>),
    Image(String),
    Filters(Vec<(String, Vec<String>)>),
    Volumes(Option<String>),
    /// The service, whether AWS's defaults are read, and the next page.
    Quotas(&'static str, bool, Option<String>),
}

impl Query {
    fn name(&self) -> &'static str {
        match self {
            Query::Instances(_) => "instances",
            Query::Types(_) => "instance types",
            Query::Image(_) | Query::Filters(_) => "images",
            Query::Volumes(_) => "volumes",
            Query::Quotas(..) => "limits",
        }
    }

    fn call(&self) -> Call {
        match self {
            Query::Instances(Some(call)) => call.clone(),
            Query::Instances(None) => calls::instances(None),
            Query::Types(types) => calls::instance_types(types.iter().map(String::as_str), None),
            Query::Image(id) => calls::image(id),
            Query::Filters(filters) => calls::images_matching(filters),
            Query::Volumes(next) => calls::volumes(next.as_deref()),
            Query::Quotas(service, are_defaults, next) => calls::quotas(service, *are_defaults, next.as_deref()),
        }
    }
}

impl StateMachine for RefreshProvider {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => {
                self.queries.push_back(Query::Instances(None));
                self.next()
            }
            Input::Reply(Ok(reply)) => self.on_reply(reply),
            Input::Reply(Err(error)) => self.query_failed(&error),
            input @ Input::Observed(_) => Next::Failed(failed(format!("unexpected {input:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        "refreshing"
    }
}

impl RefreshProvider {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self {
            context,
            queries: VecDeque::new(),
            current: None,
            pages: InstancePages::default(),
            instances: Vec::new(),
            volumes: Vec::new(),
            limits: BTreeMap::new(),
            failed: Vec::new(),
            quotas_read: BTreeSet::new(),
            quotas_denied: BTreeMap::new(),
            reads_limits: false,
            has_planned_defaults: false,
        }
    }

    fn next(&mut self) -> Next<Call> {
        if self.queries.is_empty() && self.reads_limits {
            self.plan_defaults();
        }
        self.current = self.queries.pop_front();
        match &self.current {
            Some(query) => Next::Call(query.call()),
            None => self.finish(),
        }
    }

    fn query_failed(&mut self, error: &CloudError) -> Next<Call> {
        let name = self.current.as_ref().map_or("", Query::name);
        let is_essential = match self.current {
            // Without an inventory, nothing is known about the cloud.
            Some(Query::Instances(_)) | None => true,
            // Labels wait for these; a refresh that failed is soon repeated.
            Some(Query::Types(_) | Query::Image(_) | Query::Filters(_)) => matches!(error, CloudError::Outage { .. }),
            // Some accounts cannot reach, or may not use, what limits come from.
            Some(Query::Volumes(_) | Query::Quotas(..)) => false,
        };
        if is_essential {
            return Next::Failed(error.clone());
        }
        if !self.failed.contains(&name) {
            self.failed.push(name);
        }
        self.next()
    }

    fn on_reply(&mut self, reply: Reply) -> Next<Call> {
        let Some(query) = self.current.clone() else { return Next::Failed(failed("a reply without a query")) };
        match (query, reply) {
            (Query::Instances(_), reply) => match self.pages.add(reply) {
                Ok(Ok(call)) => self.queries.push_front(Query::Instances(Some(call))),
                Ok(Err(instances)) => {
                    self.instances = instances;
                    self.plan_queries();
                }
                Err(error) => return Next::Failed(error),
            },
            (Query::Types(asked), Reply::Types(page)) => {
                let mut catalog = self.context.catalog();
                for name in asked {
                    catalog.types.entry(name).or_default();
                }
                for known in page.instance_type_set.item {
                    catalog.types.insert(known.instance_type.clone(), Some(known));
                }
            }
            // One unknown type fails the whole call.
            (Query::Types(asked), Reply::Refused(error)) if error.code.starts_with("InvalidInstanceType") => {
                match &asked[..] {
                    [unknown] => drop(self.context.catalog().types.insert(unknown.clone(), None)),
                    _ => asked.into_iter().for_each(|name| self.queries.push_front(Query::Types(vec![name]))),
                }
            }
            (Query::Image(id), Reply::Images(page)) => {
                let found = page.images_set.item.into_iter().find(|image| image.image_id == id);
                self.context.catalog().images.insert(id, found);
            }
            (Query::Image(id), Reply::Refused(error)) if error.code.starts_with("InvalidAMIID") => {
                self.context.catalog().images.insert(id, None);
            }
            (Query::Filters(filters), Reply::Images(page)) => {
                let newest = page.images_set.item.into_iter().max_by(|one, other| {
                    one.creation_date.cmp(&other.creation_date).then_with(|| one.image_id.cmp(&other.image_id))
                });
                let mut catalog = self.context.catalog();
                catalog.found.insert(filters, newest.as_ref().map(|image| image.image_id.clone()));
                if let Some(image) = newest {
                    catalog.images.insert(image.image_id.clone(), Some(image));
                }
            }
            (Query::Volumes(_), Reply::Volumes(page)) => {
                self.volumes.extend(page.volume_set.item);
                match page.next_token.filter(|token| !token.is_empty()) {
                    Some(token) => self.queries.push_front(Query::Volumes(Some(token))),
                    None => self.context.catalog().record_volumes(&self.volumes),
                }
            }
            (Query::Quotas(service, are_defaults, _), Reply::Quotas(page)) => {
                self.on_quotas(service, are_defaults, page);
            }
            (Query::Quotas(service, are_defaults, _), Reply::Refused(error)) => {
                self.quotas_refused(service, are_defaults, error.into_error());
            }
            (_, Reply::Refused(error)) => return self.query_failed(&error.into_error()),
            (_, reply) => return Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
        self.next()
    }

    fn on_quotas(&mut self, service: &'static str, are_defaults: bool, page: QuotasPage) {
        for quota in page.quotas {
            let unit = if quota_codes::is_storage(&quota.quota_code) { GB_PER_TB } else { 1.0 };
            // The defaults come second, for limits that were never changed.
            self.limits.entry(quota.quota_code).or_insert(quota.value * unit);
        }
        match page.next_token.filter(|token| !token.is_empty()) {
            Some(token) => self.queries.push_front(Query::Quotas(service, are_defaults, Some(token))),
            None => drop(self.quotas_read.insert(service)),
        }
    }

    /// Limits that were never changed are named only by AWS's defaults.
    fn plan_defaults(&mut self) {
        if std::mem::replace(&mut self.has_planned_defaults, true) {
            return;
        }
        let needed = self.needed_codes();
        let missing = needed.iter().filter(|code| !self.limits.contains_key(*code));
        let services: BTreeSet<&str> = missing.map(|code| quota_codes::service(code)).collect();
        let services = services.intersection(&self.quotas_read);
        self.queries.extend(services.map(|service| Query::Quotas(service, true, None)));
    }

    /// Queries for what the labels need and the catalog lacks. The list of instances shows other types in use.
    fn plan_queries(&mut self) {
        let (settings, are_due) = (&self.context.settings, self.context.are_limits_due());
        let mut types: BTreeSet<&str> = self.instances.iter().map(|instance| &*instance.instance_type).collect();
        types.extend(settings.labels().flat_map(|label| label.possible_types()).map(String::as_str));
        let catalog = self.context.catalog();
        let unknown: Vec<String> = types
            .into_iter()
            .filter(|name| !name.is_empty() && !matches!(catalog.types.get(*name), Some(Some(_))))
            .map(str::to_owned)
            .collect();
        let sources: BTreeSet<&ImageSource> = settings.labels().map(|label| &label.source).collect();
        for source in sources {
            match source {
                ImageSource::Id(id) if !matches!(catalog.images.get(id), Some(Some(_))) => {
                    self.queries.push_back(Query::Image(id.clone()));
                }
                ImageSource::Filters(filters) if are_due => self.queries.push_back(Query::Filters(filters.clone())),
                ImageSource::Filters(_) => {}
                ImageSource::Id(_) | ImageSource::Uploaded | ImageSource::Missing => {}
            }
        }
        drop(catalog);
        self.queries.extend(unknown.chunks(TYPES_PER_CALL).map(|chunk| Query::Types(chunk.to_vec())));
        if are_due {
            self.queries.push_back(Query::Volumes(None));
            self.queries.extend([Query::Quotas("ec2", false, None), Query::Quotas("ebs", false, None)]);
            self.reads_limits = true;
        }
    }

    /// The codes that the labels' nodes count towards.
    fn needed_codes(&self) -> BTreeSet<String> {
        let catalog = self.context.catalog();
        let needs = self.context.settings.labels().map(|label| catalog.label_facts(label).0.unwrap_or_default());
        let codes = needs.flat_map(|need| need.names().map(str::to_owned).collect::<Vec<_>>());
        codes.filter(|name| name.starts_with("L-")).collect()
    }

    /// An account that may not read its quotas has none, as far as Nodepool knows.
    fn quotas_refused(&mut self, service: &'static str, are_defaults: bool, error: CloudError) {
        match error {
            // The limits that were changed are known.
            CloudError::Denied(_) if are_defaults => {}
            CloudError::Denied(text) => drop(self.quotas_denied.insert(service, text)),
            _ if !self.failed.contains(&"limits") => self.failed.push("limits"),
            _ => {}
        }
    }

    /// Keeps what was read in the catalog; returns the limits of what the labels need.
    fn record_limits(&mut self) -> Resources {
        let context = self.context.clone();
        let needed = self.needed_codes();
        let mut catalog = context.catalog();
        for (service, error) in &self.quotas_denied {
            if catalog.warn_once(service) {
                warn!(provider = %context.provider, service, error, "quotas cannot be read: no limit is known");
            }
            catalog.limits.retain(|code, _| quota_codes::service(code) != *service);
        }
        // Those of a service that did not respond are kept.
        catalog.limits.extend(std::mem::take(&mut self.limits));
        for code in needed.iter().filter(|code| self.quotas_read.contains(quota_codes::service(code))) {
            if !catalog.limits.contains_key(code) && catalog.warn_once(code) {
                warn!(provider = %context.provider, code, "unknown quota: no limit is known");
            }
        }
        let mut limits = Resources::unlimited();
        let known = catalog.limits.iter().filter(|(code, _)| needed.contains(*code));
        known.for_each(|(code, value)| limits.set(code, *value));
        limits
    }

    fn finish(&mut self) -> Next<Call> {
        let context = self.context.clone();
        if self.reads_limits && self.failed.is_empty() {
            context.record_limits_read();
        }
        let limits = self.record_limits();
        let inventory = instances::inventory(&context, &self.instances);
        let unmanaged = inventory.used_by_others(&context.provider);
        let launch_config = context.settings.launch_config(|label| {
            let (need, unavailable) = context.catalog().label_facts(label);
            // Types that have not been described are described by the next refresh.
            let waits = need.is_none().then(|| Unavailable::Temporary("its instance type is not known yet".to_owned()));
            (need, unavailable.or(waits))
        });
        let facts = ProviderFacts {
            limits,
            unmanaged,
            launch_config: Some(Arc::new(launch_config)),
            failed_queries: std::mem::take(&mut self.failed),
            refused_queries: if self.quotas_denied.is_empty() { Vec::new() } else { vec!["limits"] },
            ..context.facts.clone()
        };
        Next::Done(Outcome::Refreshed(Arc::new(facts), Arc::new(inventory)))
    }
}
