//! Pages as responses, with the headers that browsers must have.

use askama::Template;
use log::Level;

use crate::http_server::reply::Reply;
use crate::log::events;

/// A page.
#[must_use]
pub fn html(status: u16, template: &impl Template) -> Reply {
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
#[must_use]
pub fn see_other(path: impl Into<String>) -> Reply {
    Reply::new(303, "text/plain; charset=utf-8", "").with("location", path)
}

/// The reply with what browsers must know: nothing but our own files, no frames of other sites
/// than `frame_origins`.
#[must_use]
pub fn secured(reply: Reply, frame_origins: &[String]) -> Reply {
    let ancestors = match frame_origins {
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
    if frame_origins.is_empty() {
        reply = reply.with("x-frame-options", "DENY");
    }
    reply
}
