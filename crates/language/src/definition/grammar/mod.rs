//! The keys of definition files: which there are where, and what stands under each.
//!
//! The one description of them. The loader reads every map by its [`Shape`] here, and the JSON Schemas for editors
//! ([`super::editor`]) are written from the same tables. What a key means is docs/language.md's; what else may be wrong
//! with a file is found by the readers.

pub mod effect;
pub mod emissions;
pub mod saga;
pub mod steps;

/// A map with keys that are known.
#[derive(Debug)]
pub struct Shape {
    /// What the loader calls it: "a step".
    pub what: &'static str,
    /// What a schema calls it, where it is referred to; without one it stands where it is used.
    pub name: &'static str,
    pub about: &'static str,
    pub keys: &'static [&'static Key],
    /// Of these exactly one is there.
    pub one_of: &'static [&'static str],
}

/// A key of a shape.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// What editors say about it.
    pub about: &'static str,
    pub needed: bool,
}

/// What stands under a key. Expressions may stand for more than editors know of: what they say must be right, and the
/// loader says the rest.
#[derive(Debug)]
pub enum Kind {
    /// Anything; most often values with expressions in them.
    Any,
    /// A map with free keys and anything under them.
    Fields,
    /// A text that is not empty.
    Text,
    /// The same, where every type of scalar is one: an expression, or a text with expressions in it.
    Named(&'static Named),
    Pattern(&'static str),
    Bool,
    /// `true` and nothing else.
    True,
    /// Of these words one.
    Word(&'static [&'static str]),
    Integer(u32, u32),
    Number(f64, f64),
    Map(&'static Shape),
    /// Free keys, from so many to so many, and the same kind under each.
    MapOf(&'static Kind, u32, Option<u32>),
    /// One, or a list.
    OneOrMany(&'static Kind),
    /// A list, of so many.
    List(&'static Kind, u32, Option<u32>),
    Either(&'static [Kind]),
    /// Handlers of a state: what begins with one of the prefixes is of the first kind, event types are of the second.
    ByPrefix(&'static [&'static str], &'static Kind, &'static Kind),
}

/// A kind of scalar that has a name in the schemas.
#[derive(Debug)]
pub struct Named {
    pub name: &'static str,
    pub about: &'static str,
    pub types: &'static [&'static str],
    pub pattern: Option<&'static str>,
}

/// A key that may be there.
pub const fn key(name: &'static str, kind: Kind, about: &'static str) -> Key {
    Key {
        name,
        kind,
        about,
        needed: false,
    }
}

/// A key that must be there.
pub const fn needed(name: &'static str, kind: Kind, about: &'static str) -> Key {
    Key {
        needed: true,
        ..key(name, kind, about)
    }
}

/// A shape with a name, none of whose keys exclude each other.
pub const fn shape(name: &'static str, what: &'static str, keys: &'static [&'static Key]) -> Shape {
    Shape {
        what,
        name,
        about: "",
        keys,
        one_of: &[],
    }
}

impl Shape {
    #[must_use]
    pub const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    #[must_use]
    pub const fn one_of(self, one_of: &'static [&'static str]) -> Self {
        Self { one_of, ..self }
    }

    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().copied().find(|key| key.name == name)
    }

    /// The names of its keys.
    pub fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }
}

const SCALAR: &[&str] = &["string", "boolean", "number"];

pub static EXPRESSION: Named = Named {
    name: "expression",
    about: "CEL without ${ and }.",
    types: SCALAR,
    pattern: None,
};
pub static TEMPLATE: Named = Named {
    name: "text",
    about: "Text, with ${expression} in it where values are needed.",
    types: SCALAR,
    pattern: None,
};
/// In place of a number.
pub static COMPUTED: Named = Named {
    name: "computed",
    about: "${expression}",
    types: &["string"],
    pattern: Some("^\\$\\{.*\\}$"),
};
pub static OBJECT: Named = Named {
    name: "object",
    about: "A map, or an expression that gives one.",
    types: &["object", "string"],
    pattern: None,
};
pub static DURATION: Named = Named {
    name: "duration",
    about: "500ms, 30s, 15m, 1h 30m, 7d; in sagas also an expression in ${} that gives one, or an instant.",
    types: &["string"],
    pattern: None,
};
pub static SCHEMA: Named = Named {
    name: "schema",
    about: "A JSON Schema (draft-07), or the path of one relative to this file.",
    types: &["string", "object"],
    pattern: None,
};
pub static EVENT_TYPE: Named = Named {
    name: "eventType",
    about: "<AggregateType>.<Event>",
    types: &["string"],
    pattern: Some("^[^.]+\\."),
};
pub static RATE: Named = Named {
    name: "rate",
    about: "200/s, 90/m, 5000/h",
    types: &["string"],
    pattern: Some("^[0-9]+ */ *[smh]$"),
};
/// A token of a subject.
const TOKEN: Kind = Kind::Pattern("^[a-z0-9][a-z0-9_-]{0,62}$");

pub static BACKOFF: Shape = shape(
    "backoff",
    "a backoff",
    &[
        &key(
            "initial",
            Kind::Named(&DURATION),
            "Pause before the second attempt.",
        ),
        &key("factor", FACTOR, "What each pause is longer by."),
        &key("max", Kind::Named(&DURATION), "Longest pause."),
    ],
);
const FACTOR: Kind = Kind::Number(1.0, 100.0);
