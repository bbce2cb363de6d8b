//! Webhooks of all workspaces that are paused, failing or disabled: their list, and the
//! reactivation of all paused ones that match.
//!
//! Invariant: of a URL only the host is shown: its path and query may be secrets.
//!
//! Not here: which webhooks match (`domain::webhook::filter`).

use http::Method;
use serde_json::{Value, json};
use weir_common::admin::shown;
use weir_common::http_server::Call;
use weir_common::http_server::problems::{method_not_allowed, refusal};
use weir_common::http_server::reply::Reply;
use weir_common::time::UnixTime;

use crate::api::bad_query;
use crate::api::query::{OperatorQuery, Query};
use crate::domain::id::DeliveryId;
use crate::domain::webhook::{Webhook, WebhookState};
use crate::state::State;
use crate::store::StoreError;

/// Reads of the store for one page: a hundred thousand webhooks are examined at most.
const READS_MAX: usize = 100;

/// Webhooks that one commit reactivates: a few milliseconds of work.
const STEP: usize = 100;

/// Waiting deliveries of a webhook that are counted.
const WAITING_MAX: usize = 1_000;

const LISTED_BY: &[&str] = &["workspace", "state", "host", "since", "until", "limit", "cursor"];

const REACTIVATED_BY: &[&str] = &["workspace", "host", "since", "until", "dry_run"];

/// The response to a request for `/webhooks`, followed by `path`.
pub(super) async fn route(state: &State, path: &str, call: &Call) -> Option<Reply> {
    let (method, allow, known) = match path {
        "" => (Method::GET, "GET, HEAD", LISTED_BY),
        ":reactivate" => (Method::POST, "POST", REACTIVATED_BY),
        _ => return None,
    };
    if call.method != method {
        return Some(method_not_allowed(allow));
    }
    if !call.body.is_empty() {
        let detail = "The filter is in the query, after `?`, and the call has no body.";
        return Some(refusal(400, "unexpected-body", "Unexpected body", detail));
    }
    let query = Query::read(call.query.as_deref(), known);
    let query = match query.operator_webhooks(state.store.ids()) {
        Ok(query) => query,
        Err(errors) => return Some(bad_query(errors)),
    };
    let done = if method == Method::GET {
        list(state, query).await
    } else {
        reactivate(state, query).await
    };
    Some(done.map_or_else(|error| state.store_failed(&error), |value| shown(&value)))
}

async fn list(state: &State, query: OperatorQuery) -> Result<Value, StoreError> {
    let OperatorQuery { filter, mut after, limit, .. } = query;
    let mut listed = Vec::new();
    for _ in 0..READS_MAX {
        let page = state.store.find_webhooks(&filter, after, limit - listed.len()).await?;
        for webhook in &page.items {
            listed.push(view(state, webhook).await?);
        }
        after = page.next;
        if after.is_none() || listed.len() == limit {
            break;
        }
    }
    let next = after.map(|id| state.store.ids().webhook(id));
    Ok(json!({"webhooks": listed, "next_cursor": next}))
}

async fn view(state: &State, webhook: &Webhook) -> Result<Value, StoreError> {
    let (last, most) = (UnixTime(u64::MAX), WAITING_MAX + 1);
    let waiting = state.store.ahead_of(webhook.id, last, DeliveryId(i64::MAX), most).await?;
    Ok(json!({
        "workspace": *webhook.workspace,
        "id": state.store.ids().webhook(webhook.id),
        "host": webhook.host(),
        "state": webhook.state(),
        "since": webhook.state_since().map(UnixTime::rfc3339),
        "waiting": {"count": waiting.min(WAITING_MAX), "at_least": waiting > WAITING_MAX},
        "last_outcome": webhook.last_outcome.as_ref().map(ToString::to_string),
    }))
}

/// Reactivates all paused webhooks that match, or counts them.
async fn reactivate(state: &State, query: OperatorQuery) -> Result<Value, StoreError> {
    let OperatorQuery { mut filter, mut after, dry_run, .. } = query;
    filter.state = Some(WebhookState::Paused);
    let (now, mut count) = (state.clock.now().unix, 0);
    loop {
        let matching = if dry_run {
            let page = state.store.find_webhooks(&filter, after, STEP).await?;
            after = page.next;
            page.items.len()
        } else {
            let page = state.store.reactivate_found(&filter, after, STEP, now).await?;
            page.items.iter().for_each(|id| state.mailbox.changed(*id));
            after = page.next;
            page.items.len()
        };
        count += matching;
        if after.is_none() {
            return Ok(json!({ if dry_run { "matching" } else { "reactivated" }: count }));
        }
    }
}
