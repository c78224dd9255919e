//! The three drivers of this module. They share client, watches, pods and settings, and differ in what a node is.

use super::calls::{self, Call};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// A node is a namespace, with or without a pod.
    Kubernetes,
    /// A node is a project, with or without a pod.
    OpenShift,
    /// A node is a pod in a project that exists already.
    OpenShiftPods,
}

impl Variant {
    pub fn of_driver(name: &str) -> Self {
        match name {
            "openshift" => Variant::OpenShift,
            "openshiftpods" => Variant::OpenShiftPods,
            _ => Variant::Kubernetes,
        }
    }

    pub fn is_openshift(self) -> bool {
        self != Variant::Kubernetes
    }

    /// The type of a label whose nodes have no pod, and so are a whole namespace or project.
    pub fn whole_type(self) -> Option<&'static str> {
        match self {
            Variant::Kubernetes => Some("namespace"),
            Variant::OpenShift => Some("project"),
            Variant::OpenShiftPods => None,
        }
    }

    /// The word for the namespace of a node.
    pub fn home_word(self) -> &'static str {
        if self.is_openshift() { "project" } else { "namespace" }
    }

    /// Reads the namespace or project of a node.
    pub fn home(self, name: &str) -> Call {
        if self.is_openshift() { calls::project(name) } else { calls::namespace(name) }
    }

    pub fn delete_home(self, name: &str) -> Call {
        if self.is_openshift() { calls::delete_project(name) } else { calls::delete_namespace(name) }
    }
}
