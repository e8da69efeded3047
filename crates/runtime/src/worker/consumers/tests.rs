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
    let found = plan("by: effect", &both).expect("fits");
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
    let found = plan(
        "{by: effect, bind: {charge: old-charge, print: old-print}}",
        &both,
    )
    .expect("fits");
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
    let yaml = "{by: category, categories: {pay: [charge, gone], charge2: [print]}, bind: {nobody: theirs}}";
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
    let found = plan("{by: effect, delivery: push}", &both).expect("fits");
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
fn listed_tenants_have_consumers_of_their_own_unless_the_manifest_says_otherwise() {
    let both = effects(&["charge"], &["print"]);
    let found = plan("{}", &both).expect("fits");
    assert_eq!(
        names_and_filters(&found),
        [
            ("effect-shop-print", vec!["tenant.*.effect.print.>"]),
            ("effect-shop-charge@acme", vec!["tenant.acme.effect.charge.>"]),
            ("effect-shop-charge@globex", vec!["tenant.globex.effect.charge.>"]),
        ]
    );
    for (tenancy, tenants) in [(Tenancy::Multi, None), (Tenancy::Single, None)] {
        let scope = Scope {
            group: "shop",
            tenancy,
            tenants,
        };
        let found = settings("{}").plan(scope, &both).expect("fits");
        assert_eq!(found[1].name, "effect-shop-charge", "{tenancy:?}");
    }
}

#[test]
fn many_consumers_are_made_only_where_the_manifest_says_so() {
    let many: Vec<TenantId> = (0..=UNASKED_MAX)
        .map(|n| TenantId::parse(&format!("t{n}")).expect("legal"))
        .collect();
    let charge = effects(&["charge"], &[]);
    let scope = Scope {
        group: "shop",
        tenancy: Tenancy::Multi,
        tenants: Some(&many),
    };
    let faults = settings("{}")
        .plan(scope, &charge)
        .expect_err("too many")
        .join("\n");
    assert!(faults.contains("which makes 257 of them"), "{faults}");
    let asked = settings("by: tenant_and_effect").plan(scope, &charge);
    assert_eq!(asked.expect("it was asked for").len(), 257);
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
            "category \"A\" is not a name",
        ),
        (
            "{by: category, categories: {a: [c], b: [c]}}",
            "effect c is listed twice",
        ),
        ("bind: {a: b.c}", "bind.a: \"b.c\" is not a name"),
        ("bind: {a: x, b: x}", "consumer x is bound twice"),
        ("by: saga", "unknown variant"),
    ] {
        let error = serde_saphyr::from_str::<Consumers>(yaml).expect_err("must be refused");
        assert!(error.to_string().contains(expected), "{yaml}: {error}");
    }
}
