//! CreateFleet of the type `instant`: instances of launch templates and their overrides, in the order of a strategy.

use std::collections::BTreeMap;

use crate::actions::launch_templates::merged;
use crate::api::xml::Xml;
use crate::region::instance_types;
use crate::region::region::Ec2;
use crate::region::tags::{self, Tags};
use crate::server::form::{Form, Scope, missing};
use crate::server::response::{ApiError, ApiResult};

/// One way to launch an instance of a fleet.
struct Pool {
    template_id: String,
    template_name: String,
    /// The parameters of its override.
    overrides: Form,
    /// The parameters of the launch.
    parameters: Form,
    priority: f64,
}

/// Instances or the error of one pool.
struct Outcome {
    pool: usize,
    is_spot: bool,
    result: Result<Vec<String>, ApiError>,
}

impl Ec2<'_> {
    pub fn create_fleet(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        if let Some(known) = self.repeated("CreateFleet", form)? {
            xml.raw(&known[0]);
            return Ok(());
        }
        if form.get("Type").is_some_and(|kind| kind != "instant") {
            return Err(ApiError::new("UnsupportedOperation", "The simulation has only fleets of the type instant."));
        }
        let specified = tags::specified(form, &["fleet", "instance", "volume", "network-interface"])?;
        let (spot, on_demand) = targets(form)?;
        let fleet = self.world.new_id("fleet");
        let pools = self.pools(form, &fleet)?;
        let mut outcomes = Vec::new();
        for (is_spot, target) in [(false, on_demand), (true, spot)] {
            if target > 0 {
                let strategy = strategy(form, is_spot)?;
                self.fill(&pools, strategy, is_spot, target, &specified, &mut outcomes);
            }
        }
        let mut part = Xml::part();
        part.text("fleetId", &fleet);
        self.write_outcomes(&mut part, &pools, &outcomes);
        let part = part.finish();
        self.remember("CreateFleet", form, vec![part.clone()]);
        xml.raw(&part);
        Ok(())
    }

    fn pools(&self, form: &Form, fleet: &str) -> ApiResult<Vec<Pool>> {
        let mut pools = Vec::new();
        for config in form.items("LaunchTemplateConfigs") {
            let part = |name: &str| config.get(&format!("LaunchTemplateSpecification.{name}"));
            let template = self.template(part("LaunchTemplateId"), part("LaunchTemplateName"))?;
            let overrides = config.items("Overrides");
            let overrides = if overrides.is_empty() { vec![Form::default()] } else { forms(&overrides) };
            for one in overrides {
                let priority = one.number("Priority")?.unwrap_or(f64::MAX);
                let mut parameters = merged(&template.data, &launch_parameters(&one, &template.data));
                parameters.0.insert("fleet".to_owned(), fleet.to_owned());
                let (template_id, template_name) = (template.id.clone(), template.name.clone());
                pools.push(Pool { template_id, template_name, overrides: one, parameters, priority });
            }
        }
        if pools.is_empty() { Err(missing("LaunchTemplateConfigs")) } else { Ok(pools) }
    }

    /// Launches so many instances from the pools, in the order of the strategy.
    fn fill(
        &mut self,
        pools: &[Pool],
        strategy: &str,
        is_spot: bool,
        target: u32,
        specified: &BTreeMap<String, Tags>,
        outcomes: &mut Vec<Outcome>,
    ) {
        let mut missing = target;
        let order = order(pools, strategy);
        for (position, index) in order.iter().copied().enumerate() {
            if missing == 0 {
                break;
            }
            let left = (order.len() - position) as u32;
            let wanted = if strategy == "diversified" { missing.div_ceil(left) } else { missing };
            let result = self.launch_from(&pools[index], is_spot, wanted, specified);
            missing -= result.as_ref().map_or(0, |ids| ids.len() as u32);
            outcomes.push(Outcome { pool: index, is_spot, result });
        }
    }

    fn launch_from(
        &mut self,
        pool: &Pool,
        is_spot: bool,
        wanted: u32,
        specified: &BTreeMap<String, Tags>,
    ) -> ApiResult<Vec<String>> {
        let mut parameters = pool.parameters.clone();
        let fleet = parameters.0.remove("fleet").unwrap_or_default();
        if is_spot {
            parameters.0.insert("InstanceMarketOptions.MarketType".to_owned(), "spot".to_owned());
        }
        let mut launch = self.check_launch(parameters)?;
        let tags_of = |resource: &str| specified.get(resource).cloned().unwrap_or_default();
        launch.tags.extend(tags_of("instance"));
        launch.volume_tags.extend(tags_of("volume"));
        for (key, value) in [
            ("aws:ec2:fleet-id", fleet.as_str()),
            ("aws:ec2launchtemplate:id", &pool.template_id),
            ("aws:ec2launchtemplate:version", "1"),
        ] {
            launch.tags.insert(key.to_owned(), value.to_owned());
        }
        let count = self.admitted(&launch, 1, wanted)?;
        Ok(self.launch(launch, count, None))
    }

    fn write_outcomes(&self, xml: &mut Xml, pools: &[Pool], outcomes: &[Outcome]) {
        let lifecycle = |outcome: &Outcome| if outcome.is_spot { "spot" } else { "on-demand" };
        let failed = outcomes.iter().filter_map(|one| one.result.as_ref().err().map(|error| (one, error)));
        xml.items("errorSet", failed, |xml, (one, error)| {
            write_pool(xml, &pools[one.pool]);
            xml.text("lifecycle", lifecycle(one)).text("errorCode", &error.code).text("errorMessage", &error.message);
        });
        let launched = outcomes.iter().filter_map(|one| one.result.as_ref().ok().map(|ids| (one, ids)));
        xml.items("fleetInstanceSet", launched, |xml, (one, ids)| {
            write_pool(xml, &pools[one.pool]);
            xml.text("lifecycle", lifecycle(one)).open("instanceIds");
            for id in ids {
                xml.text("item", id);
            }
            xml.close("instanceIds");
            let instance = ids.first().and_then(|id| self.region.instances.get(id));
            xml.text("instanceType", instance.map_or("", |instance| instance.instance_type.name));
        });
    }
}

/// Maximum number of instances of a fleet.
const MAX_TARGET: u32 = 10_000;

/// Number of spot and of on-demand instances.
fn targets(form: &Form) -> ApiResult<(u32, u32)> {
    let number = |name: &str| form.number::<u32>(&format!("TargetCapacitySpecification.{name}"));
    let total = number("TotalTargetCapacity")?.ok_or_else(|| missing("TotalTargetCapacity"))?;
    let (spot, on_demand) = (number("SpotTargetCapacity")?, number("OnDemandTargetCapacity")?);
    if [Some(total), spot, on_demand].into_iter().flatten().any(|target| target > MAX_TARGET) {
        return Err(ApiError::invalid(format!("The target capacity is limited to {MAX_TARGET} instances.")));
    }
    let default = form.get("TargetCapacitySpecification.DefaultTargetCapacityType").unwrap_or("on-demand");
    let rest = total.saturating_sub(spot.unwrap_or(0) + on_demand.unwrap_or(0));
    match default {
        "spot" => Ok((spot.unwrap_or(0) + rest, on_demand.unwrap_or(0))),
        "on-demand" => Ok((spot.unwrap_or(0), on_demand.unwrap_or(0) + rest)),
        other => Err(ApiError::invalid(format!("Invalid value '{other}' for DefaultTargetCapacityType."))),
    }
}

/// The allocation strategy, which must be one of its lifecycle.
fn strategy(form: &Form, is_spot: bool) -> ApiResult<&str> {
    let (name, known): (&str, &[&str]) = if is_spot {
        let known = &[
            "lowest-price",
            "diversified",
            "capacity-optimized",
            "capacity-optimized-prioritized",
            "price-capacity-optimized",
        ];
        ("SpotOptions.AllocationStrategy", known)
    } else {
        ("OnDemandOptions.AllocationStrategy", &["lowest-price", "prioritized"])
    };
    let strategy = form.get(name).unwrap_or("lowest-price");
    match known.contains(&strategy) {
        true => Ok(strategy),
        false => {
            let text = format!("Invalid value '{strategy}' for {name}: expected {}", known.join(", "));
            Err(ApiError::invalid(text))
        }
    }
}

/// The pools in the order of a strategy: the price of a type follows its vCPUs and its memory.
fn order(pools: &[Pool], strategy: &str) -> Vec<usize> {
    let mut order: Vec<usize> = (0..pools.len()).collect();
    match strategy {
        "prioritized" | "capacity-optimized-prioritized" => {
            order.sort_by(|one, other| pools[*one].priority.total_cmp(&pools[*other].priority));
        }
        "lowest-price" | "price-capacity-optimized" => order.sort_by_key(|index| {
            let name = pools[*index].parameters.get("InstanceType").unwrap_or_default();
            instance_types::find(name).map_or(u64::MAX, |one| u64::from(one.vcpus) * 4096 + one.memory_mib)
        }),
        _ => {}
    }
    order
}

fn forms(scopes: &[Scope<'_>]) -> Vec<Form> {
    scopes.iter().map(Scope::to_form).collect()
}

/// The parameters of RunInstances that an override means. Its subnet is that of the interface, if the template has one.
fn launch_parameters(one: &Form, template: &Form) -> Form {
    let mut parameters = Form::default();
    for (name, value) in &one.0 {
        let name = match name.as_str() {
            "Priority" | "MaxPrice" | "WeightedCapacity" => continue,
            "AvailabilityZone" => "Placement.AvailabilityZone",
            "SubnetId" if template.get("NetworkInterface.1.DeviceIndex").is_some() => "NetworkInterface.1.SubnetId",
            name => name,
        };
        parameters.0.insert(name.to_owned(), value.clone());
    }
    if parameters.get("NetworkInterface.1.SubnetId").is_some() {
        let interface = template.below("NetworkInterface.1.").0;
        for (name, value) in interface.into_iter().filter(|(name, _)| name != "SubnetId") {
            parameters.0.insert(format!("NetworkInterface.1.{name}"), value);
        }
    }
    parameters
}

fn write_pool(xml: &mut Xml, pool: &Pool) {
    xml.within("launchTemplateAndOverrides", |xml| {
        xml.within("launchTemplateSpecification", |xml| {
            xml.text("launchTemplateId", &pool.template_id).text("launchTemplateName", &pool.template_name);
            xml.text("version", "1")
        });
        xml.within("overrides", |xml| {
            for (parameter, element) in [
                ("InstanceType", "instanceType"),
                ("SubnetId", "subnetId"),
                ("AvailabilityZone", "availabilityZone"),
                ("ImageId", "imageId"),
                ("Priority", "priority"),
            ] {
                xml.optional(element, pool.overrides.get(parameter));
            }
            xml
        })
    });
}
