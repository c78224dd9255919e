//! What a change passes before it goes out.

use futures::future::BoxFuture;

/// Opens as long as the session is known to live. Each call has passed it; a driver that sends something a second time by itself
/// passes it again.
pub struct CallGuard(Option<Box<GuardFn>>);

type GuardFn = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

impl CallGuard {
    /// For calls that change nothing.
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
