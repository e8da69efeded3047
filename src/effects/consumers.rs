//! Which consumers bring the commands, and what each of them is called.
//!
//! Whoever needs to know (workers, retention, operators) asks here, so that all have the same list. A name tells what
//! its consumer brings: a consumer never begins to bring something else, since messages that it has passed over
//! would not come again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kernel::definition::EffectDefinition;
use crate::kernel::ids::{EffectName, TenantId};
use crate::kernel::subject::{self, Tenancy};

/// Most consumers of one worker: each is a task, a subscription and a request that waits.
pub const CONSUMERS_MAX: usize = 1_024;
/// Most commands that a consumer may let out that pushes: all of them may wait in one process. Far below what a
/// connection keeps for a subscription (65,536) before it drops messages.
pub const PUSHED_MAX: usize = 16_384;
/// Longest name of a consumer, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Bytes of the hash in the name of a category's consumer.
const HASH_BYTES: usize = 4;

/// How commands are shared out among consumers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Consumers {
    /// What has a consumer of its own. Default `effect`.
    pub by: Grouping,
    /// How commands come from them. Default `pull`.
    pub delivery: Delivery,
    /// Effects that share a consumer, by the name of the category; the others have one each.
    pub categories: BTreeMap<String, BTreeSet<EffectName>>,
    /// Consumers that are there already, by what they bring.
    pub bind: BTreeMap<String, String>,
}

/// How commands come from a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// To the worker that asks for some.
    #[default]
    Pull,
    /// As they come, to any of the workers.
    Push,
}

/// What has a consumer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    #[default]
    Effect,
    Tenant,
    TenantAndEffect,
    Category,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    by: Option<Grouping>,
    #[serde(default)]
    delivery: Delivery,
    #[serde(default)]
    categories: BTreeMap<String, Vec<EffectName>>,
    #[serde(default)]
    bind: BTreeMap<String, String>,
}

impl TryFrom<Written> for Consumers {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let by = written.by.unwrap_or_default();
        let mut faults = Vec::new();
        match (by, written.categories.is_empty()) {
            (Grouping::Category, true) => faults.push("`by: category` needs `categories`".to_owned()),
            (Grouping::Category, false) | (_, true) => {}
            (_, false) => faults.push("`categories` needs `by: category`".to_owned()),
        }
        let mut seen = BTreeSet::new();
        for (name, effects) in &written.categories {
            if EffectName::parse(name).is_err() {
                faults.push(format!(
                    "category {name:?} is no name: a-z, 0-9, `_` and `-`, beginning with a letter or digit, at most 63"
                ));
            }
            if effects.is_empty() {
                faults.push(format!("category {name} has no effects"));
            }
            for effect in effects {
                if !seen.insert(effect.clone()) {
                    faults.push(format!("effect {effect} is listed twice in categories"));
                }
            }
        }
        let mut bound = BTreeSet::new();
        for (what, name) in &written.bind {
            if !is_consumer_name(name) {
                faults.push(format!(
                    "bind.{what}: {name:?} is no name of a consumer: 1 to {NAME_BYTES_MAX} bytes without blanks, `.`, `*`, `>`, `/`, `\\`"
                ));
            }
            if !bound.insert(name) {
                faults.push(format!("bind.{what}: consumer {name} is bound twice"));
            }
        }
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        let categories = written.categories.into_iter();
        Ok(Self {
            by,
            delivery: written.delivery,
            categories: categories
                .map(|(name, effects)| (name, effects.into_iter().collect()))
                .collect(),
            bind: written.bind,
        })
    }
}

fn is_consumer_name(name: &str) -> bool {
    let unfit = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '.' | '*' | '>' | '/' | '\\');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(unfit)
}

/// What the names of consumers are made of.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Workers of one group share the consumers.
    pub group: &'a str,
    pub tenancy: Tenancy,
    /// The tenants served, `None` for any.
    pub tenants: Option<&'a [TenantId]>,
}

/// One durable consumer on the stream of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// What it brings, as `bind` names it.
    pub brings: String,
    pub name: String,
    /// The workers that share it.
    pub group: String,
    pub filters: Vec<String>,
    /// The effects whose commands it brings; those of one that is not here are given back.
    pub effects: Vec<EffectName>,
    /// It is there already, and the runner neither makes nor alters it.
    pub bound: bool,
    /// Workers that are not saga-runner take from it.
    pub external: bool,
    /// It hands commands out as they come.
    pub push: bool,
}

/// Name of the consumer of one effect.
#[must_use]
pub fn durable_name(group: &str, effect: &EffectName) -> String {
    format!("effect-{group}-{effect}")
}

/// The name of a consumer that pushes: one that is pulled from cannot become one.
fn pushing(name: &str) -> String {
    format!("push-{name}")
}

impl Consumers {
    /// One consumer for each of these effects.
    #[must_use]
    pub fn of_each(group: &str, tenancy: Tenancy, effects: &[Arc<EffectDefinition>]) -> Vec<Consumer> {
        let scope = Scope {
            group,
            tenancy,
            tenants: None,
        };
        let planned = Self::default().plan(scope, effects);
        planned.expect("defaults fit all effects whose names differ")
    }

    /// Name of the consumer of an effect that workers elsewhere carry out.
    #[must_use]
    pub fn of_external(&self, group: &str, effect: &EffectName) -> String {
        let bound = self.bind.get(effect.as_str());
        bound.cloned().unwrap_or_else(|| durable_name(group, effect))
    }

    /// All consumers of these effects, by what they bring.
    ///
    /// # Errors
    /// A sentence for each way in which the settings do not fit the effects or the tenants.
    pub fn plan(
        &self,
        scope: Scope<'_>,
        effects: &[Arc<EffectDefinition>],
    ) -> Result<Vec<Consumer>, Vec<String>> {
        let mut plan = Plan {
            scope,
            bind: &self.bind,
            push: self.delivery == Delivery::Push,
            consumers: Vec::new(),
            faults: Vec::new(),
        };
        let external: Vec<_> = effects.iter().filter(|effect| effect.is_external()).collect();
        for effect in &external {
            plan.add_effect(&effect.name, true);
        }
        let served: Vec<EffectName> = effects
            .iter()
            .filter(|effect| !effect.is_external())
            .map(|effect| effect.name.clone())
            .collect();
        match self.by {
            Grouping::Effect => {
                for effect in &served {
                    plan.add_effect(effect, false);
                }
            }
            Grouping::Tenant => {
                for effect in &external {
                    plan.faults.push(format!(
                        "worker.consumers.by is tenant, so each consumer brings the commands of all effects of a tenant, and effect {} is external: write tenant_and_effect",
                        effect.name
                    ));
                }
                plan.add_tenants(&served);
            }
            Grouping::TenantAndEffect => plan.add_tenants_and_effects(&served),
            Grouping::Category => {
                let known: BTreeSet<&EffectName> = served.iter().collect();
                plan.add_categories(&self.categories, &known);
                let listed: BTreeSet<&EffectName> = self.categories.values().flatten().collect();
                for effect in served.iter().filter(|effect| !listed.contains(effect)) {
                    plan.add_effect(effect, false);
                }
            }
        }
        plan.finish()
    }
}

struct Plan<'a> {
    scope: Scope<'a>,
    bind: &'a BTreeMap<String, String>,
    push: bool,
    consumers: Vec<Consumer>,
    faults: Vec<String>,
}

impl Plan<'_> {
    fn add(&mut self, brings: String, name: String, filters: Vec<String>, effects: Vec<EffectName>) {
        self.add_any(brings, name, filters, effects, false);
    }

    fn add_any(
        &mut self,
        brings: String,
        name: String,
        filters: Vec<String>,
        effects: Vec<EffectName>,
        external: bool,
    ) {
        let bound = self.bind.get(&brings);
        // Workers elsewhere pull.
        let push = self.push && !external;
        let name = if push { pushing(&name) } else { name };
        self.consumers.push(Consumer {
            name: bound.cloned().unwrap_or(name),
            group: self.scope.group.to_owned(),
            push,
            bound: bound.is_some(),
            brings,
            filters,
            effects,
            external,
        });
    }

    fn filter(&self, tenant: Option<&TenantId>, effect: Option<&EffectName>) -> String {
        let effect = effect.map(EffectName::as_str);
        subject::filter(self.scope.tenancy, tenant, "effect", effect)
    }

    fn add_effect(&mut self, effect: &EffectName, external: bool) {
        let filter = self.filter(None, Some(effect));
        let name = durable_name(self.scope.group, effect);
        self.add_any(
            effect.to_string(),
            name,
            vec![filter],
            vec![effect.clone()],
            external,
        );
    }

    /// The tenants, none where they are not known one by one.
    fn tenants(&mut self) -> Vec<TenantId> {
        let listed = match self.scope.tenancy {
            Tenancy::Multi => self.scope.tenants,
            Tenancy::Single => None,
        };
        if listed.is_none() {
            let fault =
                "worker.consumers.by needs tenants that are listed, and the manifest does not list them";
            self.faults.push(fault.to_owned());
        }
        let mut tenants = listed.unwrap_or_default().to_vec();
        tenants.sort();
        tenants.dedup();
        tenants
    }

    fn add_tenants(&mut self, effects: &[EffectName]) {
        for tenant in self.tenants() {
            // Of all effects, so that it stays the same consumer when effects come and go.
            let filter = self.filter(Some(&tenant), None);
            let name = format!("tenant-{}-{tenant}", self.scope.group);
            self.add(tenant.to_string(), name, vec![filter], effects.to_vec());
        }
    }

    fn add_tenants_and_effects(&mut self, effects: &[EffectName]) {
        for tenant in self.tenants() {
            for effect in effects {
                let filter = self.filter(Some(&tenant), Some(effect));
                let name = format!("{}@{tenant}", durable_name(self.scope.group, effect));
                let brings = format!("{tenant}/{effect}");
                self.add(brings, name, vec![filter], vec![effect.clone()]);
            }
        }
    }

    fn add_categories(
        &mut self,
        categories: &BTreeMap<String, BTreeSet<EffectName>>,
        known: &BTreeSet<&EffectName>,
    ) {
        for (category, effects) in categories {
            for effect in effects.iter().filter(|effect| !known.contains(effect)) {
                self.faults.push(format!(
                    "worker.consumers.categories.{category} lists {effect}, which is no effect that workers of saga-runner carry out"
                ));
            }
            let effects: Vec<EffectName> = effects.iter().cloned().collect();
            let filters: Vec<String> = effects
                .iter()
                .map(|effect| self.filter(None, Some(effect)))
                .collect();
            // With other effects it is another consumer.
            let hash = blake3::hash(filters.join("\n").as_bytes()).to_hex();
            let name = format!(
                "effects-{}-{category}-{}",
                self.scope.group,
                &hash[..2 * HASH_BYTES]
            );
            self.add(category.clone(), name, filters, effects);
        }
    }

    fn finish(mut self) -> Result<Vec<Consumer>, Vec<String>> {
        let mut brought = BTreeSet::new();
        let mut names = BTreeSet::new();
        for consumer in &self.consumers {
            if !brought.insert(consumer.brings.as_str()) {
                self.faults.push(format!(
                    "{} is a category and an effect that is in none: give one of them another name",
                    consumer.brings
                ));
            } else if !names.insert(consumer.name.as_str()) {
                self.faults.push(format!(
                    "worker.consumers.bind gives {} the consumer {}, which is another one's",
                    consumer.brings, consumer.name
                ));
            }
        }
        for what in self.bind.keys().filter(|what| !brought.contains(what.as_str())) {
            self.faults.push(format!(
                "worker.consumers.bind names {what:?}, and no consumer brings that; there are {}",
                some_of(&brought)
            ));
        }
        if self.consumers.len() > CONSUMERS_MAX {
            self.faults.push(format!(
                "worker.consumers makes {} consumers, at most {CONSUMERS_MAX} are allowed",
                self.consumers.len()
            ));
        }
        if self.faults.is_empty() {
            Ok(self.consumers)
        } else {
            Err(self.faults)
        }
    }
}

/// The first few, for a message.
fn some_of(names: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 8;
    let mut shown: Vec<&str> = names.iter().copied().take(SHOWN).collect();
    if names.len() > SHOWN {
        shown.push("...");
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::definition::{SourceFile, load};

    fn effects(names: &[&str], external: &[&str]) -> Vec<Arc<EffectDefinition>> {
        let text = |name: &str, section: &str| SourceFile {
            path: format!("{name}.yaml"),
            text: format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\n{section}\n").into(),
        };
        let own = names.iter().map(|name| text(name, "transform: {}\nresult: {}"));
        let others = external.iter().map(|name| text(name, "external: {}"));
        let loaded = load(&[], &own.chain(others).collect::<Vec<_>>());
        assert!(
            loaded.effects.len() == names.len() + external.len(),
            "{:?}",
            loaded.diagnostics
        );
        loaded.effects
    }

    fn settings(yaml: &str) -> Consumers {
        serde_saphyr::from_str(yaml).expect("legal settings")
    }

    fn tenants() -> Vec<TenantId> {
        ["acme", "globex"]
            .map(|name| TenantId::parse(name).expect("legal"))
            .to_vec()
    }

    fn plan(yaml: &str, effects: &[Arc<EffectDefinition>]) -> Result<Vec<Consumer>, Vec<String>> {
        let tenants = tenants();
        let scope = Scope {
            group: "shop",
            tenancy: Tenancy::Multi,
            tenants: Some(&tenants),
        };
        settings(yaml).plan(scope, effects)
    }

    fn names_and_filters(consumers: &[Consumer]) -> Vec<(&str, Vec<&str>)> {
        consumers
            .iter()
            .map(|consumer| {
                let filters = consumer.filters.iter().map(String::as_str).collect();
                (consumer.name.as_str(), filters)
            })
            .collect()
    }

    #[test]
    fn each_grouping_has_names_that_tell_what_they_bring() {
        let both = effects(&["charge", "refund"], &[]);
        let found = plan("{}", &both).expect("fits");
        assert_eq!(
            names_and_filters(&found),
            [
                ("effect-shop-charge", vec!["tenant.*.effect.charge.>"]),
                ("effect-shop-refund", vec!["tenant.*.effect.refund.>"]),
            ]
        );
        let found = plan("by: tenant", &both).expect("fits");
        assert_eq!(
            names_and_filters(&found),
            [
                ("tenant-shop-acme", vec!["tenant.acme.effect.>"]),
                ("tenant-shop-globex", vec!["tenant.globex.effect.>"]),
            ]
        );
        let found = plan("by: tenant_and_effect", &both).expect("fits");
        assert_eq!(found.len(), 4);
        assert_eq!(
            names_and_filters(&found)[1],
            ("effect-shop-refund@acme", vec!["tenant.acme.effect.refund.>"])
        );
    }

    #[test]
    fn a_category_with_other_effects_has_another_consumer() {
        let three = effects(&["charge", "mail", "refund"], &[]);
        let found = plan("{by: category, categories: {pay: [refund, charge]}}", &three).expect("fits");
        let first = found[0].clone();
        assert_eq!(
            first.filters,
            ["tenant.*.effect.charge.>", "tenant.*.effect.refund.>"]
        );
        assert!(first.name.starts_with("effects-shop-pay-"), "{}", first.name);
        assert_eq!(found[1].name, "effect-shop-mail");
        let swapped = plan("{by: category, categories: {pay: [charge, refund]}}", &three).expect("fits");
        assert_eq!(swapped[0], first, "the order does not matter");
        let wider = plan(
            "{by: category, categories: {pay: [charge, mail, refund]}}",
            &three,
        );
        assert_ne!(wider.expect("fits")[0].name, first.name);
    }

    #[test]
    fn a_bound_consumer_has_the_name_that_it_was_given() {
        let both = effects(&["charge"], &["print"]);
        let found = plan("bind: {charge: old-charge, print: old-print}", &both).expect("fits");
        let short: Vec<_> = found
            .iter()
            .map(|consumer| (consumer.name.as_str(), consumer.bound, consumer.external))
            .collect();
        assert_eq!(short, [("old-print", true, true), ("old-charge", true, false)]);
        let found = plan("{by: tenant_and_effect, bind: {acme/charge: theirs}}", &both).expect("fits");
        let named = found.iter().find(|consumer| consumer.name == "theirs");
        assert_eq!(
            named.expect("it is there").filters,
            ["tenant.acme.effect.charge.>"]
        );
    }

    #[test]
    fn settings_that_do_not_fit_are_told_all_at_once() {
        let known = effects(&["charge"], &["print"]);
        let yaml =
            "{by: category, categories: {pay: [charge, gone], charge2: [print]}, bind: {nobody: theirs}}";
        let faults = plan(yaml, &known).expect_err("must not fit").join("\n");
        for expected in [
            "categories.pay lists gone",
            "categories.charge2 lists print",
            "bind names \"nobody\", and no consumer brings that; there are charge2, pay, print",
        ] {
            assert!(faults.contains(expected), "{expected}: {faults}");
        }
        let faults = plan("by: tenant", &known).expect_err("must not fit").join("\n");
        assert!(faults.contains("effect print is external"), "{faults}");
        let clash = plan("{by: category, categories: {print: [charge]}, bind: {}}", &known);
        let faults = clash.expect_err("must not fit").join("\n");
        assert!(faults.contains("print is a category and an effect"), "{faults}");
        let scope = Scope {
            group: "shop",
            tenancy: Tenancy::Multi,
            tenants: None,
        };
        let unlisted = settings("by: tenant_and_effect").plan(scope, &known);
        let faults = unlisted.expect_err("must not fit").join("\n");
        assert!(faults.contains("tenants that are listed"), "{faults}");
    }

    #[test]
    fn a_consumer_that_pushes_has_another_name_and_external_workers_pull() {
        let both = effects(&["charge"], &["print"]);
        let found = plan("delivery: push", &both).expect("fits");
        let short: Vec<_> = found
            .iter()
            .map(|consumer| (consumer.name.as_str(), consumer.push))
            .collect();
        assert_eq!(
            short,
            [("effect-shop-print", false), ("push-effect-shop-charge", true)]
        );
    }

    #[test]
    fn there_is_a_bound_on_consumers() {
        let many: Vec<TenantId> = (0..=CONSUMERS_MAX)
            .map(|n| TenantId::parse(&format!("t{n}")).expect("legal"))
            .collect();
        let scope = Scope {
            group: "shop",
            tenancy: Tenancy::Multi,
            tenants: Some(&many),
        };
        let faults = settings("by: tenant").plan(scope, &effects(&["charge"], &[]));
        assert_eq!(
            faults.expect_err("too many"),
            ["worker.consumers makes 1025 consumers, at most 1024 are allowed"]
        );
    }

    #[test]
    fn settings_that_contradict_themselves_are_refused() {
        for (yaml, expected) in [
            ("by: category", "needs `categories`"),
            ("categories: {a: [b]}", "needs `by: category`"),
            ("{by: category, categories: {a: []}}", "category a has no effects"),
            (
                "{by: category, categories: {A: [b]}}",
                "category \"A\" is no name",
            ),
            (
                "{by: category, categories: {a: [c], b: [c]}}",
                "effect c is listed twice",
            ),
            ("bind: {a: b.c}", "bind.a: \"b.c\" is no name"),
            ("bind: {a: x, b: x}", "consumer x is bound twice"),
            ("by: saga", "unknown variant"),
        ] {
            let error = serde_saphyr::from_str::<Consumers>(yaml).expect_err("must be refused");
            assert!(error.to_string().contains(expected), "{yaml}: {error}");
        }
    }
}
