//! `dead-letter edit`: the data in an editor, then a retry with what comes out of it.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::EditArguments;
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::cli::client::Client;
use crate::cli::given;

/// Where no variable names an editor.
const EDITOR: &str = "vi";

pub fn edit(arguments: &EditArguments) -> Result<(), Failure> {
    let letter = &arguments.letter;
    let client = Client::new(&letter.common.server)?;
    let shown = client.get(&letter.path(&client)?)?;
    let data = data_of(&shown)?;
    let before = format!("{data:#}\n");
    let draft = Draft::new(&letter.id, &before)?;
    draft.open()?;
    let after = given::read(&draft.path)?;
    let edited = given::parsed("the edited text", &after).map_err(|failure| draft.kept(failure))?;
    if edited == *data {
        draft.remove();
        out::note("the data are the same: nothing was changed");
        return Ok(());
    }
    let mut body = arguments.account.body();
    body["data"] = edited;
    match client.post_json(&format!("{}/retry", letter.path(&client)?), &body) {
        Ok(_) => {
            draft.remove();
            out::note(format_args!(
                "dead letter {} is applied again with other data",
                letter.id
            ));
            Ok(())
        }
        Err(failure) => Err(draft.kept(failure)),
    }
}

/// The data of a dead letter that can be edited here.
fn data_of(shown: &Value) -> Result<&Value, Failure> {
    let input = &shown["input"];
    let places = ["/event/payload", "/signal/data", "/start/input"];
    if let Some(data) = places.into_iter().find_map(|place| input.pointer(place)) {
        return Ok(data);
    }
    let why = if input.get("result").is_some() {
        "a result may be shown without parts that its effect redacts: give all of it with `dead-letter retry --data`"
    } else if shown.get("input_bytes").is_some() {
        "the input is too large to be shown: give all of its data with `dead-letter retry --file`"
    } else {
        "it has no data that can be edited"
    };
    Err(Failure::new(exit::CONFLICT, why))
}

/// A file that only its owner can read.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn new(id: &str, text: &str) -> Result<Self, Failure> {
        let id: String = id
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
            .collect();
        let name = format!("saga-runner-dead-letter-{id}-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Failure::unwritten(&path, error))?;
        Ok(Self { path })
    }

    /// Opens it in the editor that the user has chosen, and waits until that ends.
    fn open(&self) -> Result<(), Failure> {
        let named = |name| std::env::var(name).ok().filter(|named| !named.trim().is_empty());
        let editor = named("VISUAL").or_else(|| named("EDITOR"));
        let editor = editor.unwrap_or_else(|| EDITOR.to_owned());
        // It may have arguments, as for git.
        let ran = Command::new("sh")
            .args(["-c", &format!("{editor} \"$1\""), "sh"])
            .arg(&self.path)
            .status();
        let failed = |why: String| {
            self.remove();
            Err(Failure::new(
                exit::NO_INPUT,
                format!("{editor}: {why}; nothing was changed"),
            ))
        };
        match ran {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => failed(status.to_string()),
            Err(error) => failed(error.to_string()),
        }
    }

    /// The failure, with what can be done about it.
    fn kept(&self, failure: Failure) -> Failure {
        let (message, path) = (failure.message, self.path.display());
        Failure {
            message: format!(
                "{message}; what you have written is in {path}: correct it, and send it with `dead-letter retry --file`"
            ),
            ..failure
        }
    }

    fn remove(&self) {
        // It is in the folder of temporary files, and nobody else can read it.
        let _gone = fs::remove_file(&self.path);
    }
}
