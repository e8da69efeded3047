//! The subject that a command goes to: a pattern of the manifest, filled from the command.

use crate::kernel::envelope::AggregateCommand;
use crate::kernel::subject::{AGGREGATE_KINDS, COMMAND_KINDS, EVENT_KINDS, escape_into};

/// Longest subject, in bytes: a server takes lines of 4,096 with all that stands beside it.
const SUBJECT_BYTES_MAX: usize = 1_024;
/// What may stand in braces.
const VARIABLES: [(&str, Variable); 4] = [
    ("tenant", Variable::Tenant),
    ("aggregate_type", Variable::AggregateType),
    ("aggregate_id", Variable::AggregateId),
    ("command", Variable::Command),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    Tenant,
    AggregateType,
    AggregateId,
    Command,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Variable(Variable),
}

/// A subject with variables, each of which is a token or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectPattern(Vec<Part>);

impl SubjectPattern {
    /// Reads a pattern such as `gateway.{tenant}.{aggregate_type}`.
    ///
    /// # Errors
    /// A sentence about the first thing that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, behind)) = rest.split_once('{') {
            let (name, behind) = behind.split_once('}').ok_or("a brace is not closed")?;
            let variable = VARIABLES.iter().find(|(known, _)| *known == name);
            let (_, variable) = variable.ok_or_else(|| {
                let known = VARIABLES.map(|(known, _)| format!("{{{known}}}")).join(", ");
                format!("{{{name}}} is none of {known}")
            })?;
            parts.extend((!literal.is_empty()).then(|| Part::Literal(literal.to_owned())));
            parts.push(Part::Variable(*variable));
            rest = behind;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Literal(rest.to_owned())));
        let pattern = Self(parts);
        pattern.check()?;
        Ok(pattern)
    }

    fn check(&self) -> Result<(), String> {
        let shape = self.filled(|_, out| out.push('x'));
        if shape.split('.').any(str::is_empty) {
            return Err("it is made of tokens with dots between them, and one is empty".to_owned());
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if let Some(other) = shape.chars().find(|c| !legal(*c)) {
            let other = other.escape_debug();
            return Err(format!(
                "it may hold letters, digits, '-', '_' and dots, found '{other}'"
            ));
        }
        let first = match self.0.first() {
            Some(Part::Literal(text)) => text.split_once('.').map(|(first, _)| first),
            Some(Part::Variable(_)) | None => None,
        };
        match first {
            None => {
                Err("its first token is fixed and others follow, e.g. gateway.{aggregate_type}".to_owned())
            }
            Some(first) if is_own(first) || first == "_INBOX" => {
                Err(format!("subjects below \"{first}\" belong to the runner"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether the tenant is a part of the subject.
    #[must_use]
    pub fn has_tenant(&self) -> bool {
        self.0.contains(&Part::Variable(Variable::Tenant))
    }

    /// The subject of a command.
    ///
    /// # Errors
    /// A sentence where it is longer than a subject may be.
    pub fn of(&self, command: &AggregateCommand<'_>) -> Result<String, String> {
        let name = command.command_type.strip_prefix(&command.aggregate_type);
        let name = name.and_then(|rest| rest.strip_prefix('.'));
        let subject = self.filled(|variable, out| {
            let value = match variable {
                Variable::Tenant => command.tenant_id.as_str(),
                Variable::AggregateType => &command.aggregate_type,
                Variable::AggregateId => &command.aggregate_id,
                Variable::Command => name.unwrap_or(&command.command_type),
            };
            escape_into(out, value);
        });
        if subject.len() > SUBJECT_BYTES_MAX {
            let length = subject.len();
            return Err(format!(
                "its subject is {length} bytes long, at most {SUBJECT_BYTES_MAX} are allowed"
            ));
        }
        Ok(subject)
    }

    fn filled(&self, mut fill: impl FnMut(Variable, &mut String)) -> String {
        let mut out = String::with_capacity(96);
        for part in &self.0 {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Variable(variable) => fill(*variable, &mut out),
            }
        }
        out
    }
}

/// Whether the runner's own streams have subjects that begin so: a command there would be taken for something else.
fn is_own(first: &str) -> bool {
    let kinds = [AGGREGATE_KINDS, COMMAND_KINDS, EVENT_KINDS];
    first == "tenant" || kinds.iter().any(|kinds| kinds.contains(&first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gateway::testing::{command, payload};
    use crate::kernel::ids::TenantId;

    fn pattern(text: &str) -> SubjectPattern {
        SubjectPattern::parse(text).expect("a pattern")
    }

    #[test]
    fn each_variable_is_that_of_the_command() {
        let payload = payload();
        let command = command(&payload);
        for (text, subject) in [
            ("gateway.all", "gateway.all"),
            ("gateway.{tenant}.{aggregate_type}", "gateway.acme.Shipment"),
            ("orders.x-{command}.{aggregate_id}.y", "orders.x-Create.shp-1.y"),
            ("g.{tenant}{tenant}", "g.acmeacme"),
        ] {
            assert_eq!(pattern(text).of(&command).as_deref(), Ok(subject), "{text}");
        }
        assert!(pattern("g.{tenant}").has_tenant() && !pattern("g.{command}").has_tenant());
    }

    #[test]
    fn patterns_that_make_no_subject_are_told() {
        for (text, said) in [
            ("", "empty"),
            ("gateway", "first token"),
            ("{tenant}.gateway", "first token"),
            ("x{tenant}.gateway", "first token"),
            ("gateway.", "empty"),
            ("gateway..x", "empty"),
            ("gateway.*", "'*'"),
            ("gateway.>", "'>'"),
            ("gateway. x", "' '"),
            ("$JS.API", "'$'"),
            ("_INBOX.x", "_INBOX"),
            ("tenant.{tenant}.aggregate.x", "\"tenant\""),
            ("aggregate.{aggregate_type}.x", "\"aggregate\""),
            ("effect_cancel.{aggregate_type}.x", "\"effect_cancel\""),
            ("gateway.{tenat}", "{tenat} is none of {tenant}"),
            ("gateway.{tenant", "brace"),
            ("gateway.tenant}", "'}'"),
        ] {
            let fault = SubjectPattern::parse(text).expect_err(text);
            assert!(fault.contains(said), "{text:?}: {fault}");
        }
    }

    proptest! {
        #[test]
        fn no_value_gets_out_of_its_token(id in "\\PC{0,40}", kind in "\\PC{0,40}", name in "\\PC{0,40}") {
            let payload = payload();
            let mut command = command(&payload);
            command.tenant_id = TenantId::parse("acme").expect("legal");
            command.aggregate_id = id;
            command.command_type = format!("{kind}.{name}");
            command.aggregate_type = kind;
            let text = "gateway.{tenant}.{aggregate_type}.{aggregate_id}.{command}";
            let subject = pattern(text).of(&command).expect("short");
            let tokens: Vec<&str> = subject.split('.').collect();
            prop_assert_eq!(tokens.len(), 5);
            prop_assert_eq!(&tokens[..2], ["gateway", "acme"]);
            let legal = |c: char| c.is_ascii_alphanumeric() || "-_=".contains(c);
            prop_assert!(tokens.iter().all(|token| !token.is_empty() && token.chars().all(legal)), "{}", subject);
        }
    }

    #[test]
    fn a_subject_that_a_server_would_not_take_is_refused() {
        let payload = payload();
        let mut command = command(&payload);
        command.aggregate_id = "ü".repeat(400);
        let fault = pattern("g.{aggregate_id}").of(&command).expect_err("too long");
        assert!(fault.contains("2402 bytes"), "{fault}");
    }
}
