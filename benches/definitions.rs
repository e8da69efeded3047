//! The time to load and check definitions: 1,000 and 10,000 sagas like `sagas/order.yaml`, under as many names.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use saga_runner::kernel::definition::{self, SourceFile};

fn text(path: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(path).expect("the repository has this file")
}

fn effects() -> Vec<SourceFile> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("effects");
    std::fs::read_dir(directory)
        .expect("the repository has this directory")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| SourceFile {
            text: std::fs::read_to_string(&path).expect("readable").into(),
            path: path.display().to_string(),
        })
        .collect()
}

fn sagas(count: usize) -> Vec<SourceFile> {
    let order = text("sagas/order.yaml");
    let named = |number: usize| order.replacen("name: order\n", &format!("name: order-{number}\n"), 1);
    (0..count)
        .map(|number| SourceFile {
            path: format!("order-{number}.yaml"),
            text: named(number).into(),
        })
        .collect()
}

fn definitions(criterion: &mut Criterion) {
    let effects = effects();
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10).measurement_time(Duration::from_secs(20));
    for count in [1_000, 10_000] {
        let sagas = sagas(count);
        let loaded = definition::load(&sagas, &effects);
        assert_eq!(loaded.sagas.len(), count, "{:?}", loaded.diagnostics.first());
        group.throughput(Throughput::Elements(count as u64));
        group.bench_with_input(BenchmarkId::from_parameter(count), &sagas, |bencher, sagas| {
            bencher.iter(|| black_box(definition::load(sagas, &effects)));
        });
    }
    group.finish();
}

criterion_group!(benches, definitions);
criterion_main!(benches);
