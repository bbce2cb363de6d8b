//! The webhook owners' calls: to the dispatcher, or to a gateway in front of it.

use serde_json::{Value, json};

use crate::client::Client;
use crate::request::Request;
use crate::response::Response;
use crate::wait;

/// A client with a token, for one workspace.
#[derive(Clone, Copy, Debug)]
pub struct Api<'a> {
    address: &'a str,
    token: &'a str,
    workspace: &'a str,
}

impl<'a> Api<'a> {
    /// A client of `address` with this token, for one workspace.
    pub fn new(address: &'a str, token: &'a str, workspace: &'a str) -> Self {
        Self { address, token, workspace }
    }

    /// The same client, through another listener: the gateway's.
    pub fn through(self, address: &'a str) -> Self {
        Self { address, ..self }
    }

    /// One call below `/v1/workspaces/{workspace}`.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        Client::connect(self.address).call(&self.request(method, path, body))
    }

    /// The request of such a call.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Request {
        let target = format!("/v1/workspaces/{}{path}", self.workspace);
        let request = match body {
            Some(body) => Request::new(method, &target)
                .field("Content-Type", "application/json")
                .body(body.to_string()),
            None => Request::new(method, &target),
        };
        request.field("Authorization", &format!("Bearer {}", self.token))
    }

    /// GETs.
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.call("GET", path, None)
    }

    /// POSTs a body.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.call("POST", path, Some(body))
    }

    /// POSTs without a body: an action.
    #[track_caller]
    pub fn act(&self, path: &str) -> Response {
        self.call("POST", path, None)
    }

    /// Registers a webhook.
    #[track_caller]
    pub fn create_webhook(&self, url: &str, events: &[&str]) -> Webhook {
        let answer = self.post("/webhooks", &json!({ "url": url, "events": events }));
        let webhook = answer.expect(201).json();
        let [id, secret] = ["id", "secret"]
            .map(|name| webhook[name].as_str().unwrap_or_else(|| panic!("{webhook}")).to_owned());
        Webhook { id, secret }
    }

    /// The webhook as the API returns it.
    #[track_caller]
    pub fn webhook(&self, id: &str) -> Value {
        self.get(&format!("/webhooks/{id}")).expect(200).json()
    }

    /// Waits until a webhook is in this state.
    #[track_caller]
    pub fn wait_for_state(&self, id: &str, state: &str) -> Value {
        let found = wait::within(wait::PATIENCE, || {
            Some(self.webhook(id)).filter(|webhook| webhook["state"] == state)
        });
        found.unwrap_or_else(|| panic!("does not become {state}: {}", self.webhook(id)))
    }

    /// All entries of a list, page by page; `query` begins after the `?`.
    #[track_caller]
    pub fn list(&self, path: &str, query: &str) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let place = cursor.map(|cursor| format!("cursor={cursor}")).unwrap_or_default();
            let parts = [query, &place].into_iter().filter(|part| !part.is_empty());
            let mark = if query.is_empty() && place.is_empty() { "" } else { "?" };
            let target = format!("{path}{mark}{}", parts.collect::<Vec<_>>().join("&"));
            let page = self.get(&target).expect(200).json();
            all.extend(page["data"].as_array().unwrap_or_else(|| panic!("{page}")).clone());
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return all;
            }
            assert!(all.len() < 1_000_000, "the list does not end");
        }
    }

    /// The deliveries that match a filter such as `state=waiting`.
    #[track_caller]
    pub fn deliveries(&self, filter: &str) -> Vec<Value> {
        // The largest page size, unless a test sets another.
        let limit = if filter.contains("limit=") { "" } else { "limit=100" };
        let parts = [filter, limit].into_iter().filter(|part| !part.is_empty());
        self.list("/deliveries", &parts.collect::<Vec<_>>().join("&"))
    }

    /// A delivery with its attempts.
    #[track_caller]
    pub fn delivery(&self, id: &str) -> Value {
        self.get(&format!("/deliveries/{id}")).expect(200).json()
    }

    /// Waits until the delivery of an event satisfies `is_it`, and returns it with its attempts.
    #[track_caller]
    pub fn wait_for_delivery(&self, event: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let look = || {
            let listed = self.deliveries("").into_iter().find(|one| one["event_id"] == event)?;
            Some(self.delivery(listed["id"].as_str().unwrap())).filter(|one| is_it(one))
        };
        wait::within(wait::PATIENCE, look).unwrap_or_else(|| {
            panic!("the delivery of {event} is not as expected: {:#?}", self.deliveries(""))
        })
    }

    /// Waits until at least `count` deliveries are in this state.
    #[track_caller]
    pub fn wait_for_count(&self, state: &str, count: usize) -> Vec<Value> {
        let filter = format!("state={state}");
        wait::within(wait::PATIENCE, || {
            Some(self.deliveries(&filter)).filter(|found| found.len() >= count)
        })
        .unwrap_or_else(|| panic!("{count} {state}: {:#?}", self.deliveries("")))
    }

    /// Waits until a redelivery job is done.
    #[track_caller]
    pub fn wait_for_job(&self, id: &str) -> Value {
        self.wait_for_progress(id, |job| job["state"] == "done")
    }

    /// Waits until a redelivery job satisfies `is_it`.
    #[track_caller]
    pub fn wait_for_progress(&self, id: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let read = || self.get(&format!("/redeliveries/{id}")).expect(200).json();
        wait::within(wait::PATIENCE, || Some(read()).filter(|job| is_it(job)))
            .unwrap_or_else(|| panic!("the job is not as expected: {}", read()))
    }
}

/// A webhook, and its secret, which the API shows only once.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// Its public id.
    pub id: String,
    /// Its secret.
    pub secret: String,
}
