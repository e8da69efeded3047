//! `graph`: draws a saga.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::test;
use crate::app::exit::Failure;
use crate::app::out;
use crate::kernel::definition::graph::Graph;
use crate::offline::{draw, svg};

#[derive(Debug, Args)]
pub struct GraphArguments {
    /// Saga file.
    file: PathBuf,
    /// Folder of the definitions; default: the project around FILE.
    #[arg(long, value_name = "DIR")]
    definitions: Option<PathBuf>,
    /// Output format, written to standard output.
    #[arg(long, default_value = "mermaid")]
    format: Format,
}

/// How a graph is drawn.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Format {
    /// A Mermaid flowchart, which Markdown viewers draw.
    Mermaid,
    /// A directed graph for Graphviz.
    Dot,
    /// An SVG image.
    Svg,
}

impl Format {
    /// Draws a graph, with the state of each vertex where there are states.
    pub(super) fn draw(self, graph: &Graph, states: &[&str]) -> String {
        match self {
            Self::Mermaid => draw::mermaid(graph, states),
            Self::Dot => draw::dot(graph, states),
            Self::Svg => svg::svg(graph, states),
        }
    }
}

pub fn graph(arguments: &GraphArguments) -> Result<(), Failure> {
    let wanted = real(&arguments.file).map_err(|error| Failure::unread(&arguments.file, error))?;
    let sagas = test::load(&arguments.file, arguments.definitions.as_deref())?;
    let (definition, _) = sagas
        .values()
        .find(|(_, file)| real(Path::new(&file.path)).is_ok_and(|path| path == wanted))
        .ok_or_else(|| Failure::unread(&arguments.file, "not a saga of the definitions around it"))?;
    out::text(arguments.format.draw(&Graph::of(definition), &[]))
}

fn real(path: &Path) -> std::io::Result<PathBuf> {
    path.canonicalize()
}
