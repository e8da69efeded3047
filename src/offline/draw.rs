//! Graphs as text that other programs draw: Mermaid and Graphviz.
//!
//! A graph of an instance has the state of each vertex beside it, in the order of the vertices; that of a definition has none.

use std::fmt::Write as _;

use crate::kernel::definition::graph::{Graph, Kind, Link};

/// The colour of a box, by the state of what it stands for.
#[must_use]
pub fn fill(state: &str) -> Option<&'static str> {
    match state {
        "done" | "undone" => Some("#dcfce7"),
        "running" | "waiting" | "delayed" | "undoing" | "due" | "set" | "current" => Some("#fef9c3"),
        "failed" | "stuck" | "backing_off" => Some("#fee2e2"),
        "pending" | "skipped" | "abandoned" | "held" | "kept" => Some("#f3f4f6"),
        _ => None,
    }
}

/// A Mermaid flowchart.
#[must_use]
pub fn mermaid(graph: &Graph, states: &[&str]) -> String {
    let mut out = format!(
        "---\ntitle: {}\n---\nflowchart TD\n",
        graph.title.replace(|c: char| c.is_control(), " ")
    );
    for (index, vertex) in graph.vertices.iter().enumerate() {
        let text: Vec<String> = vertex.lines().map(mermaid_text).collect();
        let text = text.join("<br/>");
        let (open, close) = match vertex.kind {
            Kind::Start => ("([", "])"),
            Kind::Step | Kind::Wait => ("[", "]"),
            Kind::Choice | Kind::Repeat | Kind::Foreach | Kind::Program => ("{{", "}}"),
            Kind::Compensation => ("[/", "/]"),
            Kind::State => ("(", ")"),
            Kind::FinalState => ("(((", ")))"),
            Kind::Timer => ("[\\", "/]"),
            Kind::Event => (">", "]"),
        };
        let _ = writeln!(out, "  n{index}{open}\"{text}\"{close}");
    }
    for edge in &graph.edges {
        let arrow = match edge.link {
            Link::Next | Link::Transition => "-->",
            Link::Part => "---",
            Link::Undo | Link::OnFailure => "-.->",
            Link::Interrupt => "--x",
        };
        let label = if edge.label.is_empty() {
            String::new()
        } else {
            format!("|\"{}\"|", mermaid_text(&edge.label))
        };
        let _ = writeln!(out, "  n{} {arrow}{label} n{}", edge.from, edge.to);
    }
    for (index, state) in states.iter().enumerate() {
        if let Some(fill) = fill(state) {
            let _ = writeln!(out, "  style n{index} fill:{fill}");
        }
    }
    out
}

/// A directed graph for Graphviz.
#[must_use]
pub fn dot(graph: &Graph, states: &[&str]) -> String {
    let title = dot_text(&graph.title);
    let mut out = format!("digraph \"{title}\" {{\n  label=\"{title}\";\n  labelloc=t;\n");
    for (index, vertex) in graph.vertices.iter().enumerate() {
        let text: Vec<String> = vertex.lines().map(dot_text).collect();
        let text = text.join("\\n");
        let shape = match vertex.kind {
            Kind::Start => "oval",
            Kind::Step | Kind::Wait => "box",
            Kind::Choice | Kind::Repeat | Kind::Foreach | Kind::Program => "hexagon",
            Kind::Compensation => "parallelogram",
            Kind::State => "ellipse",
            Kind::FinalState => "doublecircle",
            Kind::Timer => "invtrapezium",
            Kind::Event => "cds",
        };
        let fill = states.get(index).and_then(|state| fill(state));
        let fill = fill.map_or_else(String::new, |fill| {
            format!(", style=filled, fillcolor=\"{fill}\"")
        });
        let _ = writeln!(out, "  n{index} [label=\"{text}\", shape={shape}{fill}];");
    }
    for edge in &graph.edges {
        let style = match edge.link {
            Link::Next | Link::Transition => "style=solid",
            Link::Part => "style=dotted, arrowhead=none",
            Link::Undo | Link::OnFailure => "style=dashed",
            Link::Interrupt => "style=solid, arrowhead=tee",
        };
        let label = dot_text(&edge.label);
        let _ = writeln!(
            out,
            "  n{} -> n{} [label=\"{label}\", {style}];",
            edge.from, edge.to
        );
    }
    out.push_str("}\n");
    out
}

/// Text within the quotes of a Mermaid label.
fn mermaid_text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '<' | '>' | '&' | '#' | '`' | '|' => {
                let _ = write!(out, "#{};", u32::from(c));
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Text within the quotes of a string of Graphviz.
fn dot_text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::definition::graph::{Edge, Vertex};
    use crate::kernel::ledger::LedgerStatus;
    use crate::kernel::status::StepStatus;

    #[test]
    fn no_text_of_a_definition_leaves_its_quotes() {
        let evil = "a\"]; b -> c\\\n--> <script>|`#";
        let graph = Graph {
            title: evil.to_owned(),
            vertices: vec![Vertex {
                kind: Kind::Step,
                id: "step:a".to_owned(),
                name: evil.to_owned(),
                does: vec![evil.to_owned()],
            }],
            edges: vec![Edge {
                from: 0,
                to: 0,
                link: Link::Next,
                label: evil.to_owned(),
            }],
            more: false,
        };
        let drawn = mermaid(&graph, &[]);
        assert_eq!(drawn.lines().count(), 6, "{drawn}");
        assert!(
            drawn.contains("#34;]; b -#62; c\\ --#62; #60;script#62;#124;#96;#35;"),
            "{drawn}"
        );
        let drawn = dot(&graph, &[]);
        assert_eq!(drawn.lines().count(), 6, "{drawn}");
        assert!(
            drawn.contains("label=\"a\\\"]; b -> c\\\\ --> <script>|`#\""),
            "{drawn}"
        );
    }

    #[test]
    fn every_state_of_a_step_and_of_what_undoes_it_has_a_colour() {
        let mut status = Some(StepStatus::Pending);
        while let Some(step) = status {
            assert!(fill(step.as_str()).is_some(), "{}", step.as_str());
            status = step.next();
        }
        for entry in LedgerStatus::ALL {
            assert!(fill(entry.as_str()).is_some(), "{}", entry.as_str());
        }
    }
}
