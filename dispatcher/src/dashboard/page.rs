//! What all pages have: the frame around them, their headers, and the page of a failure.

use askama::Template;
use log::Level;
use serde::Deserialize;
use weir_common::http_server::reply::Reply;
use weir_common::log::events;
use weir_common::pages::assets::{ICON, SCRIPT, STYLE};
use weir_common::pages::reply::html;

use crate::dashboard::visit::{Entrance, Visit};
use crate::http_errors;
use crate::state::State;
use crate::store::StoreError;

/// The parts of the dashboard, as the navigation has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Webhooks,
    Failed,
    Deliveries,
    Redeliveries,
}

/// Each part with its page and its name.
const SECTIONS: [(Section, &str, &str); 4] = [
    (Section::Webhooks, "webhooks", "Webhooks"),
    (Section::Failed, "failed", "Failed"),
    (Section::Deliveries, "deliveries", "Deliveries"),
    (Section::Redeliveries, "redeliveries", "Redeliveries"),
];

/// A link of the navigation.
pub(super) struct NavLink {
    pub(super) path: String,
    pub(super) name: &'static str,
    pub(super) is_here: bool,
}

/// What is around the content of a page.
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) session: Option<FrameSession>,
    /// Whether the script loads the content again while it is looked at.
    pub(super) refreshes: bool,
}

/// What a page knows of the visitor.
pub(super) struct FrameSession {
    pub(super) workspace: String,
    pub(super) section: Section,
    pub(super) form_token: String,
    pub(super) may_change: bool,
}

impl Frame {
    /// The frame of a page without a session.
    pub(super) fn outside(title: &str) -> Self {
        Self { title: title.to_owned(), session: None, refreshes: false }
    }

    /// The frame of a page of the workspace.
    pub(super) fn of(visit: &Visit<'_>, section: Section, title: impl Into<String>) -> Self {
        let session = FrameSession {
            workspace: visit.workspace().to_owned(),
            section,
            form_token: visit.form_token(),
            may_change: visit.may_change(),
        };
        Self { title: title.into(), session: Some(session), refreshes: false }
    }

    /// The same frame, whose content is loaded again.
    pub(super) fn refreshing(self) -> Self {
        Self { refreshes: true, ..self }
    }

    /// The navigation.
    pub(super) fn links(&self) -> Vec<NavLink> {
        let here = self.session.as_ref().map(|session| session.section);
        let link = |(section, page, name)| NavLink {
            path: format!("{}/{page}", self.base()),
            name,
            is_here: here == Some(section),
        };
        SECTIONS.into_iter().map(link).collect()
    }

    pub(super) fn style(&self) -> &'static str {
        &STYLE.path
    }

    pub(super) fn script(&self) -> &'static str {
        &SCRIPT.path
    }

    pub(super) fn icon(&self) -> &'static str {
        &ICON.path
    }

    /// The path of the workspace's pages.
    pub(super) fn base(&self) -> String {
        let workspace = self.session.as_ref().map_or("", |session| session.workspace.as_str());
        format!("/dashboard/workspaces/{workspace}")
    }

    /// What each form has.
    pub(super) fn form_token(&self) -> &str {
        self.session.as_ref().map_or("", |session| session.form_token.as_str())
    }

    /// Whether the visitor may change anything.
    pub(super) fn may_change(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.may_change)
    }
}

/// Why a page is not shown, or a change not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    status: u16,
    pub(super) title: String,
    pub(super) detail: String,
    /// Errors of single fields, as the API listed them.
    pub(super) errors: Vec<FieldError>,
    /// Whether to sign in is what helps.
    signs_in: bool,
}

/// An error of a field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct FieldError {
    /// The field: a JSON pointer, or the name of a parameter.
    #[serde(alias = "parameter", default)]
    pub(super) pointer: String,
    pub(super) detail: String,
}

impl Failure {
    fn new(status: u16, title: &str, detail: impl Into<String>) -> Self {
        let (title, detail) = (title.to_owned(), detail.into());
        Self { status, title, detail, errors: Vec::new(), signs_in: false }
    }

    pub(super) fn not_found() -> Self {
        let detail = "This page does not exist, or what it showed was deleted.";
        Self::new(404, "Not found", detail)
    }

    pub(super) fn method() -> Self {
        Self::new(405, "Not possible here", "This page is read, and forms are sent to it.")
    }

    pub(super) fn no_session() -> Self {
        let detail = "Your session has ended, or none has begun. Open the dashboard from your \
            platform again, or sign in with a token.";
        Self { signs_in: true, ..Self::new(401, "Sign in", detail) }
    }

    pub(super) fn bad_link(detail: &str) -> Self {
        Self { signs_in: true, ..Self::new(403, "This link opens nothing", detail) }
    }

    pub(super) fn too_many_sessions() -> Self {
        let detail = "This workspace has too many open sessions. Sign out of one, or wait until \
            one ends.";
        Self::new(429, "Too many sessions", detail)
    }

    pub(super) fn nothing_ticked() -> Self {
        let detail = "No delivery was chosen: go back, and tick some.";
        Self::new(422, "Nothing to redeliver", detail)
    }

    pub(super) fn origin() -> Self {
        let detail = "The form was sent from another site, so nothing was changed.";
        Self::new(403, "From another site", detail)
    }

    pub(super) fn stale_form() -> Self {
        let detail = "The form belongs to another session, so nothing was changed. Load the page \
            again, and send it once more.";
        Self::new(403, "From another session", detail)
    }

    pub(super) fn broken(error: &str) -> Self {
        let fields = [("error", error.into())];
        events::event(Level::Error, "page not made", &fields);
        Self::new(500, "Something broke", "This page cannot be shown. Its operator's log says why.")
    }

    pub(super) fn store(state: &State, error: &StoreError) -> Self {
        state.metrics.store_failed(error);
        Self::of_api(&http_errors::store(error))
    }

    /// What the API refused.
    pub(super) fn of_api(reply: &Reply) -> Self {
        #[derive(Deserialize)]
        struct Refusal {
            title: String,
            #[serde(default)]
            detail: String,
            #[serde(default)]
            errors: Vec<FieldError>,
        }
        match serde_json::from_slice::<Refusal>(&reply.body) {
            Ok(Refusal { title, detail, errors }) => {
                Self { errors, ..Self::new(reply.status, &title, detail) }
            }
            Err(error) => Self::broken(&error.to_string()),
        }
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// The errors of a field, and of what is inside it.
    pub(super) fn of_field(&self, field: &str) -> Vec<&str> {
        let pointer = format!("/{field}");
        let inside = format!("/{field}/");
        let is_meant =
            |one: &&FieldError| one.pointer == pointer || one.pointer.starts_with(&inside);
        self.errors.iter().filter(is_meant).map(|one| one.detail.as_str()).collect()
    }
}

#[derive(Template)]
#[template(path = "failure.html")]
struct FailurePage<'a> {
    frame: Frame,
    failure: &'a Failure,
}

/// The page of a failure; those who have no session can sign in.
pub(super) fn failed(entrance: &Entrance<'_>, failure: Failure) -> Reply {
    if failure.signs_in {
        return super::entry::form(entrance, Some(&failure)).unwrap_or_else(|_| {
            Reply::new(failure.status, "text/plain; charset=utf-8", failure.detail.clone())
        });
    }
    let frame = Frame::outside(&failure.title);
    html(failure.status, &FailurePage { frame, failure: &failure })
}
