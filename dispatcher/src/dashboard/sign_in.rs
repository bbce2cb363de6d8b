//! Getting in: by a link, by a token; and out. The page of a failure, from which one may sign in.

use askama::Template;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use weir_common::http_server::reply::Reply;
use weir_common::identifier::is_identifier;
use weir_common::pages::reply::{html, see_other};
use weir_common::time::UnixTime;

use crate::auth::{AuthRefusal, Scope};
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::page_error::PageError;
use crate::dashboard::request::{PageRequest, SignedInRequest};
use crate::domain::session::{
    Grant, Link, LinkFlaw, NewSession, RANDOM_BYTES, Role, SessionOpened, SessionSecret,
};

/// The first page of a workspace.
fn home(workspace: &str) -> String {
    format!("/dashboard/workspaces/{workspace}/webhooks")
}

/// Leads those who have a session to their workspace.
pub(super) async fn start(request: &PageRequest<'_>) -> Result<Reply, PageError> {
    Ok(match request.session().await? {
        Some(session) => see_other(home(&session.grant.workspace)),
        None => see_other("/dashboard/sign-in"),
    })
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    frame: Frame,
    failure: Option<&'a PageError>,
    workspace: &'a str,
}

/// The form to sign in with a token.
pub(super) fn form(request: &PageRequest<'_>, failure: Option<&PageError>) -> Reply {
    let steps: Vec<&str> = request.call.path.split('/').collect();
    let named = match steps.as_slice() {
        ["", "dashboard", "workspaces", workspace, ..] => workspace,
        _ => "",
    };
    let frame = Frame::outside(request, "Sign in");
    let page = SignInPage { frame, failure, workspace: named };
    html(failure.map_or(200, PageError::status), &page)
}

/// Opens a session for the bearer of a token.
pub(super) async fn sign_in(request: &PageRequest<'_>) -> Result<Reply, PageError> {
    let form = request.form()?;
    let (workspace, token) = (form.get("workspace"), form.get("token"));
    if !is_identifier(workspace) {
        return Ok(self::form(request, Some(&PageError::no_such_workspace())));
    }
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&format!("Bearer {token}")) {
        headers.insert(AUTHORIZATION, value);
    }
    let state = request.state;
    let wanted = (Scope::WebhooksRead, Some(workspace));
    let callers = &request.active.callers;
    let caller = callers.authorise(&headers, wanted, state.clock.now(), &state.metrics).await;
    let granted = caller.and_then(|caller| caller.grant(workspace, None));
    match granted {
        Ok(grant) => open(request, grant, None).await,
        Err(AuthRefusal::Hidden) => {
            let failure = PageError::no_such_workspace();
            Ok(self::form(request, Some(&failure)))
        }
        Err(refusal) => {
            let failure = PageError::of_api(&refusal.reply());
            Ok(self::form(request, Some(&failure)))
        }
    }
}

#[derive(Template)]
#[template(path = "enter.html")]
struct EnterPage<'a> {
    frame: Frame,
    link: &'a str,
    grant: &'a Grant,
}

/// What a link opens, and a button: only the button opens it, so that scanners of mails do not.
pub(super) async fn link(request: &PageRequest<'_>) -> Result<Reply, PageError> {
    let query = request.query();
    let text = query.get("link");
    let link = valid(request, text)?;
    let state = request.state;
    let used = state.store.link_used(&link.nonce).await;
    if used.map_err(|error| PageError::store(state, &error))? {
        return Err(used_before());
    }
    let frame = Frame::outside(request, "Open the dashboard");
    Ok(html(200, &EnterPage { frame, link: text, grant: &link.grant }))
}

/// Opens the session of a link.
pub(super) async fn enter(request: &PageRequest<'_>) -> Result<Reply, PageError> {
    let form = request.form()?;
    let Link { grant, expires_at, nonce } = valid(request, form.get("link"))?;
    open(request, grant, Some((nonce, UnixTime(expires_at)))).await
}

/// The link of a text, if it opens something now.
fn valid(request: &PageRequest<'_>, text: &str) -> Result<Link, PageError> {
    let now = request.now();
    let link = Link::read(text, &request.state.store.link_keys(now), now);
    let link = link.map_err(|flaw| match flaw {
        LinkFlaw::Invalid => PageError::bad_link("It is incomplete, or was changed."),
        LinkFlaw::Expired => PageError::bad_link("It has expired: ask for another one."),
    })?;
    let issuer = request.active.callers.of_session(&link.grant, now);
    if issuer.is_none() {
        return Err(PageError::bad_link(
            "The token that made it was revoked, or reaches this workspace no more.",
        ));
    }
    Ok(link)
}

fn used_before() -> PageError {
    PageError::bad_link("It was used before, and a link opens once: ask for another one.")
}

async fn open(
    request: &PageRequest<'_>,
    grant: Grant,
    link: Option<(String, UnixTime)>,
) -> Result<Reply, PageError> {
    let (state, now) = (request.state, request.now());
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| PageError::broken(&error.to_string()))?;
    let secret = SessionSecret::new(random);
    let expires_at = now.plus(request.settings.session_expires);
    let expires_at = grant.until.map_or(expires_at, |until| expires_at.min(UnixTime(until)));
    let path = home(&grant.workspace);
    let new = NewSession { id: secret.id(), grant, expires_at, link };
    let opened = state.store.open_session(new, now).await;
    match opened.map_err(|error| PageError::store(state, &error))? {
        SessionOpened::Open => {
            let cookie = request.cookie(&secret, expires_at);
            Ok(see_other(path).with("set-cookie", cookie))
        }
        SessionOpened::LinkUsed => Err(used_before()),
    }
}

/// Ends the session.
pub(super) async fn sign_out(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    let ended = request.end_session().await;
    let reply = match &ended {
        Ok(()) => see_other("/dashboard/sign-in"),
        // The browser forgets it in any case.
        Err(failure) => failed(request.request, failure),
    };
    Ok(reply.with("set-cookie", request.request.no_cookie()))
}

#[derive(Template)]
#[template(path = "failure.html")]
struct FailurePage<'a> {
    frame: Frame,
    failure: &'a PageError,
    /// What leads on.
    back: String,
    /// What support finds the request by in the gateway's log.
    request: Option<&'a str>,
}

/// The page of a failure; those who have no session can sign in.
pub(super) fn failed(request: &PageRequest<'_>, failure: &PageError) -> Reply {
    if failure.signs_in {
        return form(request, Some(failure));
    }
    let frame = Frame::outside(request, &failure.title);
    failure_page(request, frame, failure, "/dashboard".to_owned())
}

/// The page of a failure in a workspace; it leads back to what it was about.
pub(super) fn failed_inside(
    request: &SignedInRequest<'_>,
    steps: &[&str],
    failure: &PageError,
) -> Reply {
    if failure.signs_in {
        return form(request.request, Some(failure));
    }
    let back = match steps {
        ["webhooks", id, _, ..] => request.path(&format!("webhooks/{id}")),
        ["deliveries", id, _, ..] => request.path(&format!("deliveries/{id}")),
        ["redeliveries"] | ["redeliveries", "confirm"] => request.path("failed"),
        ["redeliveries", ..] => request.path("redeliveries"),
        _ => request.path("webhooks"),
    };
    let frame = Frame::of(request, Section::Webhooks, failure.title.as_str());
    failure_page(request.request, frame, failure, back)
}

fn failure_page(
    request: &PageRequest<'_>,
    frame: Frame,
    failure: &PageError,
    back: String,
) -> Reply {
    let request = request.call.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    html(failure.status(), &FailurePage { frame, failure, back, request })
}
