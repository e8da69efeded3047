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

#[cfg(test)]
mod tests;

/// Most consumers of one worker: each is a task, a subscription and a request that waits.
pub const CONSUMERS_MAX: usize = 1_024;
/// Most consumers where the manifest does not say what has one of its own.
pub const UNASKED_MAX: usize = 256;
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
    /// What has a consumer of its own. Default `tenant_and_effect` where the tenants are listed, else `effect`.
    pub by: Option<Grouping>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
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
        let by = written.by;
        let mut faults = Vec::new();
        match (by, written.categories.is_empty()) {
            (Some(Grouping::Category), true) => faults.push("`by: category` needs `categories`".to_owned()),
            (Some(Grouping::Category), false) | (_, true) => {}
            (_, false) => faults.push("`categories` needs `by: category`".to_owned()),
        }
        let mut seen = BTreeSet::new();
        for (name, effects) in &written.categories {
            if EffectName::parse(name).is_err() {
                faults.push(format!(
                    "category {name:?} is not a name: a-z, 0-9, `_` and `-`, beginning with a letter or digit, at most 63"
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
                    "bind.{what}: {name:?} is not a name of a consumer: 1 to {NAME_BYTES_MAX} bytes without blanks, `.`, `*`, `>`, `/`, `\\`"
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

impl Scope<'_> {
    /// The grouping where the manifest has none. It depends on nothing that changes with an effect or a tenant more: every
    /// change of it brings other consumers.
    fn grouping(self) -> Grouping {
        match (self.tenancy, self.tenants) {
            (Tenancy::Multi, Some(_)) => Grouping::TenantAndEffect,
            (Tenancy::Multi, None) | (Tenancy::Single, _) => Grouping::Effect,
        }
    }
}

/// One durable consumer on the stream of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// What it brings, as `bind` names it.
    pub delivers: String,
    /// Whose commands it brings, where they are one tenant's.
    pub tenant: Option<TenantId>,
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
            is_asked_for: self.by.is_some(),
            consumers: Vec::new(),
            faults: Vec::new(),
        };
        let external: Vec<_> = effects.iter().filter(|effect| effect.is_external()).collect();
        for effect in &external {
            plan.add_effect(&effect.name, Workers::External);
        }
        let served: Vec<EffectName> = effects
            .iter()
            .filter(|effect| !effect.is_external())
            .map(|effect| effect.name.clone())
            .collect();
        match self.by.unwrap_or_else(|| scope.grouping()) {
            Grouping::Effect => {
                for effect in &served {
                    plan.add_effect(effect, Workers::Own);
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
                    plan.add_effect(effect, Workers::Own);
                }
            }
        }
        plan.finish()
    }
}

/// A consumer before it is known whether it is bound.
struct New {
    delivers: String,
    name: String,
    tenant: Option<TenantId>,
    filters: Vec<String>,
    effects: Vec<EffectName>,
    external: bool,
}

/// Who takes the commands of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workers {
    /// Those of runners.
    Own,
    /// Those of somebody else.
    External,
}

struct Plan<'a> {
    scope: Scope<'a>,
    bind: &'a BTreeMap<String, String>,
    push: bool,
    /// The manifest says what has a consumer of its own.
    is_asked_for: bool,
    consumers: Vec<Consumer>,
    faults: Vec<String>,
}

impl Plan<'_> {
    fn add(&mut self, consumer: New) {
        let bound = self.bind.get(&consumer.delivers);
        // Workers elsewhere pull.
        let push = self.push && !consumer.external;
        let name = if push {
            pushing(&consumer.name)
        } else {
            consumer.name
        };
        self.consumers.push(Consumer {
            name: bound.cloned().unwrap_or(name),
            group: self.scope.group.to_owned(),
            push,
            bound: bound.is_some(),
            delivers: consumer.delivers,
            tenant: consumer.tenant,
            filters: consumer.filters,
            effects: consumer.effects,
            external: consumer.external,
        });
    }

    fn filter(&self, tenant: Option<&TenantId>, effect: Option<&EffectName>) -> String {
        let effect = effect.map(EffectName::as_str);
        subject::filter(self.scope.tenancy, tenant, "effect", effect)
    }

    fn add_effect(&mut self, effect: &EffectName, workers: Workers) {
        let filter = self.filter(None, Some(effect));
        let name = durable_name(self.scope.group, effect);
        self.add(New {
            delivers: effect.to_string(),
            name,
            tenant: None,
            filters: vec![filter],
            effects: vec![effect.clone()],
            external: workers == Workers::External,
        });
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
            self.add(New {
                delivers: tenant.to_string(),
                name,
                tenant: Some(tenant),
                filters: vec![filter],
                effects: effects.to_vec(),
                external: false,
            });
        }
    }

    fn add_tenants_and_effects(&mut self, effects: &[EffectName]) {
        for tenant in self.tenants() {
            for effect in effects {
                let filter = self.filter(Some(&tenant), Some(effect));
                let name = format!("{}@{tenant}", durable_name(self.scope.group, effect));
                let delivers = format!("{tenant}/{effect}");
                self.add(New {
                    delivers,
                    name,
                    tenant: Some(tenant.clone()),
                    filters: vec![filter],
                    effects: vec![effect.clone()],
                    external: false,
                });
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
                    "worker.consumers.categories.{category} lists {effect}, which is not an effect that workers of saga-runner carry out"
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
            self.add(New {
                delivers: category.clone(),
                name,
                tenant: None,
                filters,
                effects,
                external: false,
            });
        }
    }

    fn finish(mut self) -> Result<Vec<Consumer>, Vec<String>> {
        let mut brought = BTreeSet::new();
        let mut names = BTreeSet::new();
        for consumer in &self.consumers {
            if !brought.insert(consumer.delivers.as_str()) {
                self.faults.push(format!(
                    "{} is a category and an effect that is in none: give one of them another name",
                    consumer.delivers
                ));
            } else if !names.insert(consumer.name.as_str()) {
                self.faults.push(format!(
                    "worker.consumers.bind gives {} the consumer {}, which is another one's",
                    consumer.delivers, consumer.name
                ));
            }
        }
        for what in self.bind.keys().filter(|what| !brought.contains(what.as_str())) {
            self.faults.push(format!(
                "worker.consumers.bind names {what:?}, and no consumer brings that; there are {}",
                some_of(&brought)
            ));
        }
        if !self.is_asked_for && self.consumers.len() > UNASKED_MAX {
            self.faults.push(format!(
                "each tenant has a consumer for each effect, which makes {} of them; that many are made only where the manifest says so: \
                 write worker.consumers.by, `tenant_and_effect` (at most {CONSUMERS_MAX}), `tenant`, or `effect`, with which the backlog of \
                 a tenant stands before the commands of the others",
                self.consumers.len()
            ));
        } else if self.consumers.len() > CONSUMERS_MAX {
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
