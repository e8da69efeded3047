//! `instance graph`: what the saga of an instance consists of, and where each part stands.

use std::collections::BTreeMap;

use clap::Args;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::NameArguments;
use crate::app::exit::Failure;
use crate::app::out;
use crate::cli::client::Client;
use crate::cli::graph::Format;
use crate::cli::output::{Column, Mood};
use crate::kernel::definition::graph::{Edge, Graph, Vertex};

#[derive(Debug, Args)]
pub struct GraphArguments {
    /// Draw it instead, to standard output.
    #[arg(long, conflicts_with_all = ["output", "json"])]
    format: Option<Format>,
    #[command(flatten)]
    name: NameArguments,
}

const NODES: &[Column] = &[
    Column::value("NODE", "/id"),
    Column::value("KIND", "/kind").wide(),
    Column::value("DOES", "/does"),
    Column::value("STATE", "/state").judged(judged),
    Column::number("ATTEMPT", "/attempt"),
    Column::value("ERROR", "/error"),
    Column::value("WAITS FOR", "/waits_for"),
    Column::time("DUE", "/due"),
];
const EDGES: &[Column] = &[
    Column::value("FROM", "/from"),
    Column::value("KIND", "/kind"),
    Column::value("TO", "/to"),
    Column::value("LABEL", "/label"),
];

/// What a state says.
fn judged(state: &str) -> Mood {
    match state.split(' ').next().unwrap_or_default() {
        "done" | "undone" => Mood::Good,
        "failed" | "stuck" | "backing_off" => Mood::Bad,
        "running" | "waiting" | "delayed" | "undoing" | "due" | "current" => Mood::Waiting,
        _ => Mood::Plain,
    }
}

pub fn graph(arguments: &GraphArguments) -> Result<(), Failure> {
    let name = &arguments.name;
    let client = Client::new(&name.common.server)?;
    let answer = name.get(&client, "/graph")?;
    if let Some(format) = arguments.format {
        let unreadable = |error| Failure::software(format!("the answer is no graph: {error}"));
        let graph = drawn(&answer).map_err(unreadable)?;
        let nodes = answer["nodes"].as_array().into_iter().flatten();
        let states: Vec<&str> = nodes
            .map(|node| node["state"].as_str().unwrap_or_default())
            .collect();
        return out::text(format.draw(&graph, &states));
    }
    name.common.output.shown(&answer, || {
        let nodes = answer["nodes"].as_array().into_iter().flatten();
        let nodes: Vec<Value> = nodes.map(row).collect();
        out::line(name.common.output.table(NODES, &nodes))?;
        let edges = answer["edges"].as_array().map_or(&[][..], Vec::as_slice);
        if !edges.is_empty() {
            out::line(format_args!("\n{}", name.common.output.table(EDGES, edges)))?;
        }
        if answer["more"] == true {
            out::note("there are more timers, events or edges than are listed");
        }
        Ok(())
    })
}

/// A node for the table: with how many of each state there are, or how far a loop has come.
fn row(node: &Value) -> Value {
    let mut row = node.clone();
    if let Some(state) = standing(node) {
        row["state"] = json!(state);
    }
    row
}

/// Where a node stands, in a few words.
fn standing(node: &Value) -> Option<String> {
    let state = node["state"].as_str()?;
    if let Some(items) = node["items"].as_object() {
        let told = |name: &str| items.get(name).and_then(Value::as_u64).unwrap_or(0);
        return Some(format!(
            "{state} ({} of {} done, {} failed)",
            told("done"),
            told("total"),
            told("failed")
        ));
    }
    let states = node["states"].as_object().filter(|states| !states.is_empty());
    Some(match states {
        Some(states) => {
            let counts = states.iter().map(|(state, count)| format!("{count} {state}"));
            format!("{state} ({})", counts.collect::<Vec<_>>().join(", "))
        }
        None => state.to_owned(),
    })
}

/// The graph as `saga-runner graph` draws it, with a line more in each vertex about where it stands.
fn drawn(answer: &Value) -> Result<Graph, serde_json::Error> {
    let nodes = answer["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let (mut vertices, mut at) = (Vec::new(), BTreeMap::new());
    for node in nodes {
        let id: String = part(node, "id")?;
        let mut does = Option::<Vec<String>>::deserialize(&node["does"])?.unwrap_or_default();
        does.extend(standing(node));
        at.insert(id.clone(), vertices.len());
        vertices.push(Vertex {
            kind: part(node, "kind")?,
            id,
            name: part(node, "name")?,
            does,
        });
    }
    let mut edges = Vec::new();
    for edge in answer["edges"].as_array().into_iter().flatten() {
        let end = |name| at.get(edge[name].as_str().unwrap_or_default()).copied();
        // An end that is no node belongs to a later version of the runner.
        let (Some(from), Some(to)) = (end("from"), end("to")) else {
            continue;
        };
        edges.push(Edge {
            from,
            to,
            link: part(edge, "kind")?,
            label: edge["label"].as_str().unwrap_or_default().to_owned(),
        });
    }
    let told = |name: &str| answer[name].as_str().unwrap_or_default();
    Ok(Graph {
        title: format!("{} {}: {}", told("saga"), told("key"), told("phase")),
        vertices,
        edges,
        more: answer["more"] == true,
    })
}

fn part<T: DeserializeOwned>(of: &Value, name: &str) -> Result<T, serde_json::Error> {
    T::deserialize(&of[name])
}
