//! What all pages have: the frame around them, and their headers.

use askama::Template;
use log::Level;
use weir_common::http_server::reply::Reply;
use weir_common::log::events;

use crate::config::settings::DashboardSettings;
use crate::dashboard::assets::{ICON, SCRIPT, STYLE};
use crate::dashboard::visit::Visit;

/// The parts of the dashboard, as the navigation has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Webhooks,
    Failed,
    Deliveries,
    Redeliveries,
    Limits,
}

/// Each part with its page and its name.
const SECTIONS: [(Section, &str, &str); 5] = [
    (Section::Webhooks, "webhooks", "Webhooks"),
    (Section::Failed, "failed", "Failed"),
    (Section::Deliveries, "deliveries", "Deliveries"),
    (Section::Redeliveries, "redeliveries", "Redeliveries"),
    (Section::Limits, "limits", "Limits"),
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
    /// Whether the gateway can be asked for the workspace's limits.
    pub(super) has_limits: bool,
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
            has_limits: visit.entrance.active.limits.is_some(),
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
        let has_limits = self.session.as_ref().is_some_and(|session| session.has_limits);
        let shown = |section| section != Section::Limits || has_limits;
        SECTIONS.into_iter().filter(|(section, ..)| shown(*section)).map(link).collect()
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

/// A page.
pub(super) fn html(status: u16, template: &impl Template) -> Reply {
    match template.render() {
        Ok(text) => Reply::new(status, "text/html; charset=utf-8", text),
        Err(error) => {
            let fields = [("error", error.to_string().into())];
            events::event(Level::Error, "page not rendered", &fields);
            Reply::new(500, "text/plain; charset=utf-8", "This page cannot be shown.\n")
        }
    }
}

/// Sends the browser to another page.
pub(super) fn see_other(path: impl Into<String>) -> Reply {
    Reply::new(303, "text/plain; charset=utf-8", "").with("location", path)
}

/// The reply with what browsers must know: nothing but our own files, no frames of others.
pub(super) fn secured(reply: Reply, settings: &DashboardSettings) -> Reply {
    let ancestors = match settings.frame_origins.as_slice() {
        [] => "'none'".to_owned(),
        origins => origins.join(" "),
    };
    let policy = format!(
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
         connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
    );
    let mut reply = reply
        .with("content-security-policy", policy)
        .with("referrer-policy", "no-referrer")
        .with("cross-origin-opener-policy", "same-origin");
    if settings.frame_origins.is_empty() {
        reply = reply.with("x-frame-options", "DENY");
    }
    reply
}
