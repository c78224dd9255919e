//! What a change passes before it goes out.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

/// Opens as long as the session is known to live. Each call has passed it; a driver that sends something a second time by itself
/// passes it again.
#[derive(Clone, Default)]
pub struct Gate(Option<Arc<Opening>>);

type Opening = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

impl Gate {
    /// For calls that change nothing.
    pub fn open() -> Self {
        Self(None)
    }

    pub fn new(opening: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(opening)))
    }

    pub async fn passed(&self) {
        if let Some(opening) = &self.0 {
            opening().await;
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("is_open", &self.0.is_none()).finish()
    }
}
