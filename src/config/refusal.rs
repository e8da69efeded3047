//! What a start refuses of a manifest that can be read.

/// What is wrong with a value of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The key that it is about, from the top. Where the text does not have it, its deepest part that it has is meant.
    pub key: String,
    /// `SR####`.
    pub code: &'static str,
    /// A sentence without the code.
    pub message: String,
}

impl Refusal {
    /// Of what an error says, which may have its code in brackets at its end.
    pub fn of(key: impl Into<String>, code: &'static str, told: &str) -> Self {
        let message = told.strip_suffix(&format!(" [{code}]")).unwrap_or(told);
        Self {
            key: key.into(),
            code,
            message: message.to_owned(),
        }
    }

    /// Of a sentence that begins with its key.
    pub fn sentence(code: &'static str, told: &str) -> Self {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let key = told.split(|c: char| !is_part(c)).next().unwrap_or_default();
        Self::of(key, code, told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_key_of_its_sentence_and_its_code_once() {
        let refusal = Refusal::sentence("SR0403", "relay.gate_horizon must be longer [SR0403]");
        assert_eq!(refusal.key, "relay.gate_horizon");
        assert_eq!(refusal.message, "relay.gate_horizon must be longer");
        let other = Refusal::of("sagas", "SR0401", "a/b: absent [SR0402]");
        assert_eq!((&*other.key, &*other.message), ("sagas", "a/b: absent [SR0402]"));
    }
}
