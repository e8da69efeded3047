//! What a saga pins of an effect: its schemas, by their hashes.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::kernel::expr::write_sorted;
use crate::kernel::ids::DefinitionHash;
use crate::kernel::json::Json;
use crate::kernel::schema::Schema;

/// The hashes of an effect's schemas, as `sha256:<hex>`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EffectContract {
    pub input: Option<String>,
    pub output: Option<String>,
}

impl EffectContract {
    /// The contract of these schemas; `None` without any.
    #[must_use]
    pub fn of(input: Option<&Schema>, output: Option<&Schema>) -> Option<Self> {
        let hash = |schema: Option<&Schema>| {
            let mut bytes = Vec::new();
            write_sorted(&schema?.canonical(), &mut bytes);
            Some(DefinitionHash(Sha256::digest(&bytes).into()).to_string())
        };
        (input.is_some() || output.is_some()).then(|| Self {
            input: hash(input),
            output: hash(output),
        })
    }

    /// As it is hashed and archived.
    #[must_use]
    pub fn form(&self) -> Json<'static> {
        let member = |hash: &Option<String>| {
            hash.clone()
                .map_or(Json::Null, |hash| Json::Str(Cow::Owned(hash)))
        };
        Json::Map(vec![
            (Cow::Borrowed("input"), member(&self.input)),
            (Cow::Borrowed("output"), member(&self.output)),
        ])
    }

    /// Reads [`EffectContract::form`].
    ///
    /// # Errors
    /// A sentence, where it is something else.
    pub fn read(form: &Json<'_>) -> Result<Self, String> {
        let member = |name: &str| match form.get(name) {
            Some(Json::Null) => Ok(None),
            Some(Json::Str(hash)) => Ok(Some(hash.clone().into_owned())),
            _ => Err(format!("the contract of an effect has no {name}")),
        };
        Ok(Self {
            input: member("input")?,
            output: member("output")?,
        })
    }
}
