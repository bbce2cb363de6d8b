//! Getting in: by a link, by a token; and out. The page of a failure, from which one may sign in.

use askama::Template;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use weir_common::http_server::reply::Reply;
use weir_common::identifier::is_identifier;
use weir_common::pages::reply::{html, see_other};
use weir_common::time::UnixTime;

use crate::auth::{AuthRefusal, Scope};
use crate::dashboard::failure::Failure;
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::visit::{Entrance, Visit};
use crate::domain::session::{
    Grant, Link, LinkFlaw, NewSession, RANDOM_BYTES, Role, SessionOpened, SessionSecret,
};

/// The first page of a workspace.
fn home(workspace: &str) -> String {
    format!("/dashboard/workspaces/{workspace}/webhooks")
}

/// Leads those who have a session to their workspace.
pub(super) async fn start(entrance: &Entrance<'_>) -> Result<Reply, Failure> {
    Ok(match entrance.session().await? {
        Some(visitor) => see_other(home(&visitor.grant.workspace)),
        None => see_other("/dashboard/sign-in"),
    })
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    frame: Frame,
    failure: Option<&'a Failure>,
    workspace: &'a str,
}

/// The form to sign in with a token.
pub(super) fn form(entrance: &Entrance<'_>, failure: Option<&Failure>) -> Reply {
    let steps: Vec<&str> = entrance.call.path.split('/').collect();
    let named = match steps.as_slice() {
        ["", "dashboard", "workspaces", workspace, ..] => workspace,
        _ => "",
    };
    let frame = Frame::outside(entrance, "Sign in");
    let page = SignInPage { frame, failure, workspace: named };
    html(failure.map_or(200, Failure::status), &page)
}

/// Opens a session for the bearer of a token.
pub(super) async fn sign_in(entrance: &Entrance<'_>) -> Result<Reply, Failure> {
    let form = entrance.form()?;
    let (workspace, token) = (form.get("workspace"), form.get("token"));
    if !is_identifier(workspace) {
        return Ok(self::form(entrance, Some(&Failure::no_such_workspace())));
    }
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&format!("Bearer {token}")) {
        headers.insert(AUTHORIZATION, value);
    }
    let state = entrance.state;
    let wanted = (Scope::WebhooksRead, Some(workspace));
    let callers = &entrance.active.callers;
    let caller = callers.authorise(&headers, wanted, state.clock.now(), &state.metrics).await;
    let granted = caller.and_then(|caller| caller.grant(workspace, None));
    match granted {
        Ok(grant) => open(entrance, grant, None).await,
        Err(AuthRefusal::Hidden) => {
            let failure = Failure::no_such_workspace();
            Ok(self::form(entrance, Some(&failure)))
        }
        Err(refusal) => {
            let failure = Failure::of_api(&refusal.reply());
            Ok(self::form(entrance, Some(&failure)))
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
pub(super) async fn link(entrance: &Entrance<'_>) -> Result<Reply, Failure> {
    let query = entrance.query();
    let text = query.get("link");
    let link = valid(entrance, text)?;
    let state = entrance.state;
    let used = state.store.link_used(&link.nonce).await;
    if used.map_err(|error| Failure::store(state, &error))? {
        return Err(used_before());
    }
    let frame = Frame::outside(entrance, "Open the dashboard");
    Ok(html(200, &EnterPage { frame, link: text, grant: &link.grant }))
}

/// Opens the session of a link.
pub(super) async fn enter(entrance: &Entrance<'_>) -> Result<Reply, Failure> {
    let form = entrance.form()?;
    let Link { grant, expires_at, nonce } = valid(entrance, form.get("link"))?;
    open(entrance, grant, Some((nonce, UnixTime(expires_at)))).await
}

/// The link of a text, if it opens something now.
fn valid(entrance: &Entrance<'_>, text: &str) -> Result<Link, Failure> {
    let now = entrance.now();
    let link = Link::read(text, &entrance.state.store.link_keys(now), now);
    let link = link.map_err(|flaw| match flaw {
        LinkFlaw::Invalid => Failure::bad_link("It is incomplete, or was changed."),
        LinkFlaw::Expired => Failure::bad_link("It has expired: ask for another one."),
    })?;
    let issuer = entrance.active.callers.of_session(&link.grant, now);
    if issuer.is_none() {
        return Err(Failure::bad_link(
            "The token that made it was revoked, or reaches this workspace no more.",
        ));
    }
    Ok(link)
}

fn used_before() -> Failure {
    Failure::bad_link("It was used before, and a link opens once: ask for another one.")
}

async fn open(
    entrance: &Entrance<'_>,
    grant: Grant,
    link: Option<(String, UnixTime)>,
) -> Result<Reply, Failure> {
    let (state, now) = (entrance.state, entrance.now());
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| Failure::broken(&error.to_string()))?;
    let secret = SessionSecret::new(random);
    let expires_at = now.plus(entrance.settings.session_expires);
    let expires_at = grant.until.map_or(expires_at, |until| expires_at.min(UnixTime(until)));
    let path = home(&grant.workspace);
    let new = NewSession { id: secret.id(), grant, expires_at, link };
    let opened = state.store.open_session(new, now).await;
    match opened.map_err(|error| Failure::store(state, &error))? {
        SessionOpened::Open => {
            let cookie = entrance.cookie(&secret, expires_at);
            Ok(see_other(path).with("set-cookie", cookie))
        }
        SessionOpened::LinkUsed => Err(used_before()),
    }
}

/// Ends the session.
pub(super) async fn sign_out(visit: &Visit<'_>) -> Result<Reply, Failure> {
    let ended = visit.end_session().await;
    let reply = match &ended {
        Ok(()) => see_other("/dashboard/sign-in"),
        // The browser forgets it in any case.
        Err(failure) => failed(visit.entrance, failure),
    };
    Ok(reply.with("set-cookie", visit.entrance.no_cookie()))
}

#[derive(Template)]
#[template(path = "failure.html")]
struct FailurePage<'a> {
    frame: Frame,
    failure: &'a Failure,
    /// What leads on.
    back: String,
    /// What support finds the request by in the gateway's log.
    request: Option<&'a str>,
}

/// The page of a failure; those who have no session can sign in.
pub(super) fn failed(entrance: &Entrance<'_>, failure: &Failure) -> Reply {
    if failure.signs_in {
        return form(entrance, Some(failure));
    }
    let frame = Frame::outside(entrance, &failure.title);
    failure_page(entrance, frame, failure, "/dashboard".to_owned())
}

/// The page of a failure in a workspace; it leads back to what it was about.
pub(super) fn failed_inside(visit: &Visit<'_>, steps: &[&str], failure: &Failure) -> Reply {
    if failure.signs_in {
        return form(visit.entrance, Some(failure));
    }
    let back = match steps {
        ["webhooks", id, _, ..] => visit.path(&format!("webhooks/{id}")),
        ["deliveries", id, _, ..] => visit.path(&format!("deliveries/{id}")),
        ["redeliveries"] | ["redeliveries", "confirm"] => visit.path("failed"),
        ["redeliveries", ..] => visit.path("redeliveries"),
        _ => visit.path("webhooks"),
    };
    let frame = Frame::of(visit, Section::Webhooks, failure.title.as_str());
    failure_page(visit.entrance, frame, failure, back)
}

fn failure_page(entrance: &Entrance<'_>, frame: Frame, failure: &Failure, back: String) -> Reply {
    let request = entrance.call.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    html(failure.status(), &FailurePage { frame, failure, back, request })
}
