//! Why a page is not shown, or a change not made: what its page says.
//!
//! Not here: the page of a failure (`sign_in`), for those without a session can sign in there.

use log::Level;
use serde::Deserialize;
use weir_common::http_server::reply::Reply;
use weir_common::log::events;

use crate::state::State;
use crate::store::StoreError;

/// Why a page is not shown, or a change not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageError {
    status: u16,
    pub(super) title: String,
    pub(super) detail: String,
    /// Errors of single fields, as the API listed them.
    pub(super) errors: Vec<FieldError>,
    /// Whether to sign in is what helps.
    pub(super) signs_in: bool,
}

/// An error of a field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct FieldError {
    /// The field: a JSON pointer, or the name of a parameter.
    #[serde(alias = "parameter", default)]
    pub(super) pointer: String,
    pub(super) detail: String,
}

impl PageError {
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

    pub(super) fn read_only() -> Self {
        let detail = "This session may look at everything and change nothing.";
        Self::new(403, "Read only", detail)
    }

    pub(super) fn no_such_workspace() -> Self {
        let detail = "This token does not reach a workspace of that name.";
        Self { signs_in: true, ..Self::new(403, "Not signed in", detail) }
    }

    pub(super) fn bad_link(detail: &str) -> Self {
        Self { signs_in: true, ..Self::new(403, "This link opens nothing", detail) }
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

    pub(super) fn incomplete_form() -> Self {
        let detail = "The form does not have what its page showed, so nothing was changed. Load \
            the page again, and send it once more.";
        Self::new(400, "Incomplete form", detail)
    }

    pub(super) fn repeated((field, name): (&str, &str)) -> Self {
        let why = format!("{name} is in two lines: a name has one value");
        let detail = "Two lines of a field have one name, so nothing was changed.";
        Self::not_saved(422, detail, field, why)
    }

    pub(super) fn overtaken((field, now): (&str, &str)) -> Self {
        let why = format!(
            "was changed to \u{201c}{now}\u{201d} since this form was opened: open it again to \
             change that"
        );
        let detail = "A field was changed meanwhile, so nothing was changed now.";
        Self::not_saved(409, detail, field, why)
    }

    fn not_saved(status: u16, detail: &str, field: &str, why: String) -> Self {
        let error = FieldError { pointer: format!("/{field}"), detail: why };
        Self { errors: vec![error], ..Self::new(status, "Not saved", detail) }
    }

    pub(super) fn broken(error: &str) -> Self {
        let fields = [("error", error.into())];
        events::event(Level::Error, "page not made", &fields);
        Self::new(500, "Something broke", "This page cannot be shown. Its operator's log says why.")
    }

    pub(super) fn store(state: &State, error: &StoreError) -> Self {
        Self::of_api(&state.store_failed(error))
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
