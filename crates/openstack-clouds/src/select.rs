//! Selection of a cloud, and the merge of its settings from file, secure file, environment, profile and region.

use crate::config_paths::ConfigFiles;
use crate::error::CloudsError;
use crate::merge::{Map, Node, Origin, Value};
use crate::parse::parse;
use crate::profiles::{defaults, profile};
use python_yaml::diagnostics::{Diagnostic, Severity, nearest};

/// The cloud and region that a provider selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudSelector<'a> {
    pub cloud: Option<&'a str>,
    pub region: Option<&'a str>,
}

/// All configured clouds.
pub struct Clouds {
    /// The files' other sections.
    pub root: Map,
    clouds: Map,
    /// Name of the cloud that environment variables describe.
    environment_cloud: String,
    /// The cloud for providers that name none.
    default: Option<String>,
    origin: Origin,
}

/// One region of one cloud, merged.
pub struct CloudEntry {
    pub cloud: Option<String>,
    pub origin: Origin,
    pub map: Map,
}

/// Environment variables that choose a cloud and do not describe one.
const SELECTOR_VARIABLES: [&str; 6] = [
    "OS_CLOUD",
    "OS_REGION_NAME",
    "OS_CLIENT_CONFIG_FILE",
    "OS_CLIENT_SECURE_FILE",
    "OS_CLIENT_VENDOR_FILE",
    "OS_CLOUD_NAME",
];

/// Prefixes of test runners' variables.
const IGNORED_PREFIXES: [&str; 3] = ["OS_TEST", "OS_STD", "OS_LOG"];

impl Clouds {
    pub fn new(files: &ConfigFiles, warnings: &mut Vec<Diagnostic>) -> Result<Self, CloudsError> {
        let mut root = Map::default();
        let mut origin = Origin::named("clouds.yaml");
        for file in [&files.clouds, &files.secure].into_iter().flatten() {
            let read = parse(file, warnings)?;
            let of_file = Origin::named(file.path.display().to_string());
            if read.get("clouds").is_none() {
                let problem = of_file.diagnostic("the file has no `clouds`", "clouds are described below that key");
                warnings.push(problem.at_most(Severity::Warning));
            }
            if root.0.is_empty() {
                origin = of_file;
            }
            root.merge_deep(read);
        }
        let mut clouds = root.map("clouds")?;
        let variable = |name: &str| files.environment.variables.get(name).filter(|value| !value.is_empty()).cloned();
        let environment_cloud = variable("OS_CLOUD_NAME").unwrap_or_else(|| "envvars".to_owned());
        if let Some(own) = clouds.get(&environment_cloud) {
            let help = "rename the cloud, or rename the cloud of the OS_… variables with OS_CLOUD_NAME";
            let message = format!("{environment_cloud} is the name of the cloud that OS_… variables describe");
            return Err(own.origin.invalid(message, help));
        }
        let mut default = variable("OS_CLOUD");
        if let Some(from_environment) = cloud_from_environment(files) {
            clouds.set(&environment_cloud, from_environment);
            default.get_or_insert_with(|| environment_cloud.clone());
        }
        if default.is_none() && clouds.0.len() == 1 {
            default = Some(clouds.0[0].0.clone());
        }
        Ok(Self { root, clouds, environment_cloud, default, origin })
    }

    /// Merges the settings of a cloud: its own entry over its profile over the defaults, and the region over all.
    pub fn entry(
        &self,
        selector: CloudSelector<'_>,
        files: &ConfigFiles,
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<CloudEntry, CloudsError> {
        let cloud = selector.cloud.map(str::to_owned).or_else(|| self.default.clone());
        let own = match &cloud {
            Some(name) => Some(self.clouds.get(name).ok_or_else(|| self.unknown_cloud(name, files))?),
            None => None,
        };
        let origin = own.map_or_else(|| self.origin.clone(), |own| own.origin.clone());
        let own = own.map_or_else(|| Ok(Map::default()), |node| node.map(cloud.as_deref().unwrap_or("cloud")))?;
        let profile = match own.get("profile").or_else(|| own.get("cloud")) {
            Some(named) if !self.is_environment_cloud(named) => profile(named, files, warnings)?,
            _ => Map::default(),
        };
        let region = select_region(selector.region.unwrap_or_default(), regions(&own, &profile)?, &cloud, &origin)?;
        let mut map = defaults();
        map.merge_entry(profile)?;
        map.merge_entry(own)?;
        map.remove("cloud");
        map.remove("regions");
        let values = region.values.0.into_iter().filter(|(_, value)| !value.is_null());
        map.merge_entry(Map(values.collect()))?;
        map.set("region_name", Node::text(&origin, region.name));
        Ok(CloudEntry { cloud, origin, map })
    }

    fn is_environment_cloud(&self, named: &Node) -> bool {
        matches!(&named.value, Value::Text(name) if *name == self.environment_cloud)
    }

    fn unknown_cloud(&self, name: &str, files: &ConfigFiles) -> CloudsError {
        let names: Vec<&str> = self.clouds.0.iter().map(|(name, _)| name.as_str()).collect();
        let help = if files.clouds.is_none() && names.is_empty() {
            let mut directories: Vec<String> = Vec::new();
            for path in &files.searched {
                let directory = path.parent().unwrap_or(path).display().to_string();
                if !directories.is_empty() && directories.last() == Some(&directory) {
                    continue;
                }
                directories.push(directory);
            }
            format!("there is no clouds.yaml, .yml or .json in {}", directories.join(", "))
        } else {
            let suggestion =
                nearest(name, names.iter().copied()).map_or_else(String::new, |near| format!("did you mean {near}? "));
            format!("{suggestion}the clouds are: {}", names.join(", "))
        };
        CloudsError::NoSuchCloud(self.origin.diagnostic(format!("Cloud {name} was not found."), help))
    }
}

/// The cloud that environment variables describe: each `OS_…` is the setting of that name.
fn cloud_from_environment(files: &ConfigFiles) -> Option<Node> {
    let variables = files.environment.variables.iter();
    let ours: Vec<_> = variables
        .filter(|(name, _)| name.starts_with("OS_") && !IGNORED_PREFIXES.iter().any(|other| name.starts_with(other)))
        .collect();
    if ours.iter().all(|(name, _)| SELECTOR_VARIABLES.contains(&name.as_str())) {
        return None;
    }
    let mut map = defaults();
    for (name, value) in ours {
        let origin = Origin::named(format!("environment variable {name}"));
        map.set(&name["OS_".len()..].to_lowercase(), Node::text(&origin, value));
    }
    Some(Node { origin: Origin::named("the environment"), value: Value::Map(map) })
}

struct Region {
    name: String,
    values: Map,
}

impl Region {
    fn named(name: &str) -> Self {
        Self { name: name.to_owned(), values: Map::default() }
    }
}

/// The regions that a cloud or else its profile lists.
fn regions(own: &Map, profile: &Map) -> Result<Vec<Region>, CloudsError> {
    let own = own.clone().with_underscores();
    if own.given("regions").is_some() {
        return own.list("regions")?.iter().map(region_from_node).collect();
    }
    match own.given("region_name") {
        Some(node) if matches!(node.value, Value::List(_)) => {
            return node.list("region_name")?.iter().map(region_from_node).collect();
        }
        Some(node) => {
            let names = node.scalar("region_name")?.unwrap_or_default();
            return Ok(names.split(',').map(Region::named).collect());
        }
        None => {}
    }
    let listed_by_profile: Vec<Region> =
        profile.list("regions")?.iter().map(region_from_node).collect::<Result<_, _>>()?;
    if !listed_by_profile.is_empty() {
        return Ok(listed_by_profile);
    }
    Ok(profile.text("region_name")?.as_deref().map(Region::named).into_iter().collect())
}

fn region_from_node(node: &Node) -> Result<Region, CloudsError> {
    let Value::Map(map) = &node.value else {
        let name = node.scalar("the region")?.ok_or_else(|| node.type_error("the region", "its name"))?;
        return Ok(Region::named(&name));
    };
    if let Some((key, other)) = map.0.iter().find(|(key, _)| key != "name" && key != "values") {
        return Err(other
            .origin
            .invalid(format!("a region has no `{key}`"), "settings of a region go below its `values`"));
    }
    let name = map.text("name")?;
    let name = name.ok_or_else(|| node.origin.invalid("a region has no name", "add a `name` next to its `values`"))?;
    Ok(Region { name, values: map.map("values")? })
}

/// The selected region, or the first one if none is selected. If no regions are listed, any name is valid.
fn select_region(
    name: &str,
    known: Vec<Region>,
    cloud: &Option<String>,
    origin: &Origin,
) -> Result<Region, CloudsError> {
    if known.is_empty() {
        return Ok(Region::named(name));
    }
    let names: Vec<String> = known.iter().map(|region| region.name.clone()).collect();
    let found = known.into_iter().find(|region| name.is_empty() || region.name == name);
    found.ok_or_else(|| {
        let cloud = cloud.as_deref().unwrap_or("without a name");
        let message = format!("Region {name} is not a valid region name for cloud {cloud}.");
        let help = format!("the regions are: {} (names are case-sensitive)", names.join(", "));
        CloudsError::NoSuchRegion(origin.diagnostic(message, help))
    })
}
