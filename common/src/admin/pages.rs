//! The operators' pages on the admin listener: getting in, and the way of a request to a program's
//! screens.
//!
//! A browser cannot send a bearer token by itself, so the token opens a session (`session`): a
//! cookie of this host that no script reads and no other site makes a browser send.
//!
//! # Invariants
//!
//! 1. If a token is configured, a page is shown and a form accepted only with a session, or with
//!    the token itself; the form to sign in and the files of pages excepted.
//! 2. A form changes something only if a page of ours sent it, with the token of its session.
//!
//! Not here: hosts (`browser`), the content of the pages (each program).

use std::io;

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Method};
use ring::rand::{SecureRandom, SystemRandom};

use crate::admin::session::{LASTS, NONCE_BYTES, SessionKey};
use crate::admin::{Acted, Program, has_bearer};
use crate::http_server::problems::method_not_allowed;
use crate::http_server::reply::Reply;
use crate::http_server::{Acceptance, Call};
use crate::pages::form::Form;
use crate::pages::origin;
use crate::pages::reply::{secured, see_other};
use crate::pages::screen::{
    self, Input, InputForm, InputKind, Screen, Section, SectionBody, Viewer,
};
use crate::pages::show::mark;
use crate::secret::{Secret, same};
use crate::time::UnixTime;

/// Where the screen is.
pub(super) const HOME: &str = "/dashboard";

const SIGN_IN: &str = "/dashboard/sign-in";

/// The field of each form with its session's token.
const FORM_TOKEN: &str = "form_token";

/// Whether a path is one of a page.
pub(super) fn is_page(path: &str) -> bool {
    path.strip_prefix(HOME).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What is needed to check who sends a request for a page.
pub(super) struct Gate {
    program: &'static str,
    /// Signs forms where no token is configured.
    process: [u8; 32],
    token: Option<Secret<String>>,
    now: UnixTime,
}

/// Random bytes that differ in each process.
pub(super) fn process_secret() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(bytes)
}

impl Gate {
    pub(super) fn new<P: Program>(program: &P, process: [u8; 32]) -> Self {
        Self { program: P::NAME, process, token: program.token(), now: program.now() }
    }

    fn key(&self) -> SessionKey {
        let secret = self.token.as_ref().map_or(&self.process[..], |own| own.expose().as_bytes());
        SessionKey::new(self.program, secret)
    }

    fn cookie_name(&self) -> String {
        format!("{}_operator", self.program.replace('-', "_"))
    }

    /// The cookie of the session, if there is one.
    fn session<'h>(&self, headers: &'h HeaderMap, name: &'h str) -> Option<&'h str> {
        let key = self.key();
        origin::cookies(headers, name).find(|cookie| key.is_open(cookie, self.now))
    }

    /// Whether a request for a page is accepted by its head alone, or its refusal.
    pub(super) fn accepts(
        &self,
        head: (&Method, &str),
        headers: &HeaderMap,
    ) -> Result<Acceptance, Reply> {
        let (method, path) = head;
        if method == Method::POST && !is_of_our_page(headers) {
            let text = "The form was sent from another site, so nothing was changed.";
            return Err(self.failure(403, "From another site", text));
        }
        let Some(token) = &self.token else { return Ok(Acceptance::Verified) };
        let is_in = self.session(headers, &self.cookie_name()).is_some();
        match is_in || has_bearer(token, headers) {
            true => Ok(Acceptance::Verified),
            false if path == SIGN_IN => Ok(Acceptance::Open),
            false => Err(self.sign_in(401, None)),
        }
    }

    /// The response to a request that was not refused.
    pub(super) async fn answer<P: Program>(&self, program: &P, call: &Call) -> Reply {
        let reply = match call.path.as_str() {
            SIGN_IN if call.method == Method::POST => self.enter(call),
            SIGN_IN if self.token.is_none() => see_other(HOME),
            SIGN_IN => self.sign_in(200, None),
            _ => self.page(program, call).await,
        };
        secured(reply, &[])
    }

    async fn page<P: Program>(&self, program: &P, call: &Call) -> Reply {
        let steps: Vec<&str> = call.path.split('/').skip(2).filter(|s| !s.is_empty()).collect();
        let name = self.cookie_name();
        let session = self.session(&call.headers, &name);
        let form_token = self.key().form_token(session.unwrap_or_default());
        let viewer = Viewer {
            program: self.program,
            form_token: &form_token,
            signed_in: session.is_some() && self.token.is_some(),
        };
        let missing = || {
            let text = "There is no such page, or what it showed has ended.";
            let screen = Screen::notice("Not found", mark("?", "Not found", "muted"), text);
            screen::page(404, &screen, &viewer)
        };
        if call.method == Method::GET {
            let query = Form::read(call.query.as_deref().unwrap_or_default().as_bytes());
            let found = program.page(&steps, &query).await;
            return found.map_or_else(missing, |screen| screen::page(200, &screen, &viewer));
        }
        if call.method != Method::POST {
            return method_not_allowed("GET, HEAD, POST");
        }
        let form = Form::read(&call.body);
        if !self.key().permits_form(session.unwrap_or_default(), form.get(FORM_TOKEN)) {
            let text = "The form belongs to another session, so nothing was changed. Load the \
                page again, and send it once more.";
            return self.failure(403, "From another session", text);
        }
        if steps == ["sign-out"] {
            let over = format!("{name}=; Path={HOME}; Max-Age=0; HttpOnly; SameSite=Strict");
            return see_other(SIGN_IN).with("set-cookie", over);
        }
        match program.act(&steps, &form).await {
            Some(Acted::Show(status, screen)) => screen::page(status, &screen, &viewer),
            Some(Acted::Go(path)) => see_other(path),
            None => missing(),
        }
    }

    /// Opens a session for those who have the token.
    fn enter(&self, call: &Call) -> Reply {
        let Some(token) = &self.token else { return see_other(HOME) };
        let given = Form::read(&call.body);
        if !same(given.get("token").as_bytes(), token.expose().as_bytes()) {
            return self.sign_in(401, Some("This is not the token of server.admin_token_file."));
        }
        let mut nonce = [0; NONCE_BYTES];
        if SystemRandom::new().fill(&mut nonce).is_err() {
            return self.sign_in(503, Some("The system has no random numbers: try again."));
        }
        let cookie = self.key().open(nonce, self.now);
        let (name, seconds) = (self.cookie_name(), LASTS.as_secs());
        let cookie =
            format!("{name}={cookie}; Path={HOME}; Max-Age={seconds}; HttpOnly; SameSite=Strict");
        see_other(HOME).with("set-cookie", cookie)
    }

    fn sign_in(&self, status: u16, why: Option<&str>) -> Reply {
        let token = Input {
            kind: InputKind::Secret,
            ..Input::text("token", "Token of the admin listener", "")
        };
        let form = InputForm {
            action: SIGN_IN.to_owned(),
            reads: false,
            inputs: vec![token],
            button: "Sign in",
            back: None,
        };
        let text = "It is in the file that server.admin_token_file names. A session lasts twelve \
            hours, and ends when the token changes.";
        let body = SectionBody::Form(form);
        let section = Section { title: String::new(), text: text.to_owned(), body };
        let mut screen = match why {
            Some(why) => Screen::notice("Sign in", mark("✕", "Not signed in", "bad"), why),
            None => Screen::new("Sign in"),
        };
        screen.sections.push(section);
        self.outside(status, &screen)
    }

    fn failure(&self, status: u16, title: &str, text: &str) -> Reply {
        self.outside(status, &Screen::notice(title, mark("✕", "Refused", "bad"), text))
    }

    /// A page without a session.
    fn outside(&self, status: u16, screen: &Screen) -> Reply {
        let viewer = Viewer { program: self.program, form_token: "", signed_in: false };
        secured(screen::page(status, screen, &viewer), &[])
    }
}

/// Whether a page of this listener sent the request: its origin is the host that was called, over
/// whichever scheme, because a proxy may have ended TLS.
fn is_of_our_page(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let several = headers.get_all(ORIGIN).iter().count() > 1;
    !several
        && origin::is_ours(headers, |origin| {
            let origin = origin.strip_prefix(b"http://").or(origin.strip_prefix(b"https://"));
            origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host.as_bytes()))
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use serde_json::Value;

    use super::*;
    use crate::admin::Admin;
    use crate::config::reload::Reload;
    use crate::http_server::{Handler, Head};
    use crate::time::Clock;

    struct Small(Option<&'static str>, Clock);

    #[async_trait]
    impl Program for Small {
        const NAME: &'static str = "weir-small";

        fn token(&self) -> Option<Secret<String>> {
            self.0.map(|token| Secret::new(token.to_owned()))
        }

        fn now(&self) -> UnixTime {
            self.1.now().unix
        }

        async fn readiness(&self) -> Result<String, String> {
            Ok("ready".to_owned())
        }

        async fn metrics(&self) -> Vec<u8> {
            Vec::new()
        }

        fn config(&self) -> Value {
            Value::Null
        }

        async fn reload(&self) -> Reload {
            Reload::Unchanged
        }

        async fn page(&self, steps: &[&str], _: &Form) -> Option<Screen> {
            let form = InputForm {
                action: "/dashboard/do".to_owned(),
                reads: false,
                inputs: Vec::new(),
                button: "Do",
                back: None,
            };
            steps.is_empty().then(|| Screen::question("Small", "", form))
        }

        async fn act(&self, steps: &[&str], form: &Form) -> Option<Acted> {
            (steps == ["do"]).then(|| Acted::Go(format!("/dashboard?{}", form.get("what"))))
        }
    }

    /// Sends a request as the HTTP server would; the fields are those of the head.
    async fn send(
        admin: &Arc<Admin<Small>>,
        (method, path): (Method, &str),
        fields: &[(&'static str, &str)],
        body: &str,
    ) -> Reply {
        let mut request = http::Request::builder().method(method.clone()).uri(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let head: Head = request.body(()).unwrap().into_parts().0;
        if let Err(refused) = admin.accepts(&head).await {
            return refused;
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let call = Call {
            method,
            path: path.to_owned(),
            query: Some(query.to_owned()),
            headers: head.headers,
            body: body.to_owned().into(),
        };
        admin.handle(call).await
    }

    fn admin(token: Option<&'static str>) -> (Arc<Admin<Small>>, Clock) {
        let clock = Clock::manual(UnixTime(1_000_000_000));
        (Arc::new(Admin::new(Small(token, clock.clone())).unwrap()), clock)
    }

    fn header<'r>(reply: &'r Reply, name: &str) -> &'r str {
        let found = reply.headers.iter().find(|(own, _)| *own == name);
        found.map_or("", |(_, value)| value)
    }

    fn form_token(page: &Reply) -> String {
        let text = String::from_utf8(page.body.to_vec()).unwrap();
        let (_, after) = text.split_once("name=\"form_token\" value=\"").unwrap();
        after.split_once('"').unwrap().0.to_owned()
    }

    const OURS: (&str, &str) = ("origin", "http://ops.example:9005");
    const HOST_OF_OURS: (&str, &str) = ("host", "ops.example:9005");

    /// Signs in, and returns the cookie.
    async fn cookie(admin: &Arc<Admin<Small>>, token: &str) -> String {
        let sent = (Method::POST, SIGN_IN);
        let reply = send(admin, sent, &[HOST_OF_OURS, OURS], &format!("token={token}")).await;
        assert_eq!(reply.status, 303, "{reply:?}");
        let cookie = header(&reply, "set-cookie");
        assert!(cookie.ends_with("; HttpOnly; SameSite=Strict"), "{cookie}");
        assert!(!cookie.contains(token), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    }

    #[tokio::test]
    async fn a_token_opens_a_session_that_ends_in_time() {
        let (admin, clock) = admin(Some("0123456789abcdef"));
        let page = (Method::GET, HOME);
        let reply = send(&admin, page.clone(), &[HOST_OF_OURS], "").await;
        assert_eq!(reply.status, 401);
        assert!(header(&reply, "content-security-policy").starts_with("default-src 'none'"));
        let wrong = (Method::POST, SIGN_IN);
        let reply = send(&admin, wrong, &[HOST_OF_OURS, OURS], "token=other").await;
        assert_eq!((reply.status, header(&reply, "set-cookie")), (401, ""));
        let cookie = cookie(&admin, "0123456789abcdef").await;
        let fields = [HOST_OF_OURS, ("cookie", &*cookie)];
        assert_eq!(send(&admin, page.clone(), &fields, "").await.status, 200);
        // The API still needs the bearer token: the cookie is for pages.
        assert_eq!(send(&admin, (Method::GET, "/metrics"), &fields, "").await.status, 401);
        let bearer = [HOST_OF_OURS, ("authorization", "Bearer 0123456789abcdef")];
        assert_eq!(send(&admin, page.clone(), &bearer, "").await.status, 200);
        clock.advance(LASTS);
        assert_eq!(send(&admin, page, &fields, "").await.status, 401);
    }

    #[tokio::test]
    async fn a_form_of_ours_is_done_and_that_of_another_site_or_session_is_not() {
        let (admin, _) = admin(Some("0123456789abcdef"));
        let (one, other) =
            (cookie(&admin, "0123456789abcdef").await, cookie(&admin, "0123456789abcdef").await);
        let page = send(&admin, (Method::GET, HOME), &[HOST_OF_OURS, ("cookie", &one)], "").await;
        let body = format!("what=x&form_token={}", form_token(&page));
        let act = |fields: Vec<(&'static str, String)>, body: String| {
            let admin = Arc::clone(&admin);
            async move {
                let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
                send(&admin, (Method::POST, "/dashboard/do"), &fields, &body).await.status
            }
        };
        let host = || ("host", "ops.example:9005".to_owned());
        let of = |origin: &str, cookie: &str| {
            vec![host(), ("origin", origin.to_owned()), ("cookie", cookie.to_owned())]
        };
        assert_eq!(act(of("http://ops.example:9005", &one), body.clone()).await, 303);
        assert_eq!(act(of("https://OPS.example:9005", &one), body.clone()).await, 303);
        for origin in ["null", "http://evil.example", "http://ops.example:9006", "ops.example:9005"]
        {
            assert_eq!(act(of(origin, &one), body.clone()).await, 403, "{origin}");
        }
        assert_eq!(act(vec![host(), ("cookie", one.clone())], body.clone()).await, 403);
        let fetched = |site: &str| {
            [of("http://ops.example:9005", &one), vec![("sec-fetch-site", site.to_owned())]]
                .concat()
        };
        assert_eq!(act(fetched("same-origin"), body.clone()).await, 303);
        for site in ["cross-site", "same-site", "none"] {
            assert_eq!(act(fetched(site), body.clone()).await, 403, "{site}");
        }
        // Another session, no session, no token of a form.
        assert_eq!(act(of("http://ops.example:9005", &other), body.clone()).await, 403);
        assert_eq!(act(of("http://ops.example:9005", ""), body.clone()).await, 401);
        assert_eq!(act(of("http://ops.example:9005", &one), "what=x".to_owned()).await, 403);
    }

    #[tokio::test]
    async fn without_a_token_only_loopback_hosts_see_a_page_and_forms_have_a_token_all_the_same() {
        let (admin, _) = admin(None);
        let home = (Method::GET, HOME);
        for host in ["evil.example", "127.0.0.1.evil.example:9005"] {
            assert_eq!(send(&admin, home.clone(), &[("host", host)], "").await.status, 403);
        }
        let host = ("host", "localhost:9005");
        let page = send(&admin, home, &[host], "").await;
        assert_eq!(page.status, 200);
        let body = format!("what=x&form_token={}", form_token(&page));
        let ours = [host, ("origin", "http://localhost:9005")];
        let act = (Method::POST, "/dashboard/do");
        assert_eq!(send(&admin, act.clone(), &ours, &body).await.status, 303);
        assert_eq!(send(&admin, act.clone(), &ours, "what=x").await.status, 403);
        let theirs = [host, ("origin", "http://evil.example")];
        assert_eq!(send(&admin, act, &theirs, &body).await.status, 403);
        // Writes of the API never come from pages.
        assert_eq!(send(&admin, (Method::POST, "/reload"), &ours, "").await.status, 403);
    }

    #[tokio::test]
    async fn the_way_in_is_short_and_files_need_no_session() {
        let (admin, _) = admin(Some("0123456789abcdef"));
        let reply = send(&admin, (Method::GET, "/"), &[HOST_OF_OURS], "").await;
        assert_eq!((reply.status, header(&reply, "location")), (303, HOME));
        let style = crate::pages::assets::STYLE.path.clone();
        assert_eq!(send(&admin, (Method::GET, &style), &[HOST_OF_OURS], "").await.status, 200);
        assert!(!is_page("/dashboards") && is_page("/dashboard/x"));
    }
}
