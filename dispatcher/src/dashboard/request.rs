//! Who visits a page, and what they may do there.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, IF_MATCH};
use http::{HeaderMap, HeaderValue, Method};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};
use weir_common::http_server::Call;
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::Form;
use weir_common::pages::origin;
use weir_common::time::UnixTime;

use crate::api::Api;
use crate::auth::{Caller, Scope};
use crate::config::settings::DashboardSettings;
use crate::dashboard::api_answers::{EventTypeData, Whole};
use crate::dashboard::page_error::PageError;
use crate::domain::session::{Grant, SessionSecret};
use crate::live_config::ActiveConfig;
use crate::state::State;
use crate::store::StoreError;

/// The name of the cookie.
const COOKIE_NAME: &str = "weir_session";

/// The field of each form with [`SessionSecret::form_token`].
const FORM_TOKEN: &str = "form_token";

/// The field of forms that are done once: when their page was made, in microseconds since 1970. So
/// the same form of a page that was loaded again is another one.
pub(super) const FORM_MADE_AT: &str = "form_made_at";

/// Cookies of a request that are looked up.
const COOKIES_MAX: usize = 8;

/// A request for a page, with or without a session.
pub(super) struct PageRequest<'a> {
    pub(super) state: &'a Arc<State>,
    pub(super) active: &'a ActiveConfig,
    pub(super) settings: &'a DashboardSettings,
    pub(super) call: &'a Call,
}

impl PageRequest<'_> {
    pub(super) fn now(&self) -> UnixTime {
        self.state.clock.now().unix
    }

    /// The fields of the query.
    pub(super) fn query(&self) -> Form {
        Form::read(self.call.query.as_deref().unwrap_or_default().as_bytes())
    }

    /// The fields of the form that was sent, if a page of ours sent it.
    pub(super) fn form(&self) -> Result<Form, PageError> {
        let ours = self.settings.origin.as_bytes();
        if origin::is_ours(&self.call.headers, |origin| origin == ours) {
            Ok(Form::read(&self.call.body))
        } else {
            Err(PageError::origin())
        }
    }

    /// The visitor, if there is a session.
    pub(super) async fn session(&self) -> Result<Option<DashboardSession>, PageError> {
        Ok(self.sessions().await?.into_iter().next())
    }

    async fn sessions(&self) -> Result<Vec<DashboardSession>, PageError> {
        let found = sessions(self.state, self.active, &self.call.headers).await;
        found.map_err(|error| PageError::store(self.state, &error))
    }

    /// The visitor, if there is a session for this workspace: with a form, that of the form.
    pub(super) async fn session_of(&self, workspace: &str) -> Result<DashboardSession, PageError> {
        let sessions = self.sessions().await?;
        if sessions.is_empty() {
            return Err(PageError::no_session());
        }
        let own = sessions.into_iter().filter(|one| one.grant.workspace == workspace);
        let mut own: Vec<DashboardSession> = own.collect();
        if self.call.method == Method::POST {
            let form = Form::read(&self.call.body);
            own.sort_by_key(|one| !one.secret.permits_form(form.get(FORM_TOKEN)));
        }
        // A stranger does not learn whether the workspace exists.
        own.into_iter().next().ok_or_else(PageError::not_found)
    }

    /// The cookie of a session that ends at this time.
    pub(super) fn cookie(&self, secret: &SessionSecret, ends: UnixTime) -> String {
        self.cookie_with(&secret.text(), ends.since(self.now()).as_secs())
    }

    /// A cookie that ends the session's one.
    pub(super) fn no_cookie(&self) -> String {
        self.cookie_with("", 0)
    }

    fn cookie_with(&self, value: &str, seconds: u64) -> String {
        let mut cookie =
            format!("{COOKIE_NAME}={value}; Path=/dashboard; Max-Age={seconds}; HttpOnly");
        // In a page of another site, a browser sends it with these alone.
        let framed = !self.settings.frame_origins.is_empty() && self.settings.is_https();
        cookie.push_str(if framed { "; SameSite=None; Partitioned" } else { "; SameSite=Lax" });
        if self.settings.is_https() {
            cookie.push_str("; Secure");
        }
        cookie
    }
}

/// The sessions of all cookies: another site of the domain can add some.
pub(super) async fn sessions(
    state: &State,
    active: &ActiveConfig,
    headers: &HeaderMap,
) -> Result<Vec<DashboardSession>, StoreError> {
    let secrets = origin::cookies(headers, COOKIE_NAME);
    let mut sessions = Vec::new();
    for secret in secrets.filter_map(SessionSecret::read).take(COOKIES_MAX) {
        let now = state.clock.now().unix;
        let grant = state.store.session(secret.id(), now).await?;
        sessions.extend(grant.and_then(|grant| {
            let caller = active.callers.of_session(&grant, now)?;
            Some(DashboardSession { secret, grant, caller })
        }));
    }
    Ok(sessions)
}

/// Who has a session.
pub(super) struct DashboardSession {
    secret: SessionSecret,
    pub(super) grant: Grant,
    caller: Caller,
}

/// A visitor's request for a page of the workspace.
pub(super) struct SignedInRequest<'a> {
    pub(super) request: &'a PageRequest<'a>,
    pub(super) api: &'a Api,
    pub(super) session: &'a DashboardSession,
}

impl SignedInRequest<'_> {
    pub(super) fn workspace(&self) -> &str {
        &self.session.grant.workspace
    }

    /// Whether the visitor may change anything.
    pub(super) fn may_change(&self) -> bool {
        let wanted = (Scope::WebhooksWrite, Some(self.workspace()));
        self.session.caller.check(wanted.0, wanted.1).is_ok()
    }

    /// What each form has in [`FORM_TOKEN`].
    pub(super) fn form_token(&self) -> String {
        self.session.secret.form_token()
    }

    /// The form that was sent, if a page of this session sent it.
    pub(super) fn form(&self) -> Result<Form, PageError> {
        let form = self.request.form()?;
        if !self.session.secret.permits_form(form.get(FORM_TOKEN)) {
            return Err(PageError::stale_form());
        }
        Ok(form)
    }

    /// The name of the session.
    pub(super) fn session(&self) -> [u8; 32] {
        self.session.secret.id()
    }

    /// A digest of the form that was sent, and of where it was sent.
    pub(super) fn form_digest(&self) -> [u8; 32] {
        let call = self.request.call;
        Sha256::new()
            .chain_update(&call.path)
            .chain_update([0])
            .chain_update(&call.body)
            .finalize()
            .into()
    }

    /// Ends the session.
    pub(super) async fn end_session(&self) -> Result<(), PageError> {
        let state = self.request.state;
        let ended = state.store.end_session(self.session()).await;
        ended.map_err(|error| PageError::store(state, &error))
    }

    /// The path of a page of the workspace.
    pub(super) fn path(&self, page: &str) -> String {
        format!("/dashboard/workspaces/{}/{page}", self.workspace())
    }

    /// Calls the API as the visitor; `path` is that below the workspace.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        query: &str,
        body: Option<&Value>,
    ) -> Reply {
        self.call_api(api_call(method, self.api_path(path), query, body)).await
    }

    /// Changes something by the API; 412 if it has another entity tag than when it was `read`: the
    /// headers of that answer.
    pub(super) async fn patch_as_read(
        &self,
        path: &str,
        read: &[(&str, String)],
        body: &Value,
    ) -> Reply {
        let mut call = api_call(Method::PATCH, self.api_path(path), "", Some(body));
        let tag = read.iter().find(|(name, _)| *name == "etag");
        let tag = tag.and_then(|(_, tag)| HeaderValue::from_str(tag).ok());
        call.headers.extend(tag.map(|tag| (IF_MATCH, tag)));
        self.call_api(call).await
    }

    fn api_path(&self, path: &str) -> String {
        format!("/v1/workspaces/{}/{path}", self.workspace())
    }

    async fn call_api(&self, call: Call) -> Reply {
        self.api.answer_to(&self.session.caller, self.request.active, &call).await
    }

    /// Reads from the API.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &str,
    ) -> Result<T, PageError> {
        answer(&self.call(Method::GET, path, query, None).await)
    }

    /// The types of events.
    pub(super) async fn event_types(&self) -> Result<Vec<EventTypeData>, PageError> {
        let call = api_call(Method::GET, "/v1/event-types".to_owned(), "", None);
        let reply = self.call_api(call).await;
        answer::<Whole<EventTypeData>>(&reply).map(|types| types.data)
    }

    /// Changes something by the API.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, PageError> {
        answer(&self.call(Method::POST, path, "", Some(body)).await)
    }
}

/// A call of the API; `path` is the whole one.
fn api_call(method: Method, path: String, query: &str, body: Option<&Value>) -> Call {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Call {
        method,
        path,
        query: Some(query.to_owned()).filter(|query| !query.is_empty()),
        headers,
        body: body.map(|body| Bytes::from(body.to_string())).unwrap_or_default(),
    }
}

/// What the API answered, or why it refused.
pub(super) fn answer<T: DeserializeOwned>(reply: &Reply) -> Result<T, PageError> {
    if !(200..300).contains(&reply.status) {
        return Err(PageError::of_api(reply));
    }
    serde_json::from_slice(&reply.body).map_err(|error| PageError::broken(&error.to_string()))
}
