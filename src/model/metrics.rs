//! What is counted: one measured value on its way to statsd, and every name that operators see, in one place.

/// One value under the name that operators see.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub value: f64,
    pub kind: SampleKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// How much there is now.
    Gauge,
    /// How much there is more of.
    Counter,
    /// How long it took, in milliseconds.
    Timer,
}

impl Sample {
    pub fn gauge(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value, kind: SampleKind::Gauge }
    }

    pub fn counter(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value, kind: SampleKind::Counter }
    }

    pub fn timer(name: impl Into<String>, milliseconds: f64) -> Self {
        Self { name: name.into(), value: milliseconds, kind: SampleKind::Timer }
    }
}
