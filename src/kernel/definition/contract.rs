//! What a saga pins of an effect: its schemas, by their hashes, and whether it asks an operator.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::kernel::expr::write_sorted;
use crate::kernel::ids::DefinitionHash;
use crate::kernel::json::Json;
use crate::kernel::schema::Schema;

/// Key of an effect file, and the one answer that concerns its sagas.
pub const ON_AMBIGUOUS: &str = "on_ambiguous";
pub const ASK: &str = "ask";

/// The hashes of an effect's schemas, as `sha256:<hex>`, and what follows where nobody knows the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EffectContract {
    pub input: Option<String>,
    pub output: Option<String>,
    /// An operator is asked for an outcome that nobody knows.
    pub asks: bool,
}

impl EffectContract {
    /// The contract of these schemas; `None` where there is nothing to pin.
    #[must_use]
    pub fn of(input: Option<&Schema>, output: Option<&Schema>, asks: bool) -> Option<Self> {
        let hash = |schema: Option<&Schema>| {
            let mut bytes = Vec::new();
            write_sorted(&schema?.canonical(), &mut bytes);
            Some(DefinitionHash(Sha256::digest(&bytes).into()).to_string())
        };
        (input.is_some() || output.is_some() || asks).then(|| Self {
            input: hash(input),
            output: hash(output),
            asks,
        })
    }

    /// As it is hashed and archived.
    #[must_use]
    pub fn form(&self) -> Json<'static> {
        let member = |hash: &Option<String>| {
            hash.clone()
                .map_or(Json::Null, |hash| Json::Str(Cow::Owned(hash)))
        };
        let mut form = vec![
            (Cow::Borrowed("input"), member(&self.input)),
            (Cow::Borrowed("output"), member(&self.output)),
        ];
        if self.asks {
            form.push((Cow::Borrowed(ON_AMBIGUOUS), Json::Str(Cow::Borrowed(ASK))));
        }
        Json::Map(form)
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
            asks: match form.get(ON_AMBIGUOUS) {
                None => false,
                Some(Json::Str(answer)) if answer == ASK => true,
                Some(_) => return Err(format!("the contract of an effect has an unknown {ON_AMBIGUOUS}")),
            },
        })
    }
}
