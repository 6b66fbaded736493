//! Routing: how long finding the receivers of a message takes, by number of subscriptions.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use mq_broker::router::{FanOut, LaneSlot, Router, SessionKey, Subscriber};
use mq_codec::{QoS, TopicFilter};

fn subscriber(session: u32) -> Subscriber {
    Subscriber {
        session: SessionKey(session),
        options: QoS::AtLeastOnce.into(),
        subscription_id: None,
        lane: LaneSlot::CONTROL,
    }
}

fn filter(text: String) -> TopicFilter {
    TopicFilter::new(text).expect("a valid filter")
}

/// Makes a router with an exact subscriber for each of so many devices, and two with wildcards.
fn devices(count: u32) -> Router {
    let mut router = Router::new();
    for device in 0..count {
        router.subscribe(&filter(format!("site/{device}/temp")), subscriber(device));
    }
    router.subscribe(&filter("site/+/temp".to_owned()), subscriber(count));
    router.subscribe(&filter("site/#".to_owned()), subscriber(count + 1));
    router
}

fn route(c: &mut Criterion) {
    let mut group = c.benchmark_group("route to 3 of n");
    for count in [10, 1_000, 100_000] {
        let router = devices(count);
        let mut fan_out = FanOut::new();
        group.bench_with_input(BenchmarkId::from_parameter(count), &count, |b, _| {
            b.iter(|| {
                router.route(black_box(b"site/7/temp"), None, &|_| true, &mut fan_out);
                assert_eq!(fan_out.targets().len(), 3);
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("fan out to n");
    for count in [1, 100, 10_000] {
        let mut router = Router::new();
        for session in 0..count {
            router.subscribe(&filter("news/+".to_owned()), subscriber(session));
        }
        let mut fan_out = FanOut::new();
        group.bench_with_input(BenchmarkId::from_parameter(count), &count, |b, _| {
            b.iter(|| router.route(black_box(b"news/x"), None, &|_| true, &mut fan_out));
        });
    }
    group.finish();
}

criterion_group!(benches, route);
criterion_main!(benches);
