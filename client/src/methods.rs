//! A method for each call of the APIs.
//!
//! Not here: sending, waiting, caching (`client`).

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::body::{
    CreatedWebhook, Delivery, DeliveryDetail, EventTypes, Filter, Page, Redelivery,
    RedeliveryPreview, RotatedSecret, Standing, Webhook, WebhookDetail, WebhookPatch,
};
use crate::call::{Call, CallError, segment};
use crate::client::Client;

/// Where a page begins, and how long it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paging {
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// How many entries, 100 at most; without it the server's 20.
    pub limit: Option<u32>,
}

impl Paging {
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let limit = self.limit.map(|limit| ("limit", limit.to_string()));
        limit.into_iter().chain(self.cursor.clone().map(|cursor| ("cursor", cursor))).collect()
    }
}

/// The calls about one workspace.
#[derive(Clone, Debug)]
pub struct Workspace<'a> {
    client: &'a Client,
    path: String,
}

type Result<T> = std::result::Result<T, CallError>;

impl Client {
    /// The calls about a workspace.
    ///
    /// # Errors
    ///
    /// If `id` is no identifier.
    pub fn workspace(&self, id: &str) -> Result<Workspace<'_>> {
        let path = format!("/v1/workspaces/{}", segment("workspace", id)?);
        Ok(Workspace { client: self, path })
    }

    /// What webhooks may subscribe to.
    ///
    /// # Errors
    ///
    /// As every call: [`CallError`].
    pub async fn event_types(&self) -> Result<EventTypes> {
        self.fetch(&Call::list("/v1/event-types", &[])).await
    }

    /// The OpenAPI document of the dispatcher's API.
    ///
    /// # Errors
    ///
    /// As every call: [`CallError`].
    pub async fn openapi(&self) -> Result<Value> {
        self.fetch(&Call::list("/openapi.json", &[])).await
    }
}

/// A page of `T`, or one `T`, or nothing: each as its call returns it.
#[expect(clippy::missing_errors_doc, reason = "every call fails as CallError says")]
impl Workspace<'_> {
    /// The workspace's webhooks, the oldest first.
    pub async fn webhooks(&self, paging: &Paging) -> Result<Page<Webhook>> {
        self.client.fetch(&self.list("webhooks", paging.parameters())).await
    }

    /// A webhook, its health, and what becomes of it.
    pub async fn webhook(&self, id: &str) -> Result<WebhookDetail> {
        let path = format!("{}/webhooks/{}", self.path, segment("webhook", id)?);
        self.client.fetch(&Call::read(path)).await
    }

    /// Creates a webhook.
    pub async fn create_webhook(&self, body: &impl Serialize) -> Result<CreatedWebhook> {
        self.write(Method::POST, "webhooks", Some(&value(body))).await
    }

    /// Changes a webhook.
    pub async fn change_webhook(&self, id: &str, patch: &WebhookPatch) -> Result<Webhook> {
        let path = format!("webhooks/{}", segment("webhook", id)?);
        self.write(Method::PATCH, &path, Some(&value(patch))).await
    }

    /// Ends a pause.
    pub async fn reactivate(&self, id: &str) -> Result<Webhook> {
        self.act("webhooks", id, "reactivate").await
    }

    /// Makes a new secret; the previous one signs for a while as well.
    pub async fn rotate_secret(&self, id: &str) -> Result<RotatedSecret> {
        self.act("webhooks", id, "rotate-secret").await
    }

    /// Sends a test: the example of a type, or a `webhook.ping`.
    pub async fn ping(&self, id: &str, kind: Option<&str>) -> Result<Delivery> {
        let path = format!("webhooks/{}:ping", segment("webhook", id)?);
        let body = kind.map(|kind| json!({ "type": kind }));
        self.write(Method::POST, &path, body.as_ref()).await
    }

    /// Deliveries, the newest first.
    pub async fn deliveries(&self, filter: &Filter, paging: &Paging) -> Result<Page<Delivery>> {
        let mut query = paging.parameters();
        let texts = [
            ("state", &filter.state),
            ("webhook", &filter.webhook),
            ("event", &filter.event),
            ("tenant", &filter.tenant),
            ("type", &filter.kind),
            ("outcome", &filter.outcome),
            ("since", &filter.since),
            ("until", &filter.until),
        ];
        query.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?))));
        query.extend(filter.status.map(|status| ("status", status.to_string())));
        self.client.fetch(&self.list("deliveries", query)).await
    }

    /// A delivery with its attempts.
    pub async fn delivery(&self, id: &str) -> Result<DeliveryDetail> {
        let path = format!("{}/deliveries/{}", self.path, segment("delivery", id)?);
        self.client.fetch(&Call::read(path)).await
    }

    /// Redelivers one delivery.
    pub async fn redeliver(&self, id: &str) -> Result<Delivery> {
        self.act("deliveries", id, "redeliver").await
    }

    /// How many deliveries a redelivery would send again.
    pub async fn preview_redelivery(&self, filter: &Filter) -> Result<RedeliveryPreview> {
        let body = value(&Preview { filter, dry_run: true });
        let path = format!("{}/deliveries:redeliver", self.path);
        self.client.fetch(&Call::preview(path, &body)).await
    }

    /// Redelivers all that match, in the background.
    pub async fn redeliver_all(&self, filter: &Filter) -> Result<Redelivery> {
        self.write(Method::POST, "deliveries:redeliver", Some(&value(filter))).await
    }

    /// The redelivery jobs, the newest first.
    pub async fn redeliveries(&self, paging: &Paging) -> Result<Page<Redelivery>> {
        self.client.fetch(&self.list("redeliveries", paging.parameters())).await
    }

    /// A redelivery job.
    pub async fn redelivery(&self, id: &str) -> Result<Redelivery> {
        let path = format!("{}/redeliveries/{}", self.path, segment("redelivery", id)?);
        self.client.fetch(&Call::read(path)).await
    }

    /// Stops a redelivery job; what it has queued stays queued.
    pub async fn cancel_redelivery(&self, id: &str) -> Result<Redelivery> {
        self.act("redeliveries", id, "cancel").await
    }

    /// An event's envelope, byte for byte as it is delivered.
    pub async fn event(&self, id: &str) -> Result<Bytes> {
        let path = format!("{}/events/{}", self.path, segment("event", id)?);
        Ok(self.client.send(&Call::read(path)).await?.body)
    }

    /// What the workspace has used and has left, where the gateway has a route for it.
    pub async fn standing(&self) -> Result<Standing> {
        self.client.fetch(&Call::read(format!("{}/limits", self.path))).await
    }

    fn list(&self, what: &str, query: Vec<(&'static str, String)>) -> Call {
        Call::list(&format!("{}/{what}", self.path), &query)
    }

    async fn act<T: serde::de::DeserializeOwned>(
        &self,
        what: &'static str,
        id: &str,
        action: &str,
    ) -> Result<T> {
        let path = format!("{what}/{}:{action}", segment("id", id)?);
        self.write(Method::POST, &path, None).await
    }

    async fn write<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T> {
        self.client.fetch(&Call::write(method, format!("{}/{path}", self.path), body)).await
    }
}

/// The body of a redelivery that is only counted.
#[derive(Serialize)]
struct Preview<'a> {
    #[serde(flatten)]
    filter: &'a Filter,
    dry_run: bool,
}

/// A body as JSON.
fn value(body: &impl Serialize) -> Value {
    serde_json::to_value(body).expect("names and texts are JSON")
}
