//! Call guard: the last check before a mutating call is sent.

use futures::future::BoxFuture;

/// Open while the session is known to be alive. The TaskManager passes it before each mutating call; a driver that
/// repeats a request by itself passes it again.
pub struct CallGuard(Option<Box<GuardFn>>);

type GuardFn = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

impl CallGuard {
    /// Guard for calls that change nothing: it never waits.
    pub fn none() -> Self {
        Self(None)
    }

    pub fn new(guard: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(guard)))
    }

    pub async fn wait_until_allowed(&self) {
        if let Some(guard) = &self.0 {
            guard().await;
        }
    }
}
