//! HTTP of `--metrics`: the relays' counters for Prometheus, and whether they accept clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use mq_relay::{RelayHandle, RelayStats};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use tokio::{net::TcpListener, sync::Semaphore, task::AbortHandle};

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Connections at once.
const AT_ONCE: usize = 16;

/// Time that a request may take, with its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Relays of this process. Their counters are shown, each relay's by its first address.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<Mutex<ShownNow>>);

#[derive(Debug, Default)]
struct ShownNow {
    running: Vec<ShownRelay>,
    /// Relays that the file has no more, until their last client has left.
    leaving: Vec<ShownRelay>,
    /// Counters of relays that have left, where another one has their name: a counter does not go back.
    left: BTreeMap<String, RelayStats>,
    is_ending: bool,
}

/// A relay that has its name from its first address.
#[derive(Clone, Debug)]
pub(super) struct ShownRelay {
    pub(super) name: String,
    pub(super) handle: RelayHandle,
    /// Task that accepts the clients.
    pub(super) accepting: AbortHandle,
}

impl ShownRelay {
    /// Returns `true` once the relay has no client, and gets none any more.
    fn has_left(&self) -> bool {
        // In this order: what accepts may have let one in a moment ago.
        self.accepting.is_finished() && self.handle.stats().clients == 0
    }
}

impl Shown {
    /// Shows these relays in the place of those before, and relays that leave beside them.
    pub(super) fn set(
        &self,
        running: Vec<ShownRelay>,
        leaving: impl IntoIterator<Item = ShownRelay>,
    ) {
        self.with(|now| {
            now.running = running;
            now.leaving.extend(leaving);
            now.forget();
        });
    }

    /// Returns the relays whose clients have to leave before the end: all of them.
    pub(super) fn all(&self) -> Vec<RelayHandle> {
        self.with(|now| {
            now.forget();
            now.present().map(|relay| relay.handle.clone()).collect()
        })
    }

    /// Has `/healthz` say that no client is accepted any more.
    pub(super) fn end(&self) {
        self.with(|now| now.is_ending = true);
    }

    fn with<T>(&self, change: impl FnOnce(&mut ShownNow) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ShownNow {
    /// Forgets relays that have left.
    fn forget(&mut self) {
        for gone in self.leaving.extract_if(.., |relay| relay.has_left()) {
            let left = self.left.entry(gone.name).or_default();
            *left += gone.handle.stats();
        }
        let present = self.running.iter().chain(&self.leaving);
        let names: BTreeSet<_> = present.map(|relay| relay.name.as_str()).collect();
        self.left.retain(|name, _| names.contains(name.as_str()));
    }

    /// Returns the relays that have clients, or get some.
    fn present(&self) -> impl Iterator<Item = &ShownRelay> {
        self.running.iter().chain(&self.leaving)
    }

    /// Returns the counters of each name.
    fn stats(&mut self) -> BTreeMap<String, RelayStats> {
        self.forget();
        let mut stats = self.left.clone();
        for relay in self.present() {
            *stats.entry(relay.name.clone()).or_default() += relay.handle.stats();
        }
        stats
    }
}

/// Answers requests until it is dropped.
pub(super) async fn serve(listener: TcpListener, shown: Shown) {
    let free = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(place) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Mostly for want of file descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let shown = shown.clone();
        tokio::spawn(async move {
            let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request, &shown)));
            let served = hyper::server::conn::http1::Builder::new()
                .keep_alive(false)
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever does not send or read in time gets nothing.
            let _ = tokio::time::timeout(PATIENCE, served).await;
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, shown: &Shown) -> Response<Full<Bytes>> {
    let text = |status, text: &'static str| (status, "text/plain; charset=utf-8", text.to_owned());
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, body) = match request.uri().path() {
        "/metrics" | "/healthz" if !is_read => text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n"),
        "/metrics" => (StatusCode::OK, MEDIA_TYPE, exposition(shown)),
        "/healthz" if shown.with(|now| now.is_ending) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        _ => text(StatusCode::NOT_FOUND, "/metrics and /healthz are here\n"),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn exposition(shown: &Shown) -> String {
    let mut registry = Registry::with_prefix("mq_relay");
    registry.register_collector(Box::new(All(shown.with(ShownNow::stats))));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Counters of each relay, at one moment.
#[derive(Debug)]
struct All(BTreeMap<String, RelayStats>);

type Field = fn(&RelayStats) -> u64;

/// Name, help and last label of a counter, and for each value of that label the field. Without a label the value is empty.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, Field)],
);

const COUNTERS: &[Row] = &[
    (
        "passed_on",
        "Clients whose CONNECT was passed on",
        "",
        &[("", |of| of.passed_on)],
    ),
    (
        "refused",
        "Clients that were refused, or left before their CONNECT",
        "",
        &[("", |of| of.refused)],
    ),
    (
        "broker_connections",
        "Connections on which the broker has answered, by their handshake",
        "handshake",
        &[("full", |of| of.full), ("resumed", |of| of.resumed)],
    ),
    (
        "early_data",
        "Connections to the broker with early data",
        "outcome",
        &[
            ("accepted", |of| of.early_accepted),
            ("rejected", |of| of.early_rejected),
        ],
    ),
    (
        "fallbacks",
        "Connections to another address of the broker than the first",
        "",
        &[("", |of| of.fallbacks)],
    ),
    (
        "broker_failures",
        "Clients for which the broker was not reached, or did not answer",
        "reason",
        &[
            ("failed", |of| of.failed),
            ("paused", |of| of.paused),
            ("timed-out", |of| of.timed_out),
            ("unanswered", |of| of.unanswered),
        ],
    ),
    (
        "passed_bytes",
        "Bytes that were passed on",
        "direction",
        &[
            ("to-broker", |of| of.bytes_to_broker),
            ("to-clients", |of| of.bytes_to_clients),
        ],
    ),
];

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, label, fields) in COUNTERS {
            let kind = MetricType::Counter;
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (relay, stats) in &self.0 {
                for (value, field) in *fields {
                    let counter = ConstCounter::new(field(stats));
                    if label.is_empty() {
                        counter.encode(family.encode_family(&[("relay", relay.as_str())])?)?;
                    } else {
                        let labels = [("relay", relay.as_str()), (*label, *value)];
                        counter.encode(family.encode_family(&labels)?)?;
                    }
                }
            }
        }
        let kind = MetricType::Gauge;
        let help = "Clients now";
        let mut clients = encoder.encode_descriptor("clients", help, None, kind)?;
        for (relay, stats) in &self.0 {
            let gauge = ConstGauge::new(i64::try_from(stats.clients).unwrap_or(i64::MAX));
            gauge.encode(clients.encode_family(&[("relay", relay.as_str())])?)?;
        }
        let help =
            "Smoothed round-trip time of the connection on which the broker has answered last";
        let unit = Some(&Unit::Seconds);
        let mut rtt = encoder.encode_descriptor("broker_rtt", help, unit, kind)?;
        for (relay, stats) in &self.0 {
            if let Some(time) = stats.rtt {
                let gauge = ConstGauge::new(time.as_secs_f64());
                gauge.encode(rtt.encode_family(&[("relay", relay.as_str())])?)?;
            }
        }
        Ok(())
    }
}
