//! Reading the `custom` section of an effect file.

use super::effect::CustomCall;
use super::effect_file::REQUEST_ROOTS;
use super::fields::{self, Fields, NameRule};
use super::findings::Findings;
use super::grammar;
use super::texts::{self, Readable};
use super::yaml::Entry;
use crate::expr::Template;
use crate::expr::types::Env;

/// Reads the section. Whether the runner has such a provider shows when it starts.
pub fn read(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<CustomCall> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::CUSTOM, findings)?;
    let provider = fields.require("provider", findings).and_then(|entry| {
        let what = "the name of a provider";
        let name = fields::text(&entry.value, &entry.key_span, what, findings)?;
        let span = &entry.value.span;
        fields::is_name(name, span, "provider", NameRule::Dashed, findings).then(|| name.to_owned())
    });
    let with = match fields.get("with") {
        Some(entry) => texts::template(&entry.value, Readable::knowing(REQUEST_ROOTS, env), findings),
        None => Template::Map(Vec::new()),
    };
    Some(CustomCall {
        provider: provider?,
        with,
    })
}
