//! The text under which a version of a saga is archived: everything that its hash covers.
//!
//! A saga that needs nothing besides its own file is archived as that file. Otherwise the archive is a JSON object
//! with the file, the texts of the schemas that it names, its program in base64, and what it pins of its effects: the
//! hash of what they take, and the schema of what they give.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::BASE64;

use super::binary_files::BinaryFiles;
use super::contract::BrokenContract;
use super::model::{EffectContract, ProgramDefinition};
use super::schema_files::SchemaFiles;
use crate::expr::write_sorted;
use crate::ids::{EffectName, IdError};
use crate::json::{Json, JsonError};

/// How an archive begins that is more than a file. No saga begins like this: `archive` is none of its keys.
const MARK: &str = "{\"archive\":1,";
/// Nesting of an archive, in levels: values that a schema names may be nested as deep as a YAML file.
const DEPTH_MAX: usize = 256;

/// An archive taken apart.
#[derive(Debug, Default)]
pub struct Archive {
    pub source: String,
    pub schemas: SchemaFiles,
    pub programs: BinaryFiles,
    pub effects: BTreeMap<EffectName, EffectContract>,
}

/// Puts an archive together.
#[must_use]
pub fn text(
    source: &Arc<str>,
    schemas: &BTreeMap<String, Arc<str>>,
    effects: &BTreeMap<EffectName, EffectContract>,
    program: Option<&ProgramDefinition>,
) -> Arc<str> {
    if schemas.is_empty() && effects.is_empty() && program.is_none() {
        return Arc::clone(source);
    }
    let string = |text: &str| Json::Str(Cow::Owned(text.to_owned()));
    let schemas = schemas
        .iter()
        .map(|(path, text)| (Cow::Owned(path.clone()), string(text)));
    let effects = effects
        .iter()
        .map(|(name, contract)| (Cow::Owned(name.to_string()), contract.archived()));
    let program = program.map(|program| {
        let module = BASE64.encode(program.module.bytes());
        Json::Map(vec![(
            Cow::Owned(program.file.clone()),
            Json::Str(Cow::Owned(module)),
        )])
    });
    let mut form = vec![
        (Cow::Borrowed("archive"), Json::Int(1)),
        (Cow::Borrowed("effects"), Json::Map(effects.collect())),
        (Cow::Borrowed("schemas"), Json::Map(schemas.collect())),
        (Cow::Borrowed("source"), string(source)),
    ];
    form.extend(program.map(|program| (Cow::Borrowed("program"), program)));
    let mut out = Vec::with_capacity(2 * source.len());
    write_sorted(&Json::Map(form), &mut out);
    Arc::from(String::from_utf8_lossy(&out))
}

/// Why an archive cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BrokenArchive {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("the archive has no source")]
    NoSource,
    #[error("the program {path}: {error}")]
    Program {
        path: String,
        error: data_encoding::DecodeError,
    },
    #[error(transparent)]
    EffectName(#[from] IdError),
    #[error(transparent)]
    Contract(#[from] BrokenContract),
}

/// Takes an archive apart; what is not one in the longer form is the file itself.
///
/// # Errors
/// [`BrokenArchive`] where the longer form is damaged.
pub fn opened(text: &str) -> Result<Archive, BrokenArchive> {
    if !text.starts_with(MARK) {
        return Ok(Archive {
            source: text.to_owned(),
            ..Archive::default()
        });
    }
    let json = Json::parse(text.as_bytes(), DEPTH_MAX)?;
    let Some(Json::Str(source)) = json.get("source") else {
        return Err(BrokenArchive::NoSource);
    };
    let mut archive = Archive {
        source: source.clone().into_owned(),
        ..Archive::default()
    };
    if let Some(Json::Map(schemas)) = json.get("schemas") {
        for (path, text) in schemas {
            if let Json::Str(text) = text {
                let text = Ok(Arc::from(text.as_ref()));
                archive.schemas.0.insert(path.clone().into_owned(), text);
            }
        }
    }
    if let Some(Json::Map(programs)) = json.get("program") {
        for (path, module) in programs {
            let Json::Str(module) = module else { continue };
            let module = BASE64.decode(module.as_bytes());
            let module = module.map_err(|error| BrokenArchive::Program {
                path: path.clone().into_owned(),
                error,
            })?;
            archive
                .programs
                .0
                .insert(path.clone().into_owned(), Ok(Arc::from(module)));
        }
    }
    if let Some(Json::Map(effects)) = json.get("effects") {
        for (name, contract) in effects {
            let name = EffectName::parse(name)?;
            archive.effects.insert(name, EffectContract::read(contract)?);
        }
    }
    Ok(archive)
}
