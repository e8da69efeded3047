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

/// A text taken apart into the file of the saga and, by name, what its hash covers besides.
#[derive(Debug, Default, PartialEq)]
pub struct Parts<'t> {
    pub source: Cow<'t, str>,
    /// What the saga pins of its effects, as [`EffectContract::archived`] writes it.
    pub effects: Vec<(Cow<'t, str>, Json<'t>)>,
    /// The texts of schemas by their paths.
    pub schemas: Vec<(Cow<'t, str>, Json<'t>)>,
    /// The program in base64 by its path.
    pub program: Vec<(Cow<'t, str>, Json<'t>)>,
}

impl<'t> Parts<'t> {
    /// Takes a text apart; what is not in the longer form is the file itself.
    ///
    /// # Errors
    /// [`BrokenArchive`] where the longer form is no JSON, or has no file.
    pub fn of(text: &'t str) -> Result<Self, BrokenArchive> {
        if !text.starts_with(MARK) {
            return Ok(Self {
                source: Cow::Borrowed(text),
                ..Self::default()
            });
        }
        let Json::Map(form) = Json::parse(text.as_bytes(), DEPTH_MAX)? else {
            return Err(BrokenArchive::NoSource);
        };
        let (mut parts, mut source) = (Self::default(), None);
        for (key, value) in form {
            match (&*key, value) {
                ("source", Json::Str(text)) => source = Some(text),
                ("effects", Json::Map(entries)) => parts.effects = entries,
                ("schemas", Json::Map(entries)) => parts.schemas = entries,
                ("program", Json::Map(entries)) => parts.program = entries,
                _ => {}
            }
        }
        parts.source = source.ok_or(BrokenArchive::NoSource)?;
        Ok(parts)
    }
}

/// Takes an archive apart, and reads each part.
///
/// # Errors
/// [`BrokenArchive`] where the longer form is damaged.
pub fn opened(text: &str) -> Result<Archive, BrokenArchive> {
    let parts = Parts::of(text)?;
    let mut archive = Archive {
        source: parts.source.into_owned(),
        ..Archive::default()
    };
    for (path, text) in parts.schemas {
        if let Json::Str(text) = text {
            archive.schemas.0.insert(path.into_owned(), Ok(Arc::from(&*text)));
        }
    }
    for (path, module) in parts.program {
        let Json::Str(module) = module else { continue };
        let module = BASE64.decode(module.as_bytes());
        let module = module.map_err(|error| BrokenArchive::Program {
            path: path.to_string(),
            error,
        })?;
        archive
            .programs
            .0
            .insert(path.into_owned(), Ok(Arc::from(module)));
    }
    for (name, contract) in parts.effects {
        let contract = EffectContract::read(&contract)?;
        archive.effects.insert(EffectName::parse(&name)?, contract);
    }
    Ok(archive)
}
