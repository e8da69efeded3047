//! What a saga pins of an effect: its schemas, and whether it asks an operator.
//!
//! The saga's hash covers the schemas by their hashes. What the effect gives is kept whole, because results are held
//! against it for as long as an instance runs under the version.

use std::borrow::Cow;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::expr::write_sorted;
use crate::ids::DefinitionHash;
use crate::json::Json;
use crate::schema::{BrokenSchema, Schema};

/// Why a stored form is not the contract of an effect.
#[derive(Debug, thiserror::Error)]
pub enum BrokenContract {
    #[error("the contract of an effect has no {0}")]
    Lacks(&'static str),
    #[error("the contract of an effect has an unknown {ON_AMBIGUOUS}")]
    OnAmbiguous,
    #[error(transparent)]
    Schema(#[from] BrokenSchema),
}

/// Key of an effect file, and the one answer that concerns its sagas.
pub const ON_AMBIGUOUS: &str = "on_ambiguous";
pub const ASK: &str = "ask";

/// The schemas of an effect, and what follows where its outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EffectContract {
    /// Hash of the schema of what it takes, as `sha256:<hex>`.
    pub input: Option<String>,
    /// What it gives.
    pub output: Option<PinnedSchema>,
    /// An operator is asked for an outcome that is unknown.
    pub asks: bool,
}

/// A schema by which values are judged, and its hash as `sha256:<hex>`.
#[derive(Debug, Clone)]
pub struct PinnedSchema {
    hash: String,
    pub schema: Arc<Schema>,
}

impl PartialEq for PinnedSchema {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for PinnedSchema {}

impl PinnedSchema {
    #[must_use]
    pub fn new(schema: Arc<Schema>) -> Self {
        Self {
            hash: hash(&schema),
            schema,
        }
    }
}

impl EffectContract {
    /// The contract of these schemas; `None` where there is nothing to pin.
    #[must_use]
    pub fn of(input: Option<&Schema>, output: Option<&Arc<Schema>>, asks: bool) -> Option<Self> {
        (input.is_some() || output.is_some() || asks).then(|| Self {
            input: input.map(hash),
            output: output.map(|schema| PinnedSchema::new(Arc::clone(schema))),
            asks,
        })
    }

    /// As it is hashed.
    #[must_use]
    pub fn form(&self) -> Json<'static> {
        let output = self.output.as_ref().map(|output| text(&output.hash));
        self.form_with(output)
    }

    /// As it is archived: with all that results are judged by.
    #[must_use]
    pub fn archived(&self) -> Json<'static> {
        let output = self.output.as_ref().map(|output| output.schema.canonical());
        self.form_with(output)
    }

    fn form_with(&self, output: Option<Json<'static>>) -> Json<'static> {
        let input = self.input.as_deref().map(text);
        let mut form = vec![
            (Cow::Borrowed("input"), input.unwrap_or(Json::Null)),
            (Cow::Borrowed("output"), output.unwrap_or(Json::Null)),
        ];
        if self.asks {
            form.push((Cow::Borrowed(ON_AMBIGUOUS), Json::Str(Cow::Borrowed(ASK))));
        }
        Json::Map(form)
    }

    /// Reads [`EffectContract::archived`].
    ///
    /// # Errors
    /// [`BrokenContract`] where it is something else.
    pub fn read(form: &Json<'_>) -> Result<Self, BrokenContract> {
        Ok(Self {
            input: match form.get("input") {
                Some(Json::Null) => None,
                Some(Json::Str(hash)) => Some(hash.clone().into_owned()),
                _ => return Err(BrokenContract::Lacks("input")),
            },
            output: match form.get("output") {
                Some(Json::Null) => None,
                Some(schema) => Some(PinnedSchema::new(Arc::new(Schema::from_canonical(schema)?))),
                None => return Err(BrokenContract::Lacks("output")),
            },
            asks: match form.get(ON_AMBIGUOUS) {
                None => false,
                Some(Json::Str(answer)) if answer == ASK => true,
                Some(_) => return Err(BrokenContract::OnAmbiguous),
            },
        })
    }
}

fn text(text: &str) -> Json<'static> {
    Json::Str(Cow::Owned(text.to_owned()))
}

fn hash(schema: &Schema) -> String {
    let mut bytes = Vec::new();
    write_sorted(&schema.canonical(), &mut bytes);
    DefinitionHash(Sha256::digest(&bytes).into()).to_string()
}
