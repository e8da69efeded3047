//! JSON Schemas (draft-07) of definition files, for editors.
//!
//! The loader does not read them and says more than they can. A test holds their keys against those that the
//! loader accepts: whoever adds a key adds it in both places.

/// Of a saga file.
pub const SAGA: &str = include_str!("saga.json");
/// Of an effect file.
pub const EFFECT: &str = include_str!("effect.json");
