//! The streams of a cluster: one log for each shard, and one of values. A new cluster has its logs made before its stream of
//! values, so that a cluster whose values are there has had all its logs.

use async_nats::jetstream::{
    Context, ErrorCode,
    context::GetStreamErrorKind,
    stream::{Config, DiscardPolicy, Stream},
};
use tracing::{info, warn};

use super::{NatsSettings, connect::ConnectFailure, nats_error};
use crate::cluster::{DEDUPLICATION_WINDOW, EngineError};

/// Key in the metadata of the stream of values under which the number of logs stands.
const SHARDS_METADATA_KEY: &str = "mq.shards";

/// Returns the name of a log's stream.
pub(super) fn log_name(cluster: &str, shard: u16) -> String {
    format!("{cluster}-log-{shard}")
}

fn values_name(cluster: &str) -> String {
    format!("{cluster}-values")
}

/// Returns the stream of the values. Makes all streams if there are none.
///
/// # Errors
/// If the servers lack one of the streams that this cluster has had, or all of them and
/// [`NatsSettings::create_streams`] is off: what is stored elsewhere, such as a backup, may bring them back.
pub(super) async fn open_streams(
    settings: &NatsSettings,
    context: &Context,
) -> Result<Stream, ConnectFailure> {
    let cluster = &settings.cluster;
    let values = find_stream(context, &values_name(cluster)).await?;
    if let Some(values) = &values {
        check_values(settings, values)?;
    }
    let (mut missing, mut used) = (None, None);
    for shard in 0..settings.shards {
        let name = log_name(cluster, shard);
        match find_stream(context, &name).await? {
            Some(log) if log.cached_info().state.last_sequence > 0 => used = Some(name),
            Some(_) => {}
            None => {
                missing.get_or_insert(name);
            }
        }
    }
    if let Some(values) = values {
        return match missing {
            Some(log) => Err(lost(&log, &values_name(cluster))),
            None => Ok(values),
        };
    }
    if let Some(used) = used {
        // Another node may have made the streams meanwhile, and written to its logs.
        let values = find_stream(context, &values_name(cluster)).await?;
        return values.ok_or_else(|| lost(&values_name(cluster), &used));
    }
    if !settings.create_streams {
        return Err(ConnectFailure::Unavailable(format!(
            "the servers have no streams of cluster {cluster:?}, and create_streams is false: restore the streams, or set \
             it to true to begin a new cluster"
        )));
    }
    create_streams(settings, context).await
}

fn lost(missing: &str, present: &str) -> ConnectFailure {
    ConnectFailure::Unavailable(format!(
        "the servers have lost stream {missing:?}, while {present:?} is there: restore it, or remove all streams of the \
         cluster to begin a new one"
    ))
}

async fn create_streams(
    settings: &NatsSettings,
    context: &Context,
) -> Result<Stream, ConnectFailure> {
    let NatsSettings {
        cluster,
        shards,
        replicas,
        ..
    } = settings;
    for shard in 0..*shards {
        let log = Config {
            name: log_name(cluster, shard),
            subjects: vec![format!("{cluster}.log.{shard}")],
            discard: DiscardPolicy::New,
            num_replicas: *replicas,
            duplicate_window: DEDUPLICATION_WINDOW,
            ..Config::default()
        };
        let made = context.get_or_create_stream(log).await;
        made.map_err(nats_error)?;
    }
    let values = Config {
        name: values_name(cluster),
        subjects: vec![format!("{cluster}.value.>")],
        max_messages_per_subject: 1,
        allow_message_ttl: true,
        num_replicas: *replicas,
        metadata: [(SHARDS_METADATA_KEY.to_owned(), shards.to_string())].into(),
        ..Config::default()
    };
    let values = context.get_or_create_stream(values).await;
    let values = values.map_err(nats_error)?;
    // Another node may have made them with other settings.
    check_values(settings, &values)?;
    info!(
        cluster,
        logs = shards,
        replicas,
        "cluster: new cluster; streams made"
    );
    Ok(values)
}

/// Checks the settings that cannot be changed once there is a cluster.
fn check_values(settings: &NatsSettings, values: &Stream) -> Result<(), ConnectFailure> {
    let NatsSettings {
        cluster,
        shards,
        replicas,
        ..
    } = settings;
    let known = &values.cached_info().config;
    if let Some(there) = known.metadata.get(SHARDS_METADATA_KEY)
        && *there != shards.to_string()
    {
        return Err(ConnectFailure::Misconfigured(format!(
            "shards: the cluster {cluster:?} has {there}, and not {shards}: it cannot be changed"
        )));
    }
    if known.num_replicas != *replicas {
        warn!(
            replicas = known.num_replicas,
            configured = replicas,
            "cluster: number of replicas differs from the configuration and stays"
        );
    }
    Ok(())
}

/// Returns a stream; `None` if the servers say that there is none.
async fn find_stream(context: &Context, name: &str) -> Result<Option<Stream>, EngineError> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(answer)
                if answer.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            _ => Err(nats_error(error)),
        },
    }
}
