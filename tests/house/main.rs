//! What a compiler does not check: the layers, and that documents, schemas and error pages say what the code does.

mod architecture;
mod bad_inputs;
mod chart;
mod cli;
mod coming_from;
mod command_lines;
mod decisions;
mod dependencies;
mod deploy;
mod doc_examples;
mod docs;
mod envelopes;
mod error_pages;
mod glossary;
mod homes;
mod index;
mod map;
mod metrics;
mod monitoring;
mod names;
mod openapi;
mod packaging;
mod parameters;
mod planted;
mod promql;
mod questions;
mod reasons;
#[path = "../support/shell_blocks.rs"]
mod shell_blocks;
mod site;
mod sizes;
mod sleeps;
mod words;
mod worked;
