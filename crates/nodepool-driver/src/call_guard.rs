//! What a change passes before it goes out.

use futures::future::BoxFuture;

/// Opens as long as the session is known to live. Each call has passed it; a driver that sends something a second time by itself
/// passes it again.
pub struct Gate(Option<Box<Opening>>);

type Opening = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

impl Gate {
    /// For calls that change nothing.
    pub fn open() -> Self {
        Self(None)
    }

    pub fn new(opening: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(opening)))
    }

    pub async fn passed(&self) {
        if let Some(opening) = &self.0 {
            opening().await;
        }
    }
}
