//! `/v1/`: clients, sessions, subscriptions, retained messages, topics, refusals and bans as JSON.
//!
//! `docs/spec/admin.openapi.json` describes each request and answer.

use hyper::{Method, StatusCode, http::request};
use serde_json::json;

use super::{
    Admin,
    answer::{Answer, Failure, failed, good},
    events,
    parameters::{Parameters, bad},
    status::status,
};
use crate::view::{Banned, Cluster, NotConnected};

/// Answers a request below `/v1/`.
pub(super) async fn answer(admin: &Admin, head: &request::Parts, body: Option<&[u8]>) -> Answer {
    try_answer(admin, head, body).await.unwrap_or_else(failed)
}

async fn try_answer(
    admin: &Admin,
    head: &request::Parts,
    body: Option<&[u8]>,
) -> Result<Answer, Failure> {
    let path = head.uri.path().strip_prefix("/v1/").unwrap_or_default();
    let parts: Vec<_> = path.split('/').collect();
    let parameters = Parameters::of(head.uri.query(), body)?;
    match head.method {
        Method::GET | Method::HEAD => read(admin, &parts, &parameters).await,
        Method::POST | Method::DELETE => change(admin, &head.method, &parts, &parameters),
        _ => Err(not_so()),
    }
}

async fn read(admin: &Admin, parts: &[&str], parameters: &Parameters) -> Result<Answer, Failure> {
    let (hub, query) = (&admin.hub, &parameters.query);
    Ok(match parts {
        ["status"] => good(&status(admin)),
        ["clients"] => good(&hub.operators().clients(query).await),
        ["clients", id] => {
            let id = parameters.id(id)?;
            good(
                &hub.operators()
                    .client(&id)
                    .await
                    .map_err(|error| unknown(&error))?,
            )
        }
        ["sessions"] => good(&hub.operators().absent_sessions(query).await),
        ["subscriptions"] => {
            let of = parameters.id.as_deref();
            good(&hub.operators().all_subscriptions(query, of).await)
        }
        ["retained"] => {
            let page = hub.operators().retained_topics(query).await;
            good(&page.map_err(|error| bad(format!("match: {error}")))?)
        }
        ["topics"] => good(&hub.operators().topic_rates(query).await),
        ["refusals"] => good(&hub.refusal_log.recent(query)),
        ["bans"] => good(&hub.bans.list(query)),
        ["cluster"] => good(&match &admin.cluster {
            Some(cluster) => cluster.full_status().await,
            None => Cluster::default(),
        }),
        ["log"] => {
            let log = admin.log.as_ref().ok_or_else(no_log)?;
            good(&json!({ "filter": log.filter() }))
        }
        ["events"] => events::answer(admin, query)?,
        ["clients", _, "kick"] => return Err(not_so()),
        _ => return Err(nothing()),
    })
}

fn change(
    admin: &Admin,
    method: &Method,
    parts: &[&str],
    parameters: &Parameters,
) -> Result<Answer, Failure> {
    let hub = &admin.hub;
    let post = method == Method::POST;
    Ok(match parts {
        ["clients", id, "kick"] if post => {
            let id = parameters.id(id)?;
            hub.operators().kick(&id).map_err(|error| unknown(&error))?;
            good(&json!({ "kicked": id }))
        }
        ["bans"] if post => {
            let banned = banned(parameters)?;
            let minutes = parameters
                .minutes
                .ok_or_else(|| bad("minutes is missing"))?;
            good(
                &hub.operators()
                    .ban(banned, minutes)
                    .map_err(|error| bad(error.to_string()))?,
            )
        }
        ["bans"] => {
            let banned = banned(parameters)?;
            if !hub.bans.lift(&banned) {
                return Err((StatusCode::NOT_FOUND, "there is no such ban".to_owned()));
            }
            good(&json!({ "lifted": true }))
        }
        ["log"] if post => {
            let log = admin.log.as_ref().ok_or_else(no_log)?;
            let filter = parameters.filter.as_deref();
            let filter = filter.ok_or_else(|| bad("filter is missing"))?;
            log.set_filter(filter)
                .map_err(|problem| bad(format!("filter: {problem}")))?;
            good(&json!({ "filter": log.filter() }))
        }
        [
            "status" | "sessions" | "subscriptions" | "retained" | "clients" | "topics"
            | "refusals" | "log" | "events" | "cluster",
        ]
        | ["clients", _]
        | ["clients", _, "kick"] => return Err(not_so()),
        _ => return Err(nothing()),
    })
}

fn not_so() -> Failure {
    let problem = "not so: see GET, POST and DELETE in the reference";
    (StatusCode::METHOD_NOT_ALLOWED, problem.to_owned())
}

fn nothing() -> Failure {
    (StatusCode::NOT_FOUND, "there is no such page".to_owned())
}

fn no_log() -> Failure {
    let problem = "the program that the broker is a part of does not let its log be changed";
    (StatusCode::NOT_FOUND, problem.to_owned())
}

fn unknown(error: &NotConnected) -> Failure {
    (StatusCode::NOT_FOUND, error.to_string())
}

fn banned(parameters: &Parameters) -> Result<Banned, Failure> {
    let Parameters {
        client,
        user,
        address,
        ..
    } = parameters;
    match (client, user, address) {
        (Some(client), None, None) => Ok(Banned::Client(client.clone())),
        (None, Some(user), None) => Ok(Banned::User(user.clone())),
        (None, None, Some(address)) => Ok(Banned::Address(*address)),
        _ => Err(bad("give one of client, user and address")),
    }
}
