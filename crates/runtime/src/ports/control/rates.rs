//! What happened in the last hour, minute by minute.

use serde::Serialize;

/// The last hour.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RatesView {
    /// Minute by minute, oldest first; the last one is under way.
    pub items: Vec<MinuteView>,
    /// All of them together.
    pub total: MinuteView,
}

/// What happened in a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MinuteView {
    /// When it began.
    pub at: String,
    /// How long it is, in seconds.
    pub seconds: f64,
    pub inputs: InputRates,
    /// Inputs that were applied.
    pub transitions: u64,
    pub instances_started: u64,
    pub instances_ended: u64,
    pub dead_letters: u64,
    pub calls: CallRates,
    /// Those that were called, by name.
    pub effects: Vec<EffectRates>,
    /// The same by the address that each effect calls now, by name.
    pub upstreams: Vec<UpstreamRates>,
}

/// Inputs by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct InputRates {
    pub event: u64,
    pub result: u64,
    pub timer: u64,
    pub control: u64,
}

/// Calls of upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CallRates {
    pub count: u64,
    /// Of any class but `succeeded`.
    pub failed: u64,
    /// Half of them took no longer than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_seconds: Option<f64>,
}

/// Calls for one effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectRates {
    /// `(others)`: effects beyond the first hundred.
    pub effect: String,
    #[serde(flatten)]
    pub calls: CallRates,
}

/// Calls of one upstream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UpstreamRates {
    /// Host and port. `(others)`: upstreams beyond the first hundred, and effects that are not loaded any more, or of which there are
    /// no figures.
    pub upstream: String,
    #[serde(flatten)]
    pub calls: CallRates,
}
