//! A graph as SVG that looks the same everywhere: plain shapes, a font that every system has, no script.

use std::fmt::Write as _;

use super::draw::fill;
use super::layout::{CHARACTER, LINE, MARGIN, Place, TEXT_MAX, layout};
use super::report::escaped;
use crate::kernel::definition::graph::{Graph, Kind, Link};

/// Longest label of an edge, in characters; more is cut.
const LABEL_MAX: usize = 28;

/// Draws `graph`, with the state of each vertex where there are states.
#[must_use]
pub fn svg(graph: &Graph, states: &[&str]) -> String {
    let laid = layout(graph);
    let title = MARGIN * 2 + graph.title.chars().count() * CHARACTER * 3 / 2;
    let (width, height) = (laid.width.max(title), laid.height);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"12\">\n"
    );
    out.push_str(HEAD);
    let _ = writeln!(
        out,
        "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n<text x=\"{MARGIN}\" y=\"{}\" font-size=\"18\" fill=\"#1f2937\">{}</text>",
        MARGIN + LINE / 2,
        escaped(&graph.title)
    );
    for (edge, route) in graph.edges.iter().zip(&laid.routes) {
        let points: Vec<String> = route.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let (color, dash) = match edge.link {
            Link::Next | Link::Transition => ("#374151", ""),
            Link::Part => ("#6b7280", " stroke-dasharray=\"2 3\""),
            Link::Undo => ("#b45309", " stroke-dasharray=\"6 4\""),
            Link::OnFailure => ("#b91c1c", " stroke-dasharray=\"6 4\""),
            Link::Interrupt => ("#b91c1c", ""),
        };
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\"{dash} marker-end=\"url(#arrow)\"/>",
            points.join(" ")
        );
    }
    for (at, (vertex, place)) in graph.vertices.iter().zip(&laid.places).enumerate() {
        let filled = states.get(at).and_then(|state| fill(state));
        shape(vertex.kind, *place, filled, &mut out);
        let top = place.y + (place.height - vertex.lines().count() * LINE) / 2;
        for (index, line) in vertex.lines().enumerate() {
            let weight = if index == 0 { " font-weight=\"bold\"" } else { "" };
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\"{weight} fill=\"#111827\">{}</text>",
                place.middle(),
                top + index * LINE + 12,
                escaped(&cut(line, TEXT_MAX))
            );
        }
    }
    // Labels last, so that no line goes through them.
    for (edge, route) in graph.edges.iter().zip(&laid.routes) {
        if edge.label.is_empty() {
            continue;
        }
        let text = cut(&edge.label, LABEL_MAX);
        let (x, y) = label_place(route);
        let half = text.chars().count() * CHARACTER / 2 + 3;
        let _ = writeln!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{LINE}\" fill=\"#ffffff\" fill-opacity=\"0.85\"/>\n<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\" fill=\"#4b5563\">{}</text>",
            x.saturating_sub(half),
            y.saturating_sub(12),
            half * 2,
            y,
            escaped(&text)
        );
    }
    out.push_str("</svg>\n");
    out
}

const HEAD: &str = "<defs><marker id=\"arrow\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0,0 L10,5 L0,10 z\" fill=\"#374151\"/></marker></defs>\n";

/// Near the end of the edge, where edges from one box have parted; of edges around the side, at their lane.
fn label_place(route: &[(usize, usize)]) -> (usize, usize) {
    if let [_, (lane, out), (_, back), _] = route
        && route[1].0 == route[2].0
        && route[0].1 == route[1].1
    {
        return (*lane, usize::midpoint(*out, *back));
    }
    match route {
        [.., (x, y), (to_x, to_y)] => ((x + 2 * to_x) / 3, (y + 2 * to_y) / 3),
        _ => (0, 0),
    }
}

fn shape(kind: Kind, place: Place, filled: Option<&str>, out: &mut String) {
    let Place { x, y, width, height } = place;
    let (radius, fill, stroke) = match kind {
        Kind::Start => (height / 2, "#ecfdf5", "#047857"),
        Kind::Step | Kind::Wait => (4, "#eff6ff", "#1d4ed8"),
        Kind::Choice | Kind::Repeat | Kind::Foreach | Kind::Program => (0, "#f5f3ff", "#6d28d9"),
        Kind::Compensation => (4, "#fffbeb", "#b45309"),
        Kind::State | Kind::FinalState => (12, "#f0f9ff", "#0369a1"),
        Kind::Timer => (0, "#fdf4ff", "#a21caf"),
        Kind::Event => (height / 2, "#fef2f2", "#b91c1c"),
    };
    let fill = filled.unwrap_or(fill);
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{radius}\" fill=\"{fill}\" stroke=\"{stroke}\"/>"
    );
    if kind == Kind::FinalState {
        let _ = writeln!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"9\" fill=\"none\" stroke=\"{stroke}\"/>",
            x + 4,
            y + 4,
            width - 8,
            height - 8
        );
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most - 1).collect();
    format!("{kept}\u{2026}")
}
