//! The timers of the controllers.

use simulated_service::timers;

/// Work that is due at a time. Names are those of objects, and the uid tells a later object of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    FillSecret {
        namespace: String,
        name: String,
        uid: String,
    },
    /// The token secret that the cluster itself creates for an account.
    CreateAccountSecret {
        namespace: String,
        account: String,
        uid: String,
    },
    CreateDefaultAccounts {
        namespace: String,
        uid: String,
    },
    /// The step with this number of the plan of a pod.
    PodStep {
        uid: String,
        number: u64,
    },
    ClearNamespace {
        name: String,
        uid: String,
    },
    FinishNamespace {
        name: String,
        uid: String,
    },
}

pub type Timers = timers::Timers<Work>;
