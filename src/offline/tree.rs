//! Values of a test file that keep their places.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::kernel::definition::codes;
use crate::kernel::definition::findings::Findings;
use crate::kernel::definition::yaml::{Node, Plain, Value as Yaml};

/// A value and where it stands in its file.
#[derive(Debug, Clone)]
pub struct Tree {
    pub span: Range<usize>,
    pub shape: Shape,
}

#[derive(Debug, Clone)]
pub enum Shape {
    Scalar(Value),
    List(Vec<Tree>),
    Map(Vec<Member>),
}

#[derive(Debug, Clone)]
pub struct Member {
    pub key: String,
    pub key_span: Range<usize>,
    pub value: Tree,
}

impl Tree {
    /// Takes a node as it is; `at` is the place of its key. Numbers that JSON cannot keep are findings.
    pub fn read(node: &Node<'_>, at: &Range<usize>, findings: &mut Findings<'_>) -> Option<Self> {
        let shape = match &node.value {
            Yaml::Scalar(scalar) => Shape::Scalar(match scalar.plain() {
                Plain::Null => Value::Null,
                Plain::Bool(answer) => Value::Bool(answer),
                Plain::Int(number) => Value::from(number),
                Plain::Double(number) => Value::from(number),
                Plain::Text(text) => Value::from(text),
                Plain::Refused(reason) => {
                    let message = format!("{} {reason}", scalar.text);
                    findings.error(codes::WRONG_VALUE, node.span.clone(), message);
                    return None;
                }
            }),
            Yaml::List(items) => {
                let items: Vec<_> = items
                    .iter()
                    .map(|item| Self::read(item, &item.span, findings))
                    .collect();
                Shape::List(items.into_iter().collect::<Option<_>>()?)
            }
            Yaml::Map(entries) => {
                let members: Vec<_> = entries
                    .iter()
                    .map(|entry| {
                        Some(Member {
                            key: entry.key.clone().into_owned(),
                            key_span: entry.key_span.clone(),
                            value: Self::read(&entry.value, &entry.key_span, findings)?,
                        })
                    })
                    .collect();
                Shape::Map(members.into_iter().collect::<Option<_>>()?)
            }
        };
        let span = if node.span.is_empty() { at } else { &node.span };
        Some(Self {
            span: span.clone(),
            shape,
        })
    }

    /// The value without its places.
    #[must_use]
    pub fn value(&self) -> Value {
        match &self.shape {
            Shape::Scalar(value) => value.clone(),
            Shape::List(items) => Value::Array(items.iter().map(Self::value).collect()),
            Shape::Map(members) => {
                let members = members
                    .iter()
                    .map(|member| (member.key.clone(), member.value.value()));
                Value::Object(members.collect::<Map<_, _>>())
            }
        }
    }

    /// The text, where it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.shape {
            Shape::Scalar(Value::String(text)) => Some(text),
            Shape::Scalar(_) | Shape::List(_) | Shape::Map(_) => None,
        }
    }

    /// The members, where it is a map.
    #[must_use]
    pub fn members(&self) -> Option<&[Member]> {
        match &self.shape {
            Shape::Map(members) => Some(members),
            Shape::Scalar(_) | Shape::List(_) => None,
        }
    }

    /// The member `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        let mut members = self.members()?.iter();
        members
            .find(|member| member.key == key)
            .map(|member| &member.value)
    }
}
