//! A small layered layout: every vertex on a layer below those that lead to it, few crossings, nothing on top of
//! anything else, the same picture for the same graph.

use crate::kernel::definition::graph::{Graph, Kind, Link};

/// Width of a character and height of a line of text, in pixels.
pub const CHARACTER: usize = 7;
pub const LINE: usize = 16;
/// Space around the text of a box.
const PADDING: usize = 10;
/// Least width of a box.
const BOX_WIDTH_MIN: usize = 90;
/// Longest line of a box, in characters; more is cut.
pub const TEXT_MAX: usize = 36;
/// Space between boxes of a layer, between layers, and around the picture.
const GAP_X: usize = 40;
const GAP_Y: usize = 70;
pub const MARGIN: usize = 30;
/// How often the order within layers is improved, down and up.
const SWEEPS: usize = 8;

/// A box in the picture, in pixels from its upper left corner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

impl Place {
    #[must_use]
    pub const fn middle(self) -> usize {
        self.x + self.width / 2
    }

    #[must_use]
    pub const fn bottom(self) -> usize {
        self.y + self.height
    }
}

/// Where everything is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// By vertex.
    pub places: Vec<Place>,
    /// By edge: the points that it goes through, from box to box.
    pub routes: Vec<Vec<(usize, usize)>>,
    pub width: usize,
    pub height: usize,
}

/// What stands in a layer: a vertex, or an edge that passes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Vertex(usize),
    Passing(usize),
}

/// Lays out `graph`.
#[must_use]
pub fn layout(graph: &Graph) -> Layout {
    let backward = backward(graph);
    let layer_of = layers(graph, &backward);
    let rows = order(graph, &backward, &layer_of);
    positions(graph, &backward, &rows)
}

/// Edges that close a cycle, found by a walk in the order of the definition; they are drawn against the flow.
fn backward(graph: &Graph) -> Vec<bool> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Never,
        Open,
        Closed,
    }
    let mut seen = vec![Seen::Never; graph.vertices.len()];
    let mut backward: Vec<bool> = graph
        .edges
        .iter()
        .map(|edge| matches!(edge.link, Link::OnFailure | Link::Interrupt) || edge.from == edge.to)
        .collect();
    for root in 0..graph.vertices.len() {
        if seen[root] != Seen::Never {
            continue;
        }
        seen[root] = Seen::Open;
        // Vertex, and the edge to look at next.
        let mut path = vec![(root, 0)];
        while let Some((vertex, next)) = path.last_mut() {
            let vertex = *vertex;
            let Some(at) = (*next..graph.edges.len()).find(|at| graph.edges[*at].from == vertex) else {
                seen[vertex] = Seen::Closed;
                path.pop();
                continue;
            };
            *next = at + 1;
            let to = graph.edges[at].to;
            match seen[to] {
                _ if backward[at] => {}
                Seen::Open => backward[at] = true,
                Seen::Closed => {}
                Seen::Never => {
                    seen[to] = Seen::Open;
                    path.push((to, 0));
                }
            }
        }
    }
    backward
}

/// The longest way to each vertex.
fn layers(graph: &Graph, backward: &[bool]) -> Vec<usize> {
    let mut layer_of = vec![0; graph.vertices.len()];
    // Without the backward edges there is no cycle, so the longest way has fewer edges than there are vertices.
    for _ in 0..graph.vertices.len() {
        let mut changed = false;
        for (edge, _) in graph.edges.iter().zip(backward).filter(|(_, back)| !**back) {
            let least = layer_of[edge.from] + 1;
            if layer_of[edge.to] < least {
                layer_of[edge.to] = least;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    layer_of
}

/// Cells by layer from left to right: first in the order of the definition, then by the middle of what they are
/// linked with.
fn order(graph: &Graph, backward: &[bool], layer_of: &[usize]) -> Vec<Vec<Cell>> {
    let count = layer_of.iter().max().map_or(0, |last| last + 1);
    let mut rows = vec![Vec::new(); count];
    for (vertex, layer) in layer_of.iter().enumerate() {
        rows[*layer].push(Cell::Vertex(vertex));
    }
    for (at, edge) in graph.edges.iter().enumerate().filter(|(at, _)| !backward[*at]) {
        for row in &mut rows[layer_of[edge.from] + 1..layer_of[edge.to].max(layer_of[edge.from] + 1)] {
            row.push(Cell::Passing(at));
        }
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        for step in 1..count {
            let (row, other) = if down {
                (step, step - 1)
            } else {
                (count - 1 - step, count - step)
            };
            let neighbours = rows[other].clone();
            let middle = |cell: &Cell, own: usize| -> usize {
                let linked: Vec<usize> = neighbours
                    .iter()
                    .enumerate()
                    .filter(|(_, neighbour)| are_linked(graph, backward, *cell, **neighbour))
                    .map(|(at, _)| at)
                    .collect();
                // In thousandths, so that middles compare without fractions.
                match linked.len() {
                    0 => own * 1_000,
                    count => linked.iter().sum::<usize>() * 1_000 / count,
                }
            };
            let mut keyed: Vec<(usize, usize, Cell)> = rows[row]
                .iter()
                .enumerate()
                .map(|(own, cell)| (middle(cell, own), own, *cell))
                .collect();
            keyed.sort_by_key(|(middle, own, _)| (*middle, *own));
            rows[row] = keyed.into_iter().map(|(_, _, cell)| cell).collect();
        }
    }
    rows
}

/// Whether an edge leads from one cell to the other, of neighbouring layers.
fn are_linked(graph: &Graph, backward: &[bool], one: Cell, other: Cell) -> bool {
    let ends = |at: usize, vertex: usize| {
        let edge = &graph.edges[at];
        edge.from == vertex || edge.to == vertex
    };
    match (one, other) {
        (Cell::Vertex(one), Cell::Vertex(other)) => graph
            .edges
            .iter()
            .zip(backward)
            .any(|(edge, back)| !back && [(one, other), (other, one)].contains(&(edge.from, edge.to))),
        (Cell::Passing(edge), Cell::Vertex(vertex)) | (Cell::Vertex(vertex), Cell::Passing(edge)) => {
            ends(edge, vertex)
        }
        (Cell::Passing(one), Cell::Passing(other)) => one == other,
    }
}

fn size(graph: &Graph, vertex: usize) -> (usize, usize) {
    let vertex = &graph.vertices[vertex];
    let longest = vertex.lines().map(|line| line.chars().count()).max();
    let text = longest.unwrap_or(0).min(TEXT_MAX) * CHARACTER;
    let extra = if vertex.kind == Kind::FinalState { 8 } else { 0 };
    (
        (text + 2 * PADDING).max(BOX_WIDTH_MIN) + extra,
        vertex.lines().count() * LINE + 2 * PADDING + extra,
    )
}

fn positions(graph: &Graph, backward: &[bool], rows: &[Vec<Cell>]) -> Layout {
    let width_of = |cell: &Cell| match cell {
        Cell::Vertex(vertex) => size(graph, *vertex).0,
        Cell::Passing(_) => 0,
    };
    let row_width = |row: &Vec<Cell>| {
        let gaps = row.len().saturating_sub(1) * GAP_X;
        row.iter().map(width_of).sum::<usize>() + gaps
    };
    let inner = rows.iter().map(row_width).max().unwrap_or(0);
    let mut places = vec![
        Place {
            x: 0,
            y: 0,
            width: 0,
            height: 0
        };
        graph.vertices.len()
    ];
    // Points at which edges pass through layers, with the layer.
    let mut passed: Vec<Vec<(usize, usize, usize)>> = vec![Vec::new(); graph.edges.len()];
    let mut y = MARGIN + LINE + GAP_Y / 2;
    for row in rows {
        let heights = row.iter().map(|cell| match cell {
            Cell::Vertex(vertex) => size(graph, *vertex).1,
            Cell::Passing(_) => 0,
        });
        let height = heights.max().unwrap_or(0);
        let mut x = MARGIN + (inner - row_width(row)) / 2;
        for cell in row {
            match cell {
                Cell::Vertex(vertex) => {
                    let (width, own) = size(graph, *vertex);
                    places[*vertex] = Place {
                        x,
                        y: y + (height - own) / 2,
                        width,
                        height: own,
                    };
                }
                Cell::Passing(edge) => passed[*edge].push((x, y, y + height)),
            }
            x += width_of(cell) + GAP_X;
        }
        y += height + GAP_Y;
    }
    let mut lanes = 0;
    let routes = graph
        .edges
        .iter()
        .enumerate()
        .map(|(at, edge)| {
            let (from, to) = (places[edge.from], places[edge.to]);
            if backward[at] {
                // Around the right side of everything, each in a lane of its own.
                lanes += 1;
                let lane = MARGIN + inner + lanes * LINE * 2;
                let (out, back) = (from.y + from.height / 3, to.y + 2 * to.height / 3);
                return vec![
                    (from.x + from.width, out),
                    (lane, out),
                    (lane, back),
                    (to.x + to.width, back),
                ];
            }
            let mut route = vec![(from.middle(), from.bottom())];
            for (x, top, bottom) in &passed[at] {
                route.extend([(*x, *top), (*x, *bottom)]);
            }
            route.push((to.middle(), to.y));
            route
        })
        .collect();
    Layout {
        places,
        routes,
        width: inner + 2 * MARGIN + lanes * LINE * 2 + if lanes > 0 { LABEL_ROOM } else { 0 },
        height: y - GAP_Y + MARGIN,
    }
}

/// Room for the labels of edges that go around the right side.
const LABEL_ROOM: usize = 160;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::definition::graph::{Edge, Vertex};

    fn graph(vertices: usize, edges: &[(usize, usize)]) -> Graph {
        Graph {
            title: "probe".to_owned(),
            vertices: (0..vertices)
                .map(|index| Vertex {
                    kind: Kind::Step,
                    id: format!("step:{index}"),
                    name: "x".repeat(index * 3 % 50),
                    does: vec!["x".repeat(index * 3 % 50); index % 2],
                })
                .collect(),
            edges: edges
                .iter()
                .map(|&(from, to)| Edge {
                    from: from % vertices,
                    to: to % vertices,
                    link: Link::Next,
                    label: String::new(),
                })
                .collect(),
            more: false,
        }
    }

    proptest! {
        /// Whatever the graph, cycles and loops included.
        #[test]
        fn boxes_never_touch_and_lie_within_the_picture(
            vertices in 1_usize..20,
            edges in prop::collection::vec((0_usize..20, 0_usize..20), 0..40),
        ) {
            let graph = graph(vertices, &edges);
            let laid = layout(&graph);
            prop_assert_eq!(&laid, &layout(&graph));
            for (index, one) in laid.places.iter().enumerate() {
                prop_assert!(one.x + one.width <= laid.width && one.bottom() <= laid.height);
                for other in &laid.places[index + 1..] {
                    let apart = one.x + one.width < other.x
                        || other.x + other.width < one.x
                        || one.bottom() < other.y
                        || other.bottom() < one.y;
                    prop_assert!(apart, "{one:?} and {other:?}");
                }
            }
            for (edge, route) in graph.edges.iter().zip(&laid.routes) {
                let (from, to) = (laid.places[edge.from], laid.places[edge.to]);
                let touches = |place: Place, (x, y): (usize, usize)| {
                    (place.x..=place.x + place.width).contains(&x) && (place.y..=place.bottom()).contains(&y)
                };
                prop_assert!(touches(from, route[0]) && touches(to, route[route.len() - 1]));
                prop_assert!(route.iter().all(|(x, y)| *x <= laid.width && *y <= laid.height));
            }
        }
    }

    #[test]
    fn a_needed_step_is_drawn_above_the_steps_that_need_it() {
        let graph = graph(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        let laid = layout(&graph);
        for edge in &graph.edges {
            assert!(laid.places[edge.from].bottom() < laid.places[edge.to].y);
        }
    }
}
