//! The graph of a definition, and its bounds.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::graph::{EDGES_MAX, Graph, Kind, Link, TEXT_BYTES_MAX, VERTICES_MAX};
use super::{examples, saga};

#[test]
fn every_part_of_the_shipped_sagas_is_in_their_graph_once() {
    for definition in examples().sagas {
        let (graph, at) = Graph::placed(&definition);
        assert!(!graph.more, "{}", definition.name);
        let ids: BTreeSet<&str> = graph.vertices.iter().map(|vertex| vertex.id.as_str()).collect();
        assert_eq!(ids.len(), graph.vertices.len(), "{ids:?}");
        for (step, vertex) in definition.steps.iter().zip(&at.steps) {
            assert_eq!(graph.vertices[*vertex].id, format!("step:{}", step.name));
        }
        let undone = definition.steps.iter().filter(|step| step.compensate.is_some());
        assert_eq!(at.compensations.len(), undone.count(), "{}", definition.name);
        assert!(
            graph
                .edges
                .iter()
                .all(|edge| edge.from < ids.len() && edge.to < ids.len())
        );
    }
}

#[test]
fn a_failure_leads_to_where_the_step_goes_and_to_what_is_undone() {
    let definition = saga(
        "steps:\n  reserve: {effect: inventory-reserve, with: {}, compensate: {effect: inventory-release, with: {}}}\n  \
         charge:\n    needs: [reserve]\n    effect: payments-charge\n    with: {}\n    compensate: none\n    \
         on_error: {declined: {undo: [reserve], continue: true}}\n",
    );
    let (graph, at) = Graph::placed(&definition);
    let (charge, undo) = (at.steps[1], at.compensations[&0]);
    let edge = graph
        .edges
        .iter()
        .find(|edge| (edge.from, edge.to) == (charge, undo))
        .unwrap_or_else(|| panic!("{graph:#?}"));
    assert_eq!((edge.link, edge.label.as_str()), (Link::Undo, "declined"));
    assert_eq!(graph.vertices[undo].kind, Kind::Compensation);
}

#[test]
fn a_graph_of_any_file_is_bounded_and_says_that_it_is_not_whole() {
    let mut body = String::from("machine:\n  initial: s0\n  states:\n");
    for state in 0..200 {
        let _infallible = writeln!(
            body,
            "    s{state}: {{handlers: {{Order.{}: {{to: s{}}}}}}}",
            "E".repeat(100),
            (state + 1) % 200
        );
    }
    body.push_str("timers:\n");
    for timer in 0..40 {
        let _infallible = writeln!(body, "  t{timer}: {{after: 1h, to: s{timer}}}");
    }
    let graph = Graph::of(&saga(&body));
    assert!(graph.more);
    assert!(graph.edges.len() <= EDGES_MAX && graph.vertices.len() <= VERTICES_MAX);
    let labels: usize = graph.edges.iter().map(|edge| edge.label.len()).sum();
    assert!(labels <= TEXT_BYTES_MAX, "{labels}");
    assert_eq!(graph.vertices.len(), 201);
}
