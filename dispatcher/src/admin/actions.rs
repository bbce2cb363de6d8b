//! What an operator does on the screen at three in the morning: reactivate webhooks, cancel a
//! redelivery.
//!
//! Each is a call of the admin API in the same process: what is refused there is refused here, in
//! the same words. A form asks before it changes anything.
//!
//! Not here: whether a form is one of ours (`weir_common::admin`).

use http::{HeaderMap, Method};
use serde_json::Value;
use weir_common::admin::{Acted, Program};
use weir_common::http_server::Call;
use weir_common::json::member;
use weir_common::pages::form::{Form, query};
use weir_common::pages::screen::{Input, InputForm, Notice, Screen, Section, SectionBody};
use weir_common::pages::show::{grouped, mark};

use crate::admin::DispatcherAdmin;

/// What the addresses of pages say was done.
const DONE: &str = "done";

impl DispatcherAdmin {
    /// What a form does.
    pub(super) async fn acted(&self, steps: &[&str], form: &Form) -> Option<Acted> {
        match steps {
            ["reactivate"] => Some(self.reactivate(form).await),
            ["redeliveries", "cancel"] => Some(self.cancel_asked(form).await),
            _ => None,
        }
    }

    async fn reactivate(&self, form: &Form) -> Acted {
        let (workspace, host) = (form.get("workspace"), form.get("host"));
        let confirmed = form.get("confirmed") == "yes";
        let dry_run = if confirmed { "" } else { "true" };
        let which = query([("workspace", workspace), ("host", host), ("dry_run", dry_run)]);
        let value = match self.call(Method::POST, "/webhooks:reactivate", &which).await {
            Ok(value) => value,
            Err(refused) => return Acted::Show(refused.0, refused.1),
        };
        if confirmed {
            let count = member(&value, "reactivated").as_u64().unwrap_or(0);
            return Acted::Go(format!("/dashboard?{DONE}=reactivated&count={count}"));
        }
        let count = member(&value, "matching").as_u64().unwrap_or(0);
        let of = [("of the workspace ", workspace), ("at the host ", host)];
        let of = of.into_iter().filter(|(_, value)| !value.is_empty());
        let of: String = of.map(|(what, value)| format!(" {what}{value}")).collect();
        let text = format!(
            "Paused webhooks{of}: {}. Each is sent its oldest delivery first, and all others in \
             their order and at the usual pace once that one arrives. What waits is kept either \
             way.",
            grouped(count)
        );
        let inputs = [("workspace", workspace), ("host", host), ("confirmed", "yes")];
        let form = InputForm {
            action: "/dashboard/reactivate".to_owned(),
            reads: false,
            inputs: inputs.map(|(name, value)| Input::hidden(name, value)).into(),
            button: "Reactivate",
            back: Some("/dashboard".to_owned()),
        };
        Acted::Show(200, Screen::question(format!("Reactivate {}?", grouped(count)), text, form))
    }

    async fn cancel_asked(&self, form: &Form) -> Acted {
        let (workspace, id) = (form.get("workspace"), form.get("id"));
        if form.get("confirmed") != "yes" {
            let text = format!(
                "The job {id} of {workspace} queues nothing more. What it has queued stays queued \
                 and is sent."
            );
            let inputs = [("workspace", workspace), ("id", id), ("confirmed", "yes")];
            let form = InputForm {
                action: "/dashboard/redeliveries/cancel".to_owned(),
                reads: false,
                inputs: inputs.map(|(name, value)| Input::hidden(name, value)).into(),
                button: "Cancel the job",
                back: Some("/dashboard".to_owned()),
            };
            return Acted::Show(200, Screen::question("Cancel the redelivery?", text, form));
        }
        let path = format!("/redeliveries/{workspace}/{id}:cancel");
        match self.call(Method::POST, &path, "").await {
            Ok(_) => Acted::Go(format!("/dashboard?{DONE}=cancelled")),
            Err(refused) => Acted::Show(refused.0, refused.1),
        }
    }

    /// Calls the admin API; an error is a page that says why it refused.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        query: &str,
    ) -> Result<Value, (u16, Screen)> {
        let call = Call {
            method,
            path: path.to_owned(),
            query: Some(query.to_owned()).filter(|query| !query.is_empty()),
            headers: HeaderMap::new(),
            body: Default::default(),
        };
        let reply = self.route(&call).await.unwrap_or_else(weir_common::admin::not_found);
        let value: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        if (200..300).contains(&reply.status) {
            return Ok(value);
        }
        let errors = member(&value, "errors").as_array().into_iter().flatten();
        let errors = errors.filter_map(|error| {
            Some(format!(
                " {}: {}.",
                member(error, "parameter").as_str()?,
                member(error, "detail").as_str()?
            ))
        });
        let title = member(&value, "title").as_str().unwrap_or("Not done").to_owned();
        let detail = member(&value, "detail").as_str().unwrap_or_default().to_owned();
        let text = errors.fold(detail, |text, error| text + &error);
        Err((reply.status, Screen::notice(title, mark("✕", "Not done", "bad"), text)))
    }
}

/// The form to reactivate paused webhooks.
pub(super) fn reactivation() -> Section {
    let form = InputForm {
        action: "/dashboard/reactivate".to_owned(),
        reads: false,
        inputs: vec![
            Input::text("host", "Host; empty for all", "hooks.example.com"),
            Input::text("workspace", "Workspace; empty for all", "ws_acme"),
        ],
        button: "Reactivate those that match …",
        back: None,
    };
    let text = "After an outage on our side, or of a receiver with many webhooks. The next page \
        says how many match, and asks.";
    Section {
        title: "Reactivate paused webhooks".to_owned(),
        text: text.to_owned(),
        body: SectionBody::Form(form),
    }
}

/// What the last form did.
pub(super) fn done(query: &Form) -> Option<Notice> {
    let count: u64 = query.get("count").parse().unwrap_or(0);
    let text = match query.get(DONE) {
        "reactivated" => format!("Webhooks reactivated: {}.", grouped(count)),
        "cancelled" => "The redelivery queues nothing more.".to_owned(),
        _ => return None,
    };
    Some(Notice { mark: mark("●", "Done", "ok"), text })
}
