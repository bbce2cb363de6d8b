//! The dashboard: pages for customers, and the API for everything that is no page.
//!
//! Pages are a client of the API in the same process: what a page shows and does is a call that
//! its visitor could have made with a token. So rules, words and bounds stand in the API alone.
//!
//! # Invariants
//!
//! 1. A page needs a session, and a session permits no more than the token that it comes from does
//!    at that moment ([`request`]).
//! 2. A form changes something only with the token of its session, from our own origin.
//! 3. Pages have no script and no style in them, and the policy of [`page`] forbids any.
//! 4. Everything works without the script.
//! 5. A form that adds, rotates, deletes or redelivers many is done once, however often it is sent
//!    ([`sent_forms`]).
//!
//! Not here: sessions and links themselves (`domain::session`), the operators' pages (`admin`).

mod api_answers;
mod deliveries;
mod delivery;
mod filter;
mod limits;
mod page;
mod page_error;
mod plot;
mod redeliveries;
mod request;
mod sent_forms;
mod show;
mod sign_in;
mod times_in_text;
mod webhook;
mod webhook_form;
mod webhooks;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use weir_common::http_server::reply::Reply;
use weir_common::http_server::{Acceptance, Call, Handler, Head};
use weir_common::pages::assets;
use weir_common::pages::form::Form;
use weir_common::pages::reply::secured;

use crate::api::Api;
use crate::config::settings::DashboardSettings;
use crate::dashboard::page_error::PageError;
use crate::dashboard::request::{FORM_MADE_AT, PageRequest, SignedInRequest, sessions};
use crate::dashboard::sent_forms::SentForms;
use crate::http_errors;
use crate::live_config::ActiveConfig;
use crate::live_config::theme::Theme;
use crate::state::State;

/// The largest form: a webhook's headers, and its metadata twice, need less, in any script.
const FORM_BYTES_MAX: usize = 192 * 1024;

/// The largest form that anyone may send: a token, or a link, and a workspace.
const OPEN_FORM_BYTES_MAX: usize = 16 * 1024;

/// The listener for customers: pages and API.
pub struct Dashboard {
    state: Arc<State>,
    api: Api,
    sent: SentForms,
}

#[async_trait]
impl Handler for Dashboard {
    async fn handle(&self, call: Call) -> Reply {
        let asset = call.path.strip_prefix("/assets/");
        if asset.is_none() && !is_page(&call.path) {
            return self.api.handle(call).await;
        }
        let active = self.state.active.load_full();
        if let Some(name) = asset {
            let own = active.theme.iter().flat_map(Theme::assets);
            let found = assets::reply(&call.method, name, own);
            return found.unwrap_or_else(http_errors::not_found);
        }
        match &active.settings.dashboard {
            Some(settings) => self.page(&active, settings, &call).await,
            None => http_errors::not_found(),
        }
    }

    async fn accepts(&self, head: &Head) -> Result<Acceptance, Reply> {
        let path = head.uri.path();
        if path.starts_with("/assets/") {
            return Ok(Acceptance::Open);
        }
        if !is_page(path) {
            return self.api.accepts(head).await;
        }
        let active = self.state.active.load_full();
        match sessions(&self.state, &active, &head.headers).await {
            Ok(sessions) if !sessions.is_empty() => Ok(Acceptance::Verified),
            Ok(_) if head.method == Method::POST && path.starts_with(WORKSPACES) => {
                Err(self.refuse_form(&active, head))
            }
            // An error of the store is reported to the visitor, by the page.
            Ok(_) | Err(_) => Ok(Acceptance::Open),
        }
    }

    fn body_bytes_max(&self, path: &str, acceptance: Acceptance) -> usize {
        match path {
            _ if path.starts_with("/assets/") => 0,
            _ if !is_page(path) => self.api.body_bytes_max(path, acceptance),
            _ if acceptance == Acceptance::Verified && path.starts_with(WORKSPACES) => {
                FORM_BYTES_MAX
            }
            _ => OPEN_FORM_BYTES_MAX,
        }
    }
}

/// What the paths of the pages for those with a session begin with.
const WORKSPACES: &str = "/dashboard/workspaces/";

fn is_page(path: &str) -> bool {
    path.strip_prefix("/dashboard").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Dashboard {
    /// The listener with what it shares with others.
    #[must_use]
    pub fn new(state: Arc<State>) -> Self {
        Self { api: Api::new(Arc::clone(&state)), sent: SentForms::default(), state }
    }

    /// The page for a form that was sent without a session.
    fn refuse_form(&self, active: &ActiveConfig, head: &Head) -> Reply {
        let Some(settings) = &active.settings.dashboard else { return http_errors::not_found() };
        let call = Call {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            headers: head.headers.clone(),
            body: Bytes::new(),
        };
        let request = PageRequest { state: &self.state, active, settings, call: &call };
        let reply = sign_in::failed(&request, &PageError::no_session());
        secured(reply, &settings.frame_origins)
    }

    async fn page(
        &self,
        active: &ActiveConfig,
        settings: &DashboardSettings,
        call: &Call,
    ) -> Reply {
        let request = PageRequest { state: &self.state, active, settings, call };
        let steps: Vec<&str> =
            call.path.split('/').skip(2).filter(|step| !step.is_empty()).collect();
        let answered = match (&call.method, steps.as_slice()) {
            (&Method::GET, []) => sign_in::start(&request).await,
            (&Method::GET, ["enter"]) => sign_in::link(&request).await,
            (&Method::POST, ["enter"]) => sign_in::enter(&request).await,
            (&Method::GET, ["sign-in"]) => Ok(sign_in::form(&request, None)),
            (&Method::POST, ["sign-in"]) => sign_in::sign_in(&request).await,
            (_, ["workspaces", workspace, steps @ ..]) => {
                self.workspace(&request, workspace, steps).await
            }
            _ => Err(PageError::not_found()),
        };
        let reply = answered.unwrap_or_else(|failure| sign_in::failed(&request, &failure));
        secured(reply, &settings.frame_origins)
    }

    /// The pages of a workspace, for those who have a session there.
    async fn workspace(
        &self,
        request: &PageRequest<'_>,
        workspace: &str,
        steps: &[&str],
    ) -> Result<Reply, PageError> {
        let session = request.session_of(workspace).await?;
        let method = &request.call.method;
        let request = SignedInRequest { request, api: &self.api, session: &session };
        let answered = match *method {
            Method::POST => self.change(&request, steps).await,
            Method::GET => self.show(&request, steps).await,
            _ => Err(PageError::method()),
        };
        Ok(answered.unwrap_or_else(|failure| sign_in::failed_inside(&request, steps, &failure)))
    }

    async fn show(
        &self,
        request: &SignedInRequest<'_>,
        steps: &[&str],
    ) -> Result<Reply, PageError> {
        let changes = matches!(
            steps,
            ["webhooks", "new"]
                | ["webhooks", _, "edit" | "rotate" | "delete"]
                | ["redeliveries", "confirm"]
        );
        if changes && !request.may_change() {
            return Err(PageError::read_only());
        }
        match steps {
            [] | ["webhooks"] => webhooks::list(request).await,
            ["webhooks", "new"] => webhooks::new(request).await,
            ["webhooks", id] => webhook::show(request, id).await,
            ["webhooks", id, "edit"] => webhooks::edit(request, id).await,
            ["webhooks", id, "rotate"] => webhook::confirm_rotate(request, id).await,
            ["webhooks", id, "delete"] => webhook::confirm_delete(request, id).await,
            ["failed"] => deliveries::failed(request).await,
            ["deliveries"] => deliveries::all(request).await,
            // A call of the API, and no delivery.
            ["deliveries", "export"] => Err(PageError::not_found()),
            ["deliveries", id] => delivery::show(request, id).await,
            ["events", id] => delivery::event(request, id).await,
            ["export"] => deliveries::export(request).await,
            ["redeliveries"] => redeliveries::list(request).await,
            ["redeliveries", "confirm"] => redeliveries::confirm(request).await,
            ["redeliveries", id] => redeliveries::show(request, id).await,
            ["limits"] => limits::show(request).await,
            _ => Err(PageError::not_found()),
        }
    }

    /// What forms send. Their token is checked before anything else.
    async fn change(
        &self,
        request: &SignedInRequest<'_>,
        steps: &[&str],
    ) -> Result<Reply, PageError> {
        let form = request.form()?;
        let done = self.act(request, steps, &form);
        // A check of a URL is wanted again.
        if form.filled(FORM_MADE_AT).is_none() || form.filled("check").is_some() {
            return done.await;
        }
        self.sent.once(request.session(), request.form_digest(), Box::pin(done)).await
    }

    async fn act(
        &self,
        request: &SignedInRequest<'_>,
        steps: &[&str],
        form: &Form,
    ) -> Result<Reply, PageError> {
        match steps {
            ["sign-out"] => sign_in::sign_out(request).await,
            ["webhooks"] => webhooks::create(request, form).await,
            ["webhooks", id, "edit"] => webhooks::change(request, id, form).await,
            ["webhooks", id, "rotate"] => webhook::rotate(request, id).await,
            ["webhooks", id, "delete"] => webhook::delete(request, id).await,
            ["webhooks", id, "test"] => webhook::test(request, id, form).await,
            ["webhooks", id, "reactivate"] => webhook::reactivate(request, id).await,
            ["webhooks", id, "disable"] => webhook::disable(request, id, true).await,
            ["webhooks", id, "enable"] => webhook::disable(request, id, false).await,
            ["deliveries", id, "redeliver"] => delivery::redeliver(request, id).await,
            ["redeliveries"] => redeliveries::create(request, form).await,
            ["redeliveries", id, "cancel"] => redeliveries::cancel(request, id).await,
            _ => Err(PageError::not_found()),
        }
    }
}
