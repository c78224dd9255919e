//! Logger names of a program, as tables that it passes in: each tracing target logs under a name of the Python
//! original.

use std::borrow::Cow;

/// The names that operators use in their logging files, and the tracing targets that log under them.
#[derive(Debug, PartialEq, Eq)]
pub struct LoggerNames {
    /// The logger above all loggers of the program, and the prefix of its tracing targets.
    /// The default plan shows it from INFO; spans outside it are ignored.
    pub root: &'static str,
    /// The logger of warnings about the log itself, such as a file that cannot be rotated.
    pub log_warnings: &'static str,
    /// Module paths and the loggers that they log under. The longest prefix applies.
    /// A module without an entry logs under its path.
    pub modules: &'static [(&'static str, &'static str)],
    /// Those of `modules` whose submodules have loggers of their own, below the one of the module.
    pub nested_modules: &'static [&'static str],
    /// Loggers that exist once for each value of a field.
    pub families: &'static [Family],
    /// Loggers that the original has created when it reads its logging file, as far as the program uses them.
    /// `disable_existing_loggers` applies to these.
    pub existing_loggers: &'static [&'static str],
    /// Python libraries and the Rust crates that do their work: an entry for the first applies to the second.
    pub libraries: &'static [(&'static str, &'static str)],
    /// Loggers of libraries that the default plan shows from WARNING.
    pub default_libraries: &'static [&'static str],
    /// Prefixes of tracing targets whose warnings and errors count as INFO: the program logs these failures itself.
    pub demoted_targets: &'static [&'static str],
}

/// A logger that exists once for each value of a field; the name of a member ends with the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    pub logger: &'static str,
    pub field: &'static str,
    pub suffix: SuffixRule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuffixRule {
    /// `logger.value`
    Dot,
    /// `logger[value]`
    Brackets,
}

impl LoggerNames {
    /// The logger of a tracing target. A target without `::` is a logger name already.
    pub fn logger<'a>(&self, target: &'a str) -> Cow<'a, str> {
        if !target.contains("::") {
            return Cow::Borrowed(target);
        }
        let matching = self.modules.iter().filter(|(module, _)| is_in_module(target, module));
        match matching.max_by_key(|(module, _)| module.len()) {
            Some((module, logger)) if self.nested_modules.contains(module) => {
                Cow::Owned(format!("{logger}{}", target[module.len()..].replace("::", ".")))
            }
            Some((_, logger)) => Cow::Borrowed(logger),
            None => Cow::Owned(target.replace("::", ".")),
        }
    }

    /// The field that distinguishes the members of a family.
    pub fn distinguishing_field(&self, logger: &str) -> Option<&'static str> {
        self.family(logger).map(|family| family.field)
    }

    /// The member of a family for a value of its field.
    pub fn member_name(&self, logger: &str, value: &str) -> String {
        match self.family(logger).map(|family| family.suffix) {
            Some(SuffixRule::Brackets) => format!("{logger}[{value}]"),
            Some(SuffixRule::Dot) | None => format!("{logger}.{value}"),
        }
    }

    fn family(&self, logger: &str) -> Option<&'static Family> {
        self.families.iter().find(|family| family.logger == logger)
    }

    /// The loggers that an entry of a logging file applies to: the named one, and the crate that does its work.
    pub fn applies_to(&self, name: &str) -> Vec<String> {
        std::iter::once(name).chain(self.library_of(name)).map(str::to_owned).collect()
    }

    /// The crate that does the work of a library of the original.
    pub fn library_of(&self, name: &str) -> Option<&'static str> {
        self.libraries.iter().find(|(original, _)| *original == name).map(|(_, library)| *library)
    }
}

fn is_in_module(target: &str, module: &str) -> bool {
    target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Whether the name of an entry may be a member of the family of `logger`.
pub fn may_be_member(entry: &str, logger: &str) -> bool {
    entry.strip_prefix(logger).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// A part of Nodepool's tables, as an example.
#[cfg(test)]
pub(crate) static EXAMPLE: LoggerNames = LoggerNames {
    root: "nodepool",
    log_warnings: "nodepool.log",
    modules: &[
        ("nodepool::launcher", "nodepool.NodePool"),
        ("nodepool::launcher::pool", "nodepool.PoolWorker"),
        ("nodepool_drivers", "nodepool.driver"),
    ],
    nested_modules: &["nodepool_drivers"],
    families: &[
        Family { logger: "nodepool.PoolWorker", field: "pool", suffix: SuffixRule::Dot },
        Family { logger: "nodepool.builder.BuildWorker", field: "worker", suffix: SuffixRule::Dot },
        Family { logger: "nodepool.driver.NodeRequestHandler", field: "launcher", suffix: SuffixRule::Brackets },
    ],
    existing_loggers: &[
        "kazoo.client",
        "nodepool.NodePool",
        "nodepool.zk.ZooKeeper",
        "nodepool.zk.ZooKeeperClient",
        "nodepool.zk.cache.event",
    ],
    libraries: &[("kazoo", "zookeeper_client"), ("kazoo.client", "zookeeper_client"), ("requests", "reqwest")],
    default_libraries: &["requests", "kazoo"],
    demoted_targets: &["zookeeper_client"],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_logs_under_the_name_of_its_longest_prefix() {
        let cases = [
            ("nodepool::launcher", "nodepool.NodePool"),
            ("nodepool::launcher::tree", "nodepool.NodePool"),
            ("nodepool::launcher::pool::launches", "nodepool.PoolWorker"),
            ("nodepool::launchers", "nodepool.launchers"),
            ("nodepool_drivers::fake", "nodepool.driver.fake"),
            ("reqwest::connect", "reqwest.connect"),
            ("nodepool.stack_dump", "nodepool.stack_dump"),
        ];
        for (target, expected) in cases {
            assert_eq!(EXAMPLE.logger(target), expected, "{target}");
        }
    }

    #[test]
    fn a_member_of_a_family_ends_with_the_value_of_its_field() {
        let cases = [
            ("nodepool.PoolWorker", "pool", "lab-main", "nodepool.PoolWorker.lab-main"),
            ("nodepool.driver.NodeRequestHandler", "launcher", "host-1", "nodepool.driver.NodeRequestHandler[host-1]"),
        ];
        for (logger, field, value, expected) in cases {
            assert_eq!(EXAMPLE.distinguishing_field(logger), Some(field));
            assert_eq!(EXAMPLE.member_name(logger, value), expected);
            assert!(may_be_member(expected, logger) && !may_be_member(logger, logger));
        }
        assert_eq!(EXAMPLE.distinguishing_field("nodepool.NodePool"), None);
    }

    #[test]
    fn an_entry_for_a_library_applies_to_the_crate_that_does_its_work() {
        assert_eq!(EXAMPLE.applies_to("kazoo"), ["kazoo", "zookeeper_client"]);
        assert_eq!(EXAMPLE.applies_to("nodepool"), ["nodepool"]);
    }
}
