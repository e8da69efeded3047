//! Definition files: found, read, loaded, and checked against the manifest.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{StartError, consumers};
use crate::config::Manifest;
use crate::kernel::definition::{
    self, BinaryFiles, Definition, EffectDefinition, Loaded, SchemaFiles, Severity, SourceFile,
};
use crate::kernel::ids::EffectName;

/// Largest schema, in bytes.
const SCHEMA_BYTES_MAX: u64 = 1024 * 1024;
/// Most bytes of a program or of descriptors.
const BINARY_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Where definitions are looked for.
#[derive(Debug, Clone)]
pub enum Folders {
    /// A folder of each kind.
    Separate { sagas: PathBuf, effects: PathBuf },
    /// A file, or a folder with definitions of both kinds.
    Mixed(PathBuf),
}

/// Definition files as they were read, in the order of their paths.
#[derive(Debug, Default)]
pub struct Files {
    pub sagas: Vec<SourceFile>,
    pub effects: Vec<SourceFile>,
    /// Manifests among files of both kinds.
    pub manifests: Vec<SourceFile>,
    /// The schemas that they name.
    pub schemas: SchemaFiles,
    /// The programs and descriptors that they name.
    pub binaries: BinaryFiles,
}

/// Definitions without errors that the manifest can serve.
#[derive(Debug)]
pub struct Read {
    pub sagas: Vec<Arc<Definition>>,
    pub effects: Vec<Arc<EffectDefinition>>,
    /// Hash of the texts of the effects and of all schemas: with the same texts the effects are the same.
    pub effects_text: [u8; 32],
    /// What they were read from.
    pub files: Arc<Files>,
}

impl From<Loaded> for Read {
    /// Definitions that came from no files: a reload takes their effects for changed.
    fn from(loaded: Loaded) -> Self {
        Self {
            sagas: loaded.sagas,
            effects: loaded.effects,
            effects_text: [0; 32],
            files: Arc::default(),
        }
    }
}

impl Files {
    fn effects_text(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for file in &self.effects {
            add(&file.path);
            add(&file.text);
        }
        for (path, text) in &self.schemas.0 {
            add(path);
            add(text.as_deref().unwrap_or_default());
        }
        *hasher.finalize().as_bytes()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sagas.is_empty() && self.effects.is_empty()
    }

    /// Another one whenever anything in them is another.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut add = |name: &str, bytes: Result<&[u8], &str>| {
            let (known, bytes) = match bytes {
                Ok(bytes) => (1, bytes),
                Err(why) => (0, why.as_bytes()),
            };
            for part in [name.as_bytes(), &[known], bytes] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        };
        for file in self.sagas.iter().chain(&self.effects).chain(&self.manifests) {
            add(&file.path, Ok(file.text.as_bytes()));
        }
        for (path, text) in &self.schemas.0 {
            add(
                path,
                text.as_ref().map(|text| text.as_bytes()).map_err(String::as_str),
            );
        }
        for (path, bytes) in &self.binaries.0 {
            add(path, bytes.as_ref().map(|bytes| &**bytes).map_err(String::as_str));
        }
        *hasher.finalize().as_bytes()
    }

    /// Every text by the name under which findings know it.
    #[must_use]
    pub fn texts(&self) -> BTreeMap<String, Arc<str>> {
        let definitions = self.sagas.iter().chain(&self.effects).chain(&self.manifests);
        let schemas = self.schemas.0.iter();
        definitions
            .map(|file| (file.path.clone(), Arc::clone(&file.text)))
            .chain(schemas.filter_map(|(path, text)| Some((path.clone(), text.clone().ok()?))))
            .collect()
    }

    /// Reads, checks and compiles what was read.
    #[must_use]
    pub fn load(&self) -> Loaded {
        definition::load_with(&self.sagas, &self.effects, &self.schemas, &self.binaries)
    }
}

/// Reads every `*.yaml` and `*.yml` file, hidden ones, `*.test.yaml` and folders called `schemas` left out, and
/// the schemas and programs that they name.
///
/// # Errors
/// The file or folder that cannot be read, with the reason.
pub fn read(folders: &Folders) -> Result<Files, String> {
    let mut files = Files::default();
    match folders {
        Folders::Separate { sagas, effects } => {
            files.sagas = read_all(sagas)?;
            files.effects = read_all(effects)?;
        }
        Folders::Mixed(path) => {
            for file in read_mixed(path)? {
                if is_effect(&file.text) {
                    files.effects.push(file);
                } else if is_manifest(&file.text) {
                    files.manifests.push(file);
                } else {
                    files.sagas.push(file);
                }
            }
        }
    }
    let definitions = files.sagas.iter().chain(&files.effects);
    let named = definitions.flat_map(|file| definition::named_schemas(&file.path, &file.text));
    for path in named {
        if let Entry::Vacant(vacant) = files.schemas.0.entry(path) {
            let text = read_schema(Path::new(vacant.key()));
            vacant.insert(text);
        }
    }
    let definitions = files.sagas.iter().chain(&files.effects);
    for path in definitions.filter_map(|file| definition::named_binary(&file.path, &file.text)) {
        if let Entry::Vacant(vacant) = files.binaries.0.entry(path) {
            let bytes = read_binary(Path::new(vacant.key()));
            vacant.insert(bytes);
        }
    }
    Ok(files)
}

/// Why the definitions of a folder, or a file, cannot be read; `None` where they can.
#[must_use]
pub fn unreadable(path: &Path) -> Option<String> {
    read_all(path).err()
}

/// The text of a schema, or why there is none.
fn read_schema(path: &Path) -> Result<Arc<str>, String> {
    let described = |error: io::Error| error.to_string();
    let size = std::fs::metadata(path).map_err(described)?.len();
    if size > SCHEMA_BYTES_MAX {
        return Err(format!(
            "it is {size} bytes long, at most {SCHEMA_BYTES_MAX} are allowed"
        ));
    }
    std::fs::read_to_string(path).map(Arc::from).map_err(described)
}

/// The bytes of a file, or why there are none.
fn read_binary(path: &Path) -> Result<Arc<[u8]>, String> {
    let described = |error: io::Error| error.to_string();
    let size = std::fs::metadata(path).map_err(described)?.len();
    if size > BINARY_BYTES_MAX {
        return Err(format!(
            "it is {size} bytes long, at most {BINARY_BYTES_MAX} are allowed"
        ));
    }
    std::fs::read(path).map(Arc::from).map_err(described)
}

/// A folder with `sagas/` or `effects/` is a project: what else it holds are no definitions.
fn read_mixed(path: &Path) -> Result<Vec<SourceFile>, String> {
    let folders: Vec<PathBuf> = ["sagas", "effects"]
        .iter()
        .map(|name| path.join(name))
        .filter(|folder| folder.is_dir())
        .collect();
    if folders.is_empty() {
        return read_all(path);
    }
    let mut files = Vec::new();
    for folder in folders {
        files.extend(read_all(&folder)?);
    }
    Ok(files)
}

fn is_effect(text: &str) -> bool {
    header(text, "kind") == Some("Effect")
}

fn is_manifest(text: &str) -> bool {
    header(text, "apiVersion").is_some_and(|version| version.starts_with("saga-runner/"))
}

/// The plain scalar of a top-level key.
fn header<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(|value| {
            value
                .split(" #")
                .next()
                .unwrap_or(value)
                .trim()
                .trim_matches(['"', '\''])
        })
}

/// Reads every `*.test.yaml` and `*.test.yml` file, or the one that `path` names.
///
/// # Errors
/// The file or folder that cannot be read, with the reason.
pub fn read_tests(path: &Path) -> Result<Vec<SourceFile>, String> {
    read_matching(path, &is_test)
}

fn is_test(name: &str) -> bool {
    name.contains(".test.")
}

fn read_all(path: &Path) -> Result<Vec<SourceFile>, String> {
    read_matching(path, &|name| !is_test(name))
}

fn read_matching(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<SourceFile>, String> {
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let mut paths = Vec::new();
    if path.is_file() {
        paths.push(path.to_owned());
    } else {
        walk(path, wanted, &mut paths).map_err(named)?;
    }
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text =
                std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(SourceFile {
                path: path.display().to_string(),
                text: Arc::from(text),
            })
        })
        .collect()
}

fn walk(folder: &Path, wanted: &dyn Fn(&str) -> bool, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let Some(name) = name.filter(|name| !name.starts_with('.') && name != "target" && name != "schemas")
        else {
            continue;
        };
        if path.is_dir() {
            walk(&path, wanted, found)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml")
            && wanted(&name)
        {
            found.push(path);
        }
    }
    Ok(())
}

/// Loads what the manifest names and checks that the manifest gives what the definitions need.
///
/// # Errors
/// [`StartError::Definitions`] with all findings, [`StartError::Missing`] for what the manifest lacks.
pub fn load(manifest: &Manifest) -> Result<Read, StartError> {
    let folders = Folders::Separate {
        sagas: manifest.sagas.clone(),
        effects: manifest.effects.clone(),
    };
    compiled(manifest, read(&folders).map_err(StartError::Unreadable)?)
}

/// Compiles what was read and checks that the manifest gives what the definitions need.
///
/// # Errors
/// As [`load`].
pub fn compiled(manifest: &Manifest, files: Files) -> Result<Read, StartError> {
    let loaded = files.load();
    if loaded
        .diagnostics
        .iter()
        .any(|finding| finding.severity == Severity::Error)
    {
        return Err(StartError::Definitions {
            findings: loaded.diagnostics,
            texts: files.texts(),
        });
    }
    for finding in &loaded.diagnostics {
        tracing::warn!(%finding, "definition");
    }
    check_needs(manifest, &loaded)?;
    Ok(Read {
        effects_text: files.effects_text(),
        sagas: loaded.sagas,
        effects: loaded.effects,
        files: Arc::new(files),
    })
}

fn check_needs(manifest: &Manifest, loaded: &Loaded) -> Result<(), StartError> {
    let missing = missing(manifest, loaded);
    if !missing.is_empty() {
        return Err(StartError::Missing(missing));
    }
    consumers::plan(manifest, &loaded.effects).map(drop)
}

/// What the definitions need and the manifest does not give, all of it.
fn missing(manifest: &Manifest, loaded: &Loaded) -> Vec<String> {
    let mut missing = Vec::new();
    let effects = loaded.effects.iter().filter(|_| manifest.mode.runs_effects());
    for effect in effects {
        let upstreams = effect.upstreams().into_iter();
        let unknown = upstreams.filter(|name| !manifest.upstreams.contains_key(name));
        missing.extend(unknown.map(|name| lacks(&effect.name, &format!("upstreams.{name}"))));
        let secrets = effect.secrets().into_iter();
        let unknown = secrets.filter(|name| !manifest.secrets.contains_key(name));
        missing.extend(unknown.map(|name| lacks(&effect.name, &format!("secrets.{name}"))));
        if effect.hands_out_token() && manifest.callbacks.is_none() {
            missing.push(format!(
                "effect {} uses command.token, which needs callbacks.key in the manifest",
                effect.name
            ));
        }
    }
    let has_tenants = manifest.scheduled_tenants.is_some() || !manifest.scheduled_tenants().is_empty();
    for saga in loaded.sagas.iter().filter(|_| manifest.mode.runs_sagas()) {
        let name = &saga.name;
        if saga.hands_out_tokens() && manifest.callbacks.is_none() {
            missing.push(format!(
                "saga {name} uses command.token in a command, which needs callbacks.key in the manifest"
            ));
        }
        if saga.schedule.is_some() && !has_tenants {
            missing.push(format!(
                "saga {name} has a schedule, which needs a list of tenants: set scheduled_tenants in the manifest"
            ));
        }
        if saga.sends_commands() && manifest.gateway.is_none() {
            missing.push(format!(
                "saga {name} sends aggregate commands, which needs gateway in the manifest"
            ));
        }
    }
    missing
}

fn lacks(effect: &EffectName, what: &str) -> String {
    format!("effect {effect} names {what}, which the manifest does not have")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_folder_is_sorted_by_kind() {
        let dir = tempfile::tempdir().expect("temporary folder");
        for (name, text) in [
            ("a.yaml", "apiVersion: sagas/v1\nkind: Effect\n"),
            ("b.yml", "apiVersion: sagas/v1\nkind: \"Saga\"  # why not\n"),
            ("c.test.yaml", "saga: b\n"),
            ("m.yaml", "apiVersion: saga-runner/v1\nkind: Manifest\n"),
            (".hidden.yaml", "x"),
        ] {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let files = read(&Folders::Mixed(dir.path().to_owned())).expect("readable");
        let names = |files: &[SourceFile]| -> Vec<String> {
            files
                .iter()
                .map(|file| file.path.rsplit('/').next().unwrap_or_default().to_owned())
                .collect()
        };
        assert_eq!(names(&files.effects), ["a.yaml"]);
        assert_eq!(names(&files.sagas), ["b.yml"]);
        assert_eq!(names(&files.manifests), ["m.yaml"]);
    }

    #[test]
    fn a_schedule_needs_tenants_to_start_for() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let saga = "apiVersion: sagas/v1\nkind: Saga\nname: a\nschedule: {cron: 0 6 * * *}\nstate: {init: {}}\nsteps: {tell: {publish: {type: a.b, payload: {}}}}\n";
        for folder in ["sagas", "effects"] {
            std::fs::create_dir(dir.path().join(folder)).expect("created");
        }
        std::fs::write(dir.path().join("sagas/a.yaml"), saga).expect("written");
        let mut manifest = Manifest::named("test");
        manifest.sagas = dir.path().join("sagas");
        manifest.effects = dir.path().join("effects");
        assert!(load(&manifest).is_ok(), "without tenants there is one");
        manifest.tenants = Some(crate::config::TenantList::Any);
        let refusal = load(&manifest).expect_err("nobody is named").to_string();
        assert!(refusal.contains("saga a has a schedule"), "{refusal}");
        manifest.scheduled_tenants = Some(Vec::new());
        assert!(load(&manifest).is_ok(), "for nobody, as it was said");
    }

    #[test]
    fn everything_that_the_manifest_lacks_is_told_at_once() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let call = |name: &str, upstream: &str| {
            format!(
                "apiVersion: sagas/v1\nkind: Effect\nname: {name}\nhttp: {{method: POST, url: \"${{upstreams.{upstream}}}/x\", headers: {{key: \"${{secrets.{name}_key}}\"}}}}\n"
            )
        };
        let saga = "apiVersion: sagas/v1\nkind: Saga\nname: a\nstart: A.B\nkey: {\"*\": event.id}\nstate: {init: {}}\nsteps: {tell: {command: {aggregate: A, id: x, type: A.C}}}\n";
        for (file, text) in [
            ("effects/one.yaml", call("one", "bank").as_str()),
            ("effects/two.yaml", &call("two", "shop")),
            ("sagas/a.yaml", saga),
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            std::fs::write(path, text).expect("written");
        }
        let mut manifest = Manifest::named("test");
        manifest.sagas = dir.path().join("sagas");
        manifest.effects = dir.path().join("effects");
        let told = load(&manifest).expect_err("much is missing").to_string();
        for what in [
            "effect one names upstreams.bank",
            "effect one names secrets.one_key",
            "effect two names upstreams.shop",
            "effect two names secrets.two_key",
            "saga a sends aggregate commands",
        ] {
            let lines = told
                .lines()
                .filter(|line| line.contains(what) && line.ends_with("[SR0406]"));
            assert_eq!(lines.count(), 1, "{what}: {told}");
        }
        assert_eq!(told.lines().count(), 5, "{told}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = read(&Folders::Mixed(PathBuf::from("/no/such/folder"))).expect_err("missing");
        assert!(error.contains("/no/such/folder"), "{error}");
    }

    #[test]
    fn the_schemas_that_definitions_name_are_read_and_are_no_definitions() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let saga = "apiVersion: sagas/v1\nkind: Saga\nname: a\nstart: A.B\nkey: {\"*\": event.id}\nstate: {init: {}, schema: schemas/a.yaml}\nsteps: {}\nevents: {A.B: {schema: ../none.json}}\n";
        std::fs::create_dir_all(dir.path().join("sagas/schemas")).expect("created");
        std::fs::create_dir_all(dir.path().join("effects")).expect("created");
        std::fs::write(dir.path().join("sagas/a.yaml"), saga).expect("written");
        std::fs::write(dir.path().join("sagas/schemas/a.yaml"), "type: objekt\n").expect("written");
        let files = read(&Folders::Mixed(dir.path().to_owned())).expect("readable");
        assert_eq!((files.sagas.len(), files.schemas.0.len()), (1, 2));
        let loaded = files.load();
        let told: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        let has = |part: &str| told.iter().any(|line| line.contains(part));
        assert!(has("schemas/a.yaml:1:7: unknown type \"objekt\""), "{told:?}");
        assert!(has("none.json cannot be read"), "{told:?}");
        assert!(files.texts().keys().any(|path| path.ends_with("schemas/a.yaml")));
    }
}
