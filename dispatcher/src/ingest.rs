//! Accepts events: authenticates, checks, makes durable, and only then says 202.
//!
//! # Invariants
//!
//! 1. A 202 means that all events of the call, with all their deliveries, are on disk; any other
//!    answer means that none of them is there because of this call.
//! 2. What is wrong is all named at once, by JSON pointers; nothing of a bad batch is stored.
//! 3. Calls that wait for the disk are bounded; one more is 503 at once.
//! 4. Large bodies are read one at a time, beside the threads that serve everybody, and only some
//!    may wait: however many come, others' small calls are let in and deliveries go on.
//!
//! Not here: what makes an event a good one (`ingest::event`, `ingest::forbidden`).

// core
pub(crate) mod parse;

// core
pub(crate) mod event;

// core
pub(crate) mod sensitive_data;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Method};
use log::Level;
use tokio::sync::Semaphore;
use weir_common::log::events;
use weir_common::time::{Clock, UnixTime};

use crate::auth::{Scope, Token, Tokens};
use crate::blocking_pool::Threads;
use crate::config::settings::Settings;
use crate::http_errors::{self, Flaw, Flaws};
use crate::http_server::{Call, Handler, Head, Reply, problems};
use crate::ingest::event::Checked;
use crate::ingest::parse::{Batch, Form, MEDIA_TYPES, Unreadable};
use crate::live_config::ActiveConfig;
use crate::state::State;
use crate::store::{Accepted, NewEvent};

/// The one path.
const PATH: &str = "/internal/v1/events";

/// A body to any other path is not for us.
const STRAY_BYTES_MAX: usize = 64 * 1024;

/// A body up to so many bytes is read at once, where it came in: within about half a millisecond.
const SMALL_BODY_BYTES: usize = 32 * 1024;

/// So many larger bodies are read at one time: what one workspace posts on many connections takes
/// one core of the machine, and not all of them from the store's writer and from deliveries.
const LARGE_AT_ONCE: usize = 1;

/// Of the calls that may wait, those with larger bodies may be this share, one in so many: the
/// other places are left to small ones.
const LARGE_SHARE: usize = 2;

/// The listener of backends.
pub struct Ingest {
    state: Arc<State>,
    waiting: Waiting,
    /// Places for large bodies that are read.
    large: Arc<Semaphore>,
    threads: Threads,
}

impl Ingest {
    /// With these parts.
    #[must_use]
    pub fn new(state: Arc<State>) -> Self {
        let large = Arc::new(Semaphore::new(LARGE_AT_ONCE));
        let threads = Threads::new("ingest", LARGE_AT_ONCE);
        Self { state, waiting: Waiting::default(), large, threads }
    }

    async fn answer(&self, call: Call) -> Result<Reply, Reply> {
        let active = self.state.active.load_full();
        let token = permitted(&active.tokens, &call.method, &call.path, &call.headers)?;
        let is_large = call.body.len() > SMALL_BODY_BYTES;
        // Counted before the body is looked at: reading it is work as well.
        let place =
            self.waiting.enter(active.settings.ingest.waiting_max, is_large).ok_or_else(|| {
                problems::busy("Too many calls wait to be written; send this one again.")
            })?;
        let Read { events, pointers, now } = if is_large {
            self.read_large(call, Arc::clone(&active)).await?
        } else {
            read(&call, &active.settings, token, &self.state.clock)?
        };
        let ids: Vec<Arc<str>> = events.iter().map(|event| Arc::clone(&event.id)).collect();
        let accepted = self.state.store.accept(events, now).await;
        drop(place);
        let failed = |error| {
            self.state.metrics.store_failed(&error);
            http_errors::store(&error)
        };
        match accepted.map_err(failed)? {
            Accepted::Stored { new, arrivals } => {
                self.counted(&new, arrivals.len());
                self.state.mailbox.arrived(arrivals);
                Ok(stored(&ids, &new))
            }
            Accepted::Conflict(places) => Err(conflict(&places, &pointers)),
        }
    }

    /// Reads a body that takes its time, when it is its turn.
    async fn read_large(&self, call: Call, active: Arc<ActiveConfig>) -> Result<Read, Reply> {
        // Nobody closes it.
        let turn = Arc::clone(&self.large).acquire_owned().await;
        let clock = self.state.clock.clone();
        // Whoever called may leave, the thread stays: so it, not the call, holds the turn.
        let reading = self.threads.run(move || {
            let _turn = turn;
            let token = permitted(&active.tokens, &call.method, &call.path, &call.headers)?;
            read(&call, &active.settings, token, &clock)
        });
        reading.await.unwrap_or_else(|_| Err(problems::broken()))
    }

    fn refused(&self, reply: Reply) -> Reply {
        let outcome = match reply.status {
            409 => "conflict",
            503 => "busy",
            _ => "refused",
        };
        self.state.metrics.events.with_label_values(&[outcome]).inc();
        reply
    }

    fn counted(&self, new: &[bool], deliveries: usize) {
        let metrics = &self.state.metrics;
        let accepted = new.iter().filter(|new| **new).count();
        let count = |outcome: &str, count: usize| {
            metrics.events.with_label_values(&[outcome]).inc_by(count as u64);
        };
        count("accepted", accepted);
        count("repeated", new.len() - accepted);
        metrics.deliveries_created.inc_by(deliveries as u64);
    }
}

/// Whose call this is, where path, method and token let it in; a body changes nothing about that.
fn permitted<'t>(
    tokens: &'t Tokens,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<&'t Token, Reply> {
    if path != PATH {
        return Err(problems::not_found());
    }
    if *method != Method::POST {
        return Err(problems::method_not_allowed("POST"));
    }
    tokens.authorise(headers, Scope::EventsWrite, None).map_err(|denial| denial.reply())
}

/// How many calls wait.
#[derive(Debug, Default)]
struct Waiting {
    all: AtomicUsize,
    /// Of them, those with large bodies.
    large: AtomicUsize,
}

impl Waiting {
    /// One more, unless there are `most` already, or as many large ones as may be among them.
    fn enter(&self, most: usize, is_large: bool) -> Option<Place<'_>> {
        let all = self.all.fetch_add(1, Ordering::Relaxed);
        let large = self.large.fetch_add(is_large.into(), Ordering::Relaxed);
        let place = Place { waiting: self, is_large };
        let too_many = is_large && large >= (most / LARGE_SHARE).max(1);
        (all < most && !too_many).then_some(place)
    }
}

/// A call among those that wait; leaves when dropped.
struct Place<'a> {
    waiting: &'a Waiting,
    is_large: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.all.fetch_sub(1, Ordering::Relaxed);
        self.waiting.large.fetch_sub(self.is_large.into(), Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Handler for Ingest {
    async fn handle(&self, call: Call) -> Reply {
        self.answer(call).await.unwrap_or_else(|reply| self.refused(reply))
    }

    /// Whoever may not send is not listened to.
    fn refuses(&self, head: &Head) -> Option<Reply> {
        let tokens = &self.state.active.load().tokens;
        let permitted = permitted(tokens, &head.method, head.uri.path(), &head.headers);
        permitted.err().map(|reply| self.refused(reply))
    }

    fn body_bytes_max(&self, path: &str) -> usize {
        if path == PATH {
            self.state.active.load().settings.ingest.body_bytes_max
        } else {
            STRAY_BYTES_MAX
        }
    }
}

/// What a call holds.
struct Read {
    events: Vec<NewEvent>,
    /// Where each stands in the body.
    pointers: Vec<String>,
    /// When they were named.
    now: UnixTime,
}

/// The events of a call, ready to be stored; or the answer that says what is wrong with them.
fn read(call: &Call, settings: &Settings, token: &Token, clock: &Clock) -> Result<Read, Reply> {
    let (checked, pointers) = checked(call, settings, token)?;
    let now = clock.now().unix;
    let events = named(checked, now).map_err(|()| problems::broken())?;
    Ok(Read { events, pointers, now })
}

/// The events of a call, each found good and permitted, and where they stand; or the answer that
/// says what is wrong with them.
fn checked<'a>(
    call: &'a Call,
    settings: &Settings,
    token: &Token,
) -> Result<(Vec<Checked<'a>>, Vec<String>), Reply> {
    let (allowed, identifiers) = (&settings.ingest, &settings.identifiers);
    let form = Form::of(&call.headers).ok_or_else(|| problems::media_type(&MEDIA_TYPES))?;
    let batch =
        Batch::read(&call.body, form, allowed.events_max).map_err(
            |unreadable| match unreadable {
                Unreadable::Malformed(detail) => problems::malformed(detail),
                Unreadable::Empty => {
                    http_errors::unprocessable(&Flaw::at("", "must hold at least one event").into())
                }
                Unreadable::TooMany => {
                    let text = format!("must hold at most {} events", allowed.events_max);
                    too_large(&Flaw::at("", text).into())
                }
            },
        )?;
    let mut large = Flaws::default();
    for item in batch.items.iter().filter(|item| item.text.len() > allowed.event_bytes_max) {
        large.go_to(item.index);
        let (found, most) = (item.text.len(), allowed.event_bytes_max);
        large.at(
            &item.pointer,
            item.said(&format!("has {found} bytes; at most {most} are allowed")),
        );
    }
    if !large.is_empty() {
        return Err(too_large(&large));
    }
    let (mut events, mut flaws, mut foreign) = (Vec::new(), Flaws::default(), Flaws::default());
    for item in &batch.items {
        let reading = event::read(item, &allowed.allowed, identifiers, &mut flaws);
        if let Some(workspace) = reading.workspace.filter(|name| !token.sees(name)) {
            let text = format!("this token may not send events of `{workspace}`");
            foreign.go_to(item.index);
            foreign.at(format!("{}/workspace_id", item.pointer), item.said(&text));
        }
        events.extend(reading.event);
    }
    if !foreign.is_empty() {
        return Err(http_errors::flawed(403, "foreign-workspace", "Not permitted", &foreign));
    }
    if !flaws.is_empty() {
        return Err(http_errors::unprocessable(&flaws));
    }
    Ok((events, batch.items.into_iter().map(|item| item.pointer).collect()))
}

fn too_large(flaws: &Flaws) -> Reply {
    http_errors::flawed(413, "body-too-large", "The body is too large", flaws)
}

/// The events with the names and envelopes that they are stored under.
fn named(checked: Vec<Checked<'_>>, now: UnixTime) -> Result<Vec<NewEvent>, ()> {
    let nameless = checked.iter().filter(|event| event.id.is_none()).count();
    let mut random = vec![0; nameless * event::ID_RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| {
        let fields = [("error", error.to_string().into())];
        events::event(Level::Error, "the system has no random bytes", &fields);
    })?;
    // In the order in which they stand: the store's index of names then grows at one end.
    let mut random: Vec<&[u8]> = random.chunks_exact(event::ID_RANDOM_BYTES).collect();
    random.sort_unstable();
    let mut random = random.into_iter();
    let created_at = now.rfc3339();
    let stored = checked.into_iter().map(|event| {
        let chunk = if event.id.is_none() { random.next() } else { None };
        event.stored(chunk.unwrap_or_default(), now, &created_at)
    });
    Ok(stored.collect())
}

fn stored(ids: &[Arc<str>], new: &[bool]) -> Reply {
    // Written by hand: there may be a thousand, and identifiers need no escapes.
    let events = ids.iter().zip(new).map(|(id, new)| format!("{{\"id\":\"{id}\",\"new\":{new}}}"));
    let events: Vec<String> = events.collect();
    let headers = vec![("content-type", "application/json".to_owned())];
    Reply { status: 202, headers, body: format!("{{\"events\":[{}]}}", events.join(",")).into() }
}

fn conflict(places: &[usize], pointers: &[String]) -> Reply {
    let mut flaws = Flaws::default();
    for (index, pointer) in places.iter().filter_map(|place| Some((*place, pointers.get(*place)?)))
    {
        flaws.go_to((!pointer.is_empty()).then_some(index));
        flaws.at(format!("{pointer}/id"), "another event already has this id");
    }
    http_errors::flawed(409, "id-taken", "The id is taken", &flaws)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_common::config::document::Document;
    use weir_common::identifier::IdForm;

    use super::*;
    use crate::auth::entry;
    use crate::store::sqlite::tests::Folder;
    use crate::worker::tests::{open_store, state_of};

    const GOOD: &str =
        r#"{"type":"plan.changed","workspace_id":"ws_a","tenant_id":"tn_1","data":{}}"#;
    const RANDOM: [u8; 32] = [1; 32];

    fn call(kind: &str, body: &str) -> Call {
        let mut headers = HeaderMap::new();
        let (text, _) = entry("", &[], &[], RANDOM);
        headers.insert("authorization", format!("Bearer {text}").parse().expect("a value"));
        headers.insert("content-type", kind.parse().expect("a value"));
        let body = body.to_owned().into();
        Call { method: Method::POST, path: PATH.to_owned(), query: None, headers, body }
    }

    fn with<T>(
        call: &Call,
        then: impl FnOnce(Result<(Vec<Checked<'_>>, Vec<String>), Reply>) -> T,
    ) -> T {
        let (_, file) = entry("a", &["ws_a".to_owned()], &[Scope::EventsWrite], RANDOM);
        let tokens = Tokens::read(&Document::new("t.toml", &file), &IdForm::workspace());
        let token = tokens.authorise(&call.headers, Scope::EventsWrite, None).expect("a token");
        let mut settings = crate::config::read::read(&Document::new("", "")).made;
        settings.ingest = crate::config::settings::Ingest {
            events_max: 3,
            event_bytes_max: 100,
            body_bytes_max: 1_000,
            waiting_max: 1,
            allowed: crate::config::allowed_fields::Allowed::default(),
        };
        then(checked(call, &settings, token))
    }

    /// The status of a refusal and where its errors are, or how many events are good.
    fn check(kind: &str, body: &str) -> String {
        with(&call(kind, body), |checked| match checked {
            Ok((events, pointers)) => format!("{} good at {pointers:?}", events.len()),
            Err(reply) => {
                let body: Value = serde_json::from_slice(&reply.body).expect("a problem is JSON");
                let errors = body["errors"].as_array().cloned().unwrap_or_default();
                let shown = errors.iter().map(|error| {
                    let index = error["index"].as_u64();
                    let index = index.map(|index| format!("{index}:")).unwrap_or_default();
                    format!(" {index}{}", error["pointer"].as_str().unwrap_or_default())
                });
                format!("{}{}", reply.status, shown.collect::<String>())
            }
        })
    }

    const JSON: &str = "application/json";
    const LINES: &str = "application/x-ndjson";

    #[test]
    fn one_event_or_several_are_taken_as_they_stand() {
        assert_eq!(check(JSON, GOOD), "1 good at [\"\"]");
        let two = "2 good at [\"/0\", \"/1\"]";
        assert_eq!(check(JSON, &format!("[{GOOD},{GOOD}]")), two);
        assert_eq!(check(LINES, &format!("{GOOD}\r\n\r\n{GOOD}")), two);
    }

    #[test]
    fn a_bad_batch_is_refused_with_every_reason() {
        let bad = GOOD.replace("{}", "{\"a\":[{\"pwd\":\"x\"}]}").replace("tn_1", "x");
        let batch = format!("[{GOOD},{bad},7]");
        assert_eq!(check(JSON, &batch), "422 1:/1/tenant_id 1:/1/data/a/0/pwd 2:/2");
        assert_eq!(check(JSON, &bad), "422 /tenant_id /data/a/0/pwd");
        assert_eq!(check(LINES, &format!("\n\n{bad}")), "422 0:/0/tenant_id 0:/0/data/a/0/pwd");
        assert_eq!(check(JSON, "[]"), "422 ");
    }

    #[test]
    fn what_a_token_may_not_send_for_is_403_whatever_else_is_wrong() {
        let foreign = GOOD.replace("ws_a", "ws_b");
        assert_eq!(check(JSON, &foreign), "403 /workspace_id");
        assert_eq!(check(JSON, &format!("[{GOOD},7,{foreign}]")), "403 2:/2/workspace_id");
        // What names no workspace is nobody's.
        assert_eq!(check(JSON, &GOOD.replace("ws_a", "b")), "422 /workspace_id");
    }

    #[test]
    fn what_is_too_much_or_no_json_is_refused() {
        assert_eq!(check("text/plain", GOOD), "415");
        assert_eq!(check(JSON, "{"), "400");
        assert_eq!(check(LINES, &format!("{GOOD}\n{{")), "400");
        assert_eq!(check(JSON, &format!("[{GOOD},{GOOD},{GOOD},{GOOD}]")), "413 ");
        let large = GOOD.replace("{}", &format!("{{\"a\":\"{}\"}}", "x".repeat(100)));
        assert_eq!(check(JSON, &large), "413 ");
        assert_eq!(check(LINES, &format!("{GOOD}\n{large}")), "413 1:/1");
    }

    #[test]
    fn another_media_type_is_told_all_that_are_taken() {
        let detail = with(&call("text/plain", GOOD), |checked| {
            let reply = checked.map(|_| ()).expect_err("it is refused");
            String::from_utf8(reply.body.to_vec()).expect("a text")
        });
        for name in MEDIA_TYPES {
            assert!(detail.contains(&format!("{name}`")), "{detail}");
            assert!(check(name, GOOD).starts_with("1 good"), "{name}");
        }
    }

    #[test]
    fn every_event_has_a_name_of_its_own_and_given_names_stay() {
        let named_one = GOOD.replace("{\"type", "{\"id\":\"evt_mine\",\"type");
        let call = call(JSON, &format!("[{GOOD},{named_one},{GOOD}]"));
        let events = with(&call, |checked| {
            named(checked.map_err(|_| ()).expect("they are good").0, UnixTime(1))
        });
        let events = events.expect("there is luck");
        assert_eq!(events[1].id.as_ref(), "evt_mine");
        assert_ne!(events[0].id, events[2].id);
        assert_eq!(events[0].digest, events[1].digest);
    }

    #[test]
    fn names_of_ours_sort_as_their_events_stand_in_the_call() {
        let nameless = || Checked {
            id: None,
            kind: crate::domain::event::EventType::PlanChanged,
            workspace: "ws_a".to_owned(),
            tenant: "tn_1".to_owned(),
            data: "{}",
        };
        let events = named((0..64).map(|_| nameless()).collect(), UnixTime(1));
        assert!(events.expect("there is luck").is_sorted_by(|one, next| one.id < next.id));
    }

    /// A listener, and a body that is large for it.
    fn listener(folder: &Folder) -> (Ingest, String) {
        let clock = Clock::manual(UnixTime(1_790_000_000_000_000));
        let (_, tokens) = entry("a", &["ws_a".to_owned()], &[Scope::EventsWrite], RANDOM);
        let config = format!(
            "[auth]\ntokens = {:?}\n[directory]\nsource = \"file\"\npath = {:?}\n",
            folder.path("tokens.toml"),
            folder.path("directory.toml"),
        );
        let files =
            [("dispatcher.toml", &*config), ("tokens.toml", &tokens), ("directory.toml", "")];
        for (name, text) in files {
            std::fs::write(folder.path(name), text).expect("there is room");
        }
        let store = open_store(folder, &clock);
        let ingest = Ingest::new(Arc::new(state_of(folder, &clock, store).0));
        let events = vec![GOOD; SMALL_BODY_BYTES / GOOD.len() + 1];
        (ingest, format!("[{}]", events.join(",")))
    }

    #[tokio::test]
    async fn a_large_body_waits_for_its_turn_and_a_small_one_does_not() {
        let folder = Folder::new();
        let (ingest, body) = listener(&folder);
        let turn = ingest.large.try_acquire().expect("nobody reads");
        let mut large = std::pin::pin!(ingest.handle(call(JSON, &body)));
        // Time enough for a large one that has not to wait.
        let many_small = async {
            for _ in 0..300 {
                assert_eq!(ingest.handle(call(JSON, GOOD)).await.status, 202);
            }
        };
        tokio::select! {
            biased;
            reply = &mut large => panic!("it did not wait: {}", reply.status),
            () = many_small => {}
        }
        drop(turn);
        assert_eq!(large.await.status, 202);
        let foreign = call(JSON, &body.replace("ws_a", "ws_b"));
        assert_eq!(ingest.handle(foreign).await.status, 403);
        assert_eq!(ingest.large.available_permits(), LARGE_AT_ONCE);
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_keeps_its_turn_for_as_long_as_its_body_is_read() {
        let folder = Folder::new();
        let (ingest, body) = listener(&folder);
        // The one thread is busy, so that the reading goes on for as long as we like.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = ingest.threads.run(move || wait.recv());
        {
            let mut large = std::pin::pin!(ingest.handle(call(JSON, &body)));
            tokio::select! {
                biased;
                reply = &mut large => panic!("there is no thread: {}", reply.status),
                () = tokio::task::yield_now() => {}
            }
        }
        assert_eq!(ingest.waiting.all.load(Ordering::Relaxed), 0);
        assert_eq!(ingest.large.available_permits(), 0);
        drop(go);
        busy.await.expect("it waited").expect_err("nobody said anything");
        let turn = ingest.large.acquire().await;
        assert!(turn.is_ok(), "it is over");
    }

    #[test]
    fn an_answer_names_each_event_and_says_whether_it_is_new() {
        let reply = stored(&["evt_1".into(), "evt_2".into()], &[true, false]);
        assert_eq!(reply.status, 202);
        let expected = r#"{"events":[{"id":"evt_1","new":true},{"id":"evt_2","new":false}]}"#;
        assert_eq!(reply.body, expected);
    }

    #[test]
    fn a_call_is_let_in_by_its_head_alone() {
        let (text, file) = entry("a", &["ws_a".to_owned()], &[Scope::EventsWrite], RANDOM);
        let (reader, read_only) = entry("b", &["*".to_owned()], &[Scope::WebhooksRead], [2; 32]);
        let tokens = Tokens::read(
            &Document::new("t.toml", &format!("{file}{read_only}")),
            &IdForm::workspace(),
        );
        let status = |method: Method, path: &str, token: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(token) = token {
                let value = format!("Bearer {token}").parse().expect("a value");
                headers.insert("authorization", value);
            }
            permitted(&tokens, &method, path, &headers).map_or_else(|reply| reply.status, |_| 0)
        };
        assert_eq!(status(Method::POST, PATH, Some(&text)), 0);
        assert_eq!(status(Method::POST, PATH, None), 401);
        assert_eq!(status(Method::POST, PATH, Some("x")), 401);
        assert_eq!(status(Method::POST, PATH, Some(&reader)), 403);
        assert_eq!(status(Method::PUT, PATH, Some(&text)), 405);
        assert_eq!(status(Method::POST, "/", Some(&text)), 404);
    }

    #[test]
    fn no_more_calls_wait_than_may_and_large_ones_leave_places_to_others() {
        let waiting = Waiting::default();
        let check = |most: usize, large: &str, expected: &str| {
            let places: Vec<_> = large.chars().map(|one| waiting.enter(most, one == 'L')).collect();
            let let_in = places.iter().map(|place| if place.is_some() { '+' } else { '-' });
            assert_eq!(let_in.collect::<String>(), expected, "{large} where {most} may wait");
        };
        check(2, "sss", "++-");
        check(4, "LLLsss", "++-++-");
        check(4, "sssLL", "++++-");
        check(1, "Ls", "+-");
        check(1, "sL", "+-");
        // Whoever left, or was refused, takes no place.
        assert_eq!([waiting.all, waiting.large].map(AtomicUsize::into_inner), [0, 0]);
    }

    #[test]
    fn a_name_that_is_taken_is_pointed_at() {
        let errors = |reply: Reply| -> Value {
            serde_json::from_slice(&reply.body)
                .map(|body: Value| body["errors"].clone())
                .expect("a problem is JSON")
        };
        let several = errors(conflict(&[1], &["/0".to_owned(), "/1".to_owned()]));
        assert_eq!((&several[0]["index"], &several[0]["pointer"]), (&json!(1), &json!("/1/id")));
        let single = errors(conflict(&[0], &[String::new()]));
        assert_eq!((&single[0]["index"], &single[0]["pointer"]), (&Value::Null, &json!("/id")));
    }
}
