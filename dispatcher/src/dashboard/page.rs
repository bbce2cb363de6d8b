//! What all pages have around them.

use weir_common::pages::assets::{ICON, SCRIPT, STYLE};
use weir_common::time::UnixTime;

use crate::dashboard::request::{PageRequest, SignedInRequest};

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
    /// The paths of the operator's style and logo.
    pub(super) theme: Option<String>,
    pub(super) logo: Option<String>,
    /// Whether the script loads the content again while it is looked at.
    pub(super) refreshes: bool,
}

/// What a page knows of the visitor.
pub(super) struct FrameSession {
    pub(super) workspace: String,
    pub(super) section: Section,
    pub(super) form_token: String,
    pub(super) made_at: UnixTime,
    pub(super) may_change: bool,
    /// Whether the gateway can be asked for the workspace's limits.
    pub(super) has_limits: bool,
}

impl Frame {
    /// The frame of a page without a session.
    pub(super) fn outside(request: &PageRequest<'_>, title: &str) -> Self {
        let theme = request.active.theme.as_ref();
        let logo = theme.and_then(|theme| theme.logo.as_ref());
        Self {
            title: title.to_owned(),
            session: None,
            theme: theme.map(|theme| theme.style.path.clone()),
            logo: logo.map(|logo| logo.path.clone()),
            refreshes: false,
        }
    }

    /// The frame of a page of the workspace.
    pub(super) fn of(
        request: &SignedInRequest<'_>,
        section: Section,
        title: impl Into<String>,
    ) -> Self {
        let session = FrameSession {
            workspace: request.workspace().to_owned(),
            section,
            form_token: request.form_token(),
            made_at: request.request.now(),
            may_change: request.may_change(),
            has_limits: request.request.active.limits.is_some(),
        };
        Self { session: Some(session), ..Self::outside(request.request, &title.into()) }
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

    /// What forms have that are done once.
    pub(super) fn made_at(&self) -> u64 {
        self.session.as_ref().map_or(0, |session| session.made_at.0)
    }

    /// Whether the visitor may change anything.
    pub(super) fn may_change(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.may_change)
    }
}
