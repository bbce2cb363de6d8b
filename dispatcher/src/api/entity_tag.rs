//! Entity tags: what a client saw, so that it changes that and nothing else.
//!
//! Not here: the comparison in the transaction of the change (`store`).

use http::header::IF_MATCH;
use sha2::{Digest, Sha256};
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;

use crate::api::ApiRequest;
use crate::api::dto::webhook::WebhookView;
use crate::domain::id::WebhookId;
use crate::domain::webhook::Webhook;

/// The tag of a body: eight bytes tell one from the next.
pub(super) fn of(body: &[u8]) -> String {
    let digest = hex::encode(Sha256::digest(body));
    format!("\"{}\"", digest.get(..16).unwrap_or_default())
}

/// The tag of a webhook as it is shown.
pub(super) fn of_webhook(webhook: &WebhookView) -> Result<String, Reply> {
    let shown = serde_json::to_vec(webhook).map_err(|_| problems::broken())?;
    Ok(of(&shown))
}

/// The webhook to change, if the request has an `If-Match`; refuses one that it does not match.
pub(super) async fn seen(
    request: &ApiRequest<'_>,
    id: WebhookId,
) -> Result<Option<Box<Webhook>>, Reply> {
    let Some(wanted) = request.call.headers.get(IF_MATCH) else { return Ok(None) };
    let webhook = request.found(request.store().webhook(request.workspace, id).await)?;
    let current = of_webhook(&WebhookView::of(request.store().ids(), &webhook))?;
    let mut wanted = wanted.to_str().unwrap_or_default().split(',').map(str::trim);
    match wanted.any(|one| one == "*" || one == current) {
        true => Ok(Some(Box::new(webhook))),
        false => Err(overtaken()),
    }
}

/// The refusal of a change to a webhook that is no longer as it was seen.
pub(super) fn overtaken() -> Reply {
    let detail = "The webhook was changed since it had this entity tag. Read it again.";
    problems::refusal(412, "webhook-changed", "The webhook was changed meanwhile", detail)
}
