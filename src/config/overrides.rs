//! What variables and flags say of keys of the manifest.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::keys::{self, PREFIX};
use super::sources::Origin;

/// Variables with short names, and the key that each sets.
const SHORT: [(&str, &str); 5] = [
    ("SAGA_RUNNER_LISTEN", "http.listen"),
    ("SAGA_RUNNER_ADMIN_LISTEN", "http.admin_listen"),
    ("SAGA_RUNNER_LOG", "log.level"),
    ("SAGA_RUNNER_NATS_URL", "broker.nats.urls"),
    ("SAGA_RUNNER_NATS_CONTEXT", "broker.nats.context"),
];
/// Keys without which NATS would not be used, where a flag or a short variable sets them.
const IMPLY_NATS: [&str; 2] = ["broker.nats.urls", "broker.nats.context"];

/// What lies over the file: variables first, then flags. Later ones win.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    settings: Vec<Setting>,
    strangers: Vec<String>,
}

/// One value for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The variable or the flag.
    pub name: String,
    pub origin: Origin,
    /// The key, from the top.
    pub path: String,
    /// As it was written.
    pub shown: String,
    /// Where in it the value begins, in bytes.
    pub value_at: usize,
    /// Whether it makes NATS the broker.
    pub implies_nats: bool,
}

impl Setting {
    fn new(name: String, origin: Origin, path: &str, written: &str, value: &str) -> Self {
        Self {
            implies_nats: false,
            value_at: written.len() + 1,
            shown: format!("{written}={value}"),
            path: path.to_owned(),
            name,
            origin,
        }
    }
}

impl Overrides {
    /// What the environment says. `others` are variables that other commands read; some of them set keys, too.
    pub fn of_environment(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        others: &BTreeSet<String>,
    ) -> Self {
        let mut found = Self::default();
        let mut variables: Vec<(String, String)> = variables
            .into_iter()
            .filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            })
            // An empty one says nothing, as in a file of Compose.
            .filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty())
            .collect();
        variables.sort();
        let known: Vec<(String, String)> = keys::all()
            .into_iter()
            .filter_map(|key| Some((keys::variable(&key.path)?, key.path)))
            .collect();
        for (name, value) in variables {
            let short = SHORT.iter().find(|(short, _)| *short == name);
            let long = known.iter().find(|(variable, _)| *variable == name);
            let path = short
                .map(|(_, path)| *path)
                .or(long.map(|(_, path)| path.as_str()));
            match path {
                Some(path) => {
                    let mut setting = Setting::new(name.clone(), Origin::Variable, path, &name, &value);
                    setting.implies_nats = short.is_some() && IMPLY_NATS.contains(&path);
                    found.settings.push(setting);
                }
                None if others.contains(&name) || is_of_a_service(&name) => {}
                None => found.strangers.push(name),
            }
        }
        found
    }

    /// Lays the value of a flag over everything before.
    #[must_use]
    pub fn flag(mut self, flag: &str, path: &str, value: Option<String>) -> Self {
        if let Some(value) = value {
            let mut setting = Setting::new(flag.to_owned(), Origin::Flag, path, flag, &value);
            setting.implies_nats = IMPLY_NATS.contains(&path);
            self.settings.push(setting);
        }
        self
    }

    /// Lays `path=value` over everything before, as of `--set`.
    #[must_use]
    pub fn set(mut self, (path, value): (&str, &str)) -> Self {
        let name = format!("--set {path}");
        self.settings
            .push(Setting::new(name, Origin::Flag, path, path, value));
        self
    }

    pub(super) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Variables that name no key.
    pub(super) fn strangers(&self) -> &[String] {
        &self.strangers
    }

    /// Variables that say what another one says, too, by its long name: both, and the key.
    pub(super) fn said_twice(&self) -> Vec<(&str, String, &str)> {
        let of_variables = || {
            let settings = self.settings.iter();
            settings.filter(|setting| setting.origin == Origin::Variable)
        };
        let twice = SHORT.iter().filter(|(_, path)| {
            let same = of_variables().filter(|setting| setting.path == *path);
            same.count() > 1
        });
        twice
            .filter_map(|(short, path)| Some((*short, keys::variable(path)?, *path)))
            .collect()
    }
}

/// Whether Kubernetes sets such a variable, for a service whose name begins with that of the runner.
fn is_of_a_service(name: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_transport = |name: &str| ["TCP", "UDP", "SCTP"].contains(&name);
    let parts: Vec<&str> = name.split('_').collect();
    let of_service = |pair: &[&str]| pair == ["SERVICE", "HOST"] || pair == ["SERVICE", "PORT"];
    match parts.as_slice() {
        [.., "PORT", port, transport, "PROTO" | "PORT" | "ADDR"] | [.., "PORT", port, transport]
            if is_port(port) && is_transport(transport) =>
        {
            true
        }
        [.., "PORT"] => true,
        // The name of a port may follow.
        parts => parts.windows(2).any(of_service),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Overrides {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        Overrides::of_environment(
            variables,
            &BTreeSet::from(["SAGA_RUNNER_URL", "SAGA_RUNNER_NATS_URL"].map(str::to_owned)),
        )
    }

    #[test]
    fn variables_of_services_of_kubernetes_say_nothing() {
        let set_by_kubernetes = [
            ("SAGA_RUNNER_SERVICE_HOST", "10.0.0.1"),
            ("SAGA_RUNNER_SERVICE_PORT", "8080"),
            ("SAGA_RUNNER_SERVICE_PORT_HTTP", "8080"),
            ("SAGA_RUNNER_PORT", "tcp://10.0.0.1:8080"),
            ("SAGA_RUNNER_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("SAGA_RUNNER_PORT_8080_TCP_PROTO", "tcp"),
            ("SAGA_RUNNER_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("SAGA_RUNNER_HEADLESS_SERVICE_HOST", "10.0.0.1"),
            ("SAGA_RUNNER_HEADLESS_PORT_8080_TCP_PORT", "8080"),
        ];
        assert_eq!(of(&set_by_kubernetes), Overrides::default());
        for name in keys::all().iter().filter_map(|key| keys::variable(&key.path)) {
            assert!(!is_of_a_service(&name), "{name} would not be read");
        }
    }

    #[test]
    fn a_variable_that_names_no_key_is_not_passed_over() {
        let found = of(&[
            ("SAGA_RUNNER_SHRADS", "4"),
            ("SAGA_RUNNER_URL", "http://a"),
            ("SAGA_RUNNER_GROUP", ""),
            ("OTHER_SHARDS", "4"),
        ]);
        assert_eq!(found.strangers(), ["SAGA_RUNNER_SHRADS"]);
        assert_eq!(found.settings(), []);
    }

    #[test]
    fn short_names_set_the_same_keys_and_not_together_with_long_ones() {
        let found = of(&[
            ("SAGA_RUNNER_LISTEN", "127.0.0.1:1"),
            ("SAGA_RUNNER_HTTP_LISTEN", "127.0.0.1:2"),
        ]);
        assert_eq!(
            found.said_twice(),
            [(
                "SAGA_RUNNER_LISTEN",
                "SAGA_RUNNER_HTTP_LISTEN".to_owned(),
                "http.listen"
            )]
        );
        let found = of(&[("SAGA_RUNNER_NATS_URL", "nats://a")]);
        assert!(found.settings()[0].implies_nats && found.said_twice().is_empty());
        let found = of(&[("SAGA_RUNNER_BROKER_NATS_URLS", "nats://a")]);
        assert!(!found.settings()[0].implies_nats);
    }
}
