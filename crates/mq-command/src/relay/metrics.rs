//! HTTP of `--metrics`: the relays' counters for Prometheus, and whether they accept clients.

use std::{
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
use tokio::{net::TcpListener, sync::Semaphore};

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Connections at once.
const AT_ONCE: usize = 16;

/// Time that a request may take, with its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Relays whose counters are shown, each by its first address.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<Mutex<ShownNow>>);

#[derive(Clone, Debug, Default)]
struct ShownNow {
    relays: Vec<(String, RelayHandle)>,
    is_ending: bool,
}

impl Shown {
    /// Shows these relays in the place of those before.
    pub(super) fn set(&self, relays: Vec<(String, RelayHandle)>) {
        self.with(|now| now.relays = relays);
    }

    /// Has `/healthz` say that no client is accepted any more.
    pub(super) fn end(&self) {
        self.with(|now| now.is_ending = true);
    }

    fn with<T>(&self, change: impl FnOnce(&mut ShownNow) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
    let relays = shown.with(|now| now.relays.clone());
    let stats = relays
        .iter()
        .map(|(name, relay)| (name.clone(), relay.stats()));
    let mut registry = Registry::with_prefix("mq_relay");
    registry.register_collector(Box::new(All(stats.collect())));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Counters of each relay, at one moment.
#[derive(Debug)]
struct All(Vec<(String, RelayStats)>);

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
