//! Accepts events: authenticates, validates, stores, and then answers 202.
//!
//! # Invariants
//!
//! 1. A 202 means that all events of the call, with all their deliveries, are on disk; after any
//!    other answer this call has stored none.
//! 2. A refusal lists every error at its JSON pointer; of an invalid batch no event is stored.
//! 3. The number of calls that wait for the disk is bounded; a call beyond it is 503 at once.
//! 4. Large bodies are parsed one at a time on a separate thread, and a bounded share of the calls
//!    may wait for it: a burst of large calls delays neither small calls nor deliveries.
//!
//! Not here: what makes an event valid (`ingest::event`, `catalogue`).

pub(crate) mod event;
pub(crate) mod parse;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Method};
use tokio::sync::Semaphore;
use weir_common::http_server::reply::Reply;
use weir_common::http_server::{Acceptance, Call, Handler, Head, problems};
use weir_common::time::{Clock, UnixTime};

use crate::auth::{Caller, Scope};
use crate::blocking_pool::Threads;
use crate::catalogue::Catalogue;
use crate::config::settings::IngestSettings;
use crate::domain::public_id::ID_RANDOM_BYTES;
use crate::http_errors::{self, ValidationError, ValidationErrors};
use crate::ingest::event::ValidEvent;
use crate::ingest::parse::{Batch, BatchError, BodyFormat, MEDIA_TYPES};
use crate::live_config::ActiveConfig;
use crate::state::State;
use crate::store::types::{Accepted, NewEvent};

const PATH: &str = "/internal/v1/events";

/// A body sent to any other path is read to keep the connection, and dropped.
const OTHER_PATH_BYTES_MAX: usize = 64 * 1024;

/// A body up to this size is parsed on the connection's own thread, in about half a millisecond.
const SMALL_BODY_BYTES: usize = 32 * 1024;

/// Larger bodies parsed at a time: one workspace that posts on many connections uses one core and
/// leaves the others to the store's writer and to deliveries.
const LARGE_AT_ONCE: usize = 1;

/// One in this many waiting calls may have a larger body; the rest is reserved for small ones.
const LARGE_SHARE: usize = 2;

/// The listener for backends.
pub struct Ingest {
    state: Arc<State>,
    pending_calls: PendingCalls,
    /// One permit for each large body being parsed.
    large_permits: Arc<Semaphore>,
    threads: Threads,
}

impl Ingest {
    /// A handler with a separate thread for large bodies.
    #[must_use]
    pub fn new(state: Arc<State>) -> Self {
        let large_permits = Arc::new(Semaphore::new(LARGE_AT_ONCE));
        let threads = Threads::new("ingest", LARGE_AT_ONCE);
        Self { state, pending_calls: PendingCalls::default(), large_permits, threads }
    }

    async fn answer(&self, call: Call) -> Result<Reply, Reply> {
        let active = self.state.active.load_full();
        let caller = self.permitted(&active, &call.method, &call.path, &call.headers).await?;
        let is_large = call.body.len() > SMALL_BODY_BYTES;
        // The call counts before its body is parsed: parsing is work as well.
        let pending =
            self.pending_calls.admit(active.settings.ingest.waiting_max, is_large).ok_or_else(
                || problems::busy("Too many calls are waiting to be written; send the call again."),
            )?;
        let ParsedCall { events, pointers, now } = if is_large {
            self.read_large(call, caller, Arc::clone(&active)).await?
        } else {
            read(&call, &active, &caller, &self.state.clock)?
        };
        let ids: Vec<Arc<str>> = events.iter().map(|event| Arc::clone(&event.id)).collect();
        let accepted = self.state.store.accept(events, now).await;
        drop(pending);
        match accepted.map_err(|error| self.state.store_failed(&error))? {
            Accepted::Stored { new, arrivals } => {
                self.count_accepted(&new, arrivals.len());
                self.state.mailbox.arrived(arrivals);
                Ok(accepted_reply(&ids, &new))
            }
            Accepted::Conflict(places) => Err(conflict(&places, &pointers)),
        }
    }

    /// Parses a large body once a permit is free.
    async fn read_large(
        &self,
        call: Call,
        caller: Caller,
        active: Arc<ActiveConfig>,
    ) -> Result<ParsedCall, Reply> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.large_permits).acquire_owned().await;
        let clock = self.state.clock.clone();
        // The client may disconnect while the thread still parses: the thread owns the permit.
        let reading = self.threads.run(move || {
            let _permit = permit;
            read(&call, &active, &caller, &clock)
        });
        reading.await.unwrap_or_else(|_| Err(problems::broken()))
    }

    /// The token of a call whose path, method and token are allowed; independent of its body.
    async fn permitted(
        &self,
        active: &ActiveConfig,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Caller, Reply> {
        check_route(method, path)?;
        let (metrics, now) = (&self.state.metrics, self.state.clock.now());
        let wanted = (Scope::EventsWrite, None);
        let caller = active.callers.authorise(headers, wanted, now, metrics).await;
        caller.map_err(|refusal| refusal.reply())
    }

    fn count_refused(&self, reply: Reply) -> Reply {
        let outcome = match reply.status {
            409 => "conflict",
            503 => "busy",
            _ => "refused",
        };
        self.state.metrics.events.with_label_values(&[outcome]).inc();
        reply
    }

    fn count_accepted(&self, new: &[bool], deliveries: usize) {
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

/// Refuses a call that sends no events.
fn check_route(method: &Method, path: &str) -> Result<(), Reply> {
    if path != PATH {
        return Err(http_errors::not_found());
    }
    if *method == Method::POST { Ok(()) } else { Err(problems::method_not_allowed("POST")) }
}

/// Counts the calls that wait to be parsed or written.
#[derive(Debug, Default)]
struct PendingCalls {
    all: AtomicUsize,
    /// Those of them with large bodies.
    large: AtomicUsize,
}

impl PendingCalls {
    /// Admits a call unless `most` are pending, or the share of large ones is used up.
    fn admit(&self, most: usize, is_large: bool) -> Option<PendingCall<'_>> {
        let all = self.all.fetch_add(1, Ordering::Relaxed);
        let large = self.large.fetch_add(is_large.into(), Ordering::Relaxed);
        let pending = PendingCall { calls: self, is_large };
        let too_many = is_large && large >= (most / LARGE_SHARE).max(1);
        (all < most && !too_many).then_some(pending)
    }
}

/// A pending call; dropping it removes it from the counts.
struct PendingCall<'a> {
    calls: &'a PendingCalls,
    is_large: bool,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.calls.all.fetch_sub(1, Ordering::Relaxed);
        self.calls.large.fetch_sub(self.is_large.into(), Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Handler for Ingest {
    async fn handle(&self, call: Call) -> Reply {
        self.answer(call).await.unwrap_or_else(|reply| self.count_refused(reply))
    }

    /// Refuses a call by its head, before its body is read.
    async fn accepts(&self, head: &Head) -> Result<Acceptance, Reply> {
        let active = self.state.active.load_full();
        let permitted = self.permitted(&active, &head.method, head.uri.path(), &head.headers).await;
        permitted.map(|_| Acceptance::Verified).map_err(|reply| self.count_refused(reply))
    }

    fn body_bytes_max(&self, path: &str, _: Acceptance) -> usize {
        if path == PATH {
            self.state.active.load().settings.ingest.body_bytes_max
        } else {
            OTHER_PATH_BYTES_MAX
        }
    }
}

/// The events of a call, ready to be stored.
struct ParsedCall {
    events: Vec<NewEvent>,
    /// The JSON pointer of each event in the body.
    pointers: Vec<String>,
    /// The time in their identifiers and envelopes.
    now: UnixTime,
}

/// Validates the events of a call and assigns their identifiers; or the refusal.
fn read(
    call: &Call,
    active: &ActiveConfig,
    caller: &Caller,
    clock: &Clock,
) -> Result<ParsedCall, Reply> {
    let (valid, pointers) = validate(call, &active.settings.ingest, &active.catalogue, caller)?;
    let now = clock.now().unix;
    let events = assign_ids(valid, now)?;
    Ok(ParsedCall { events, pointers, now })
}

/// The events of a call, all valid and permitted, with their JSON pointers; or the refusal.
fn validate<'a>(
    call: &'a Call,
    limits: &IngestSettings,
    catalogue: &Catalogue,
    caller: &Caller,
) -> Result<(Vec<ValidEvent<'a>>, Vec<String>), Reply> {
    let format =
        BodyFormat::of(&call.headers).ok_or_else(|| http_errors::media_type(&MEDIA_TYPES))?;
    let batch =
        Batch::read(&call.body, format, limits.events_max).map_err(|error| match error {
            BatchError::Malformed(detail) => http_errors::malformed(detail),
            BatchError::Empty => http_errors::unprocessable(
                &ValidationError::at("", "must hold at least one event").into(),
            ),
            BatchError::TooMany => {
                let text = format!("must hold at most {} events", limits.events_max);
                too_large(&ValidationError::at("", text).into())
            }
        })?;
    let mut large = ValidationErrors::default();
    for item in batch.items.iter().filter(|item| item.text.len() > limits.event_bytes_max) {
        large.set_index(item.index);
        let (found, most) = (item.text.len(), limits.event_bytes_max);
        large.at(
            &item.pointer,
            item.message_at(&format!("has {found} bytes; at most {most} are allowed")),
        );
    }
    if !large.is_empty() {
        return Err(too_large(&large));
    }
    let (mut events, mut errors, mut foreign) =
        (Vec::new(), ValidationErrors::default(), ValidationErrors::default());
    for item in &batch.items {
        let parsed = event::read(item, catalogue, &mut errors);
        if let Some(workspace) = parsed.workspace.filter(|name| !caller.may_access(name)) {
            let text = format!("this token may not send events for `{workspace}`");
            foreign.set_index(item.index);
            foreign.at(format!("{}/workspace_id", item.pointer), item.message_at(&text));
        }
        events.extend(parsed.event);
    }
    if !foreign.is_empty() {
        return Err(http_errors::validation_problem(
            403,
            "foreign-workspace",
            "Not permitted",
            &foreign,
        ));
    }
    if !errors.is_empty() {
        return Err(http_errors::unprocessable(&errors));
    }
    Ok((events, batch.items.into_iter().map(|item| item.pointer).collect()))
}

fn too_large(errors: &ValidationErrors) -> Reply {
    http_errors::validation_problem(413, "body-too-large", "The body is too large", errors)
}

/// The events as they are stored, each with an identifier and its envelope.
fn assign_ids(valid: Vec<ValidEvent<'_>>, now: UnixTime) -> Result<Vec<NewEvent>, Reply> {
    let without_id = valid.iter().filter(|event| event.id.is_none()).count();
    let mut random = vec![0; without_id * ID_RANDOM_BYTES];
    http_errors::fill_random(&mut random)?;
    // Sorted, so that identifiers ascend in the order of the call and the index grows at its end.
    let mut random: Vec<&[u8]> = random.chunks_exact(ID_RANDOM_BYTES).collect();
    random.sort_unstable();
    let mut random = random.into_iter();
    let created_at = now.rfc3339();
    let stored = valid.into_iter().map(|event| {
        let chunk = if event.id.is_none() { random.next() } else { None };
        event.stored(chunk.unwrap_or_default(), now, &created_at)
    });
    Ok(stored.collect())
}

fn accepted_reply(ids: &[Arc<str>], new: &[bool]) -> Reply {
    // Formatted without serde: a call has up to a thousand events, and identifiers need no escapes.
    let events = ids.iter().zip(new).map(|(id, new)| format!("{{\"id\":\"{id}\",\"new\":{new}}}"));
    let events: Vec<String> = events.collect();
    let headers = vec![("content-type", "application/json".to_owned())];
    let body = format!("{{\"events\":[{}]}}", events.join(",")).into();
    Reply { status: 202, headers, body, rest: None }
}

fn conflict(places: &[usize], pointers: &[String]) -> Reply {
    let mut errors = ValidationErrors::default();
    for (index, pointer) in places.iter().filter_map(|place| Some((*place, pointers.get(*place)?)))
    {
        errors.set_index((!pointer.is_empty()).then_some(index));
        errors.at(format!("{pointer}/id"), "another event already has this id");
    }
    http_errors::validation_problem(409, "id-taken", "The id is taken", &errors)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_common::config::document::Document;
    use weir_common::identifier::IdForm;

    use super::*;
    use crate::auth::token_file::{Tokens, entry};
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
        then: impl FnOnce(Result<(Vec<ValidEvent<'_>>, Vec<String>), Reply>) -> T,
    ) -> T {
        let (_, file) = entry("a", &["ws_a".to_owned()], &[Scope::EventsWrite], RANDOM);
        let tokens = Tokens::read(&Document::new("t.toml", &file), &IdForm::workspace());
        let (text, _) = entry("", &[], &[], RANDOM);
        let token = tokens.registered(&text).expect("a token");
        let caller = Caller::new(Arc::clone(token), Arc::default());
        let limits = IngestSettings {
            events_max: 3,
            event_bytes_max: 100,
            body_bytes_max: 1_000,
            waiting_max: 1,
        };
        then(validate(call, &limits, &Catalogue::shipped(), &caller))
    }

    /// The status of a refusal and the places of its errors, or the number of valid events.
    fn check(kind: &str, body: &str) -> String {
        with(&call(kind, body), |validated| match validated {
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
    fn a_body_is_one_event_an_array_or_lines() {
        assert_eq!(check(JSON, GOOD), "1 good at [\"\"]");
        let two = "2 good at [\"/0\", \"/1\"]";
        assert_eq!(check(JSON, &format!("[{GOOD},{GOOD}]")), two);
        assert_eq!(check(LINES, &format!("{GOOD}\r\n\r\n{GOOD}")), two);
    }

    #[test]
    fn an_invalid_batch_is_refused_with_every_error() {
        let bad = GOOD.replace("{}", "{\"a\":[{\"pwd\":\"x\"}]}").replace("tn_1", "x");
        let batch = format!("[{GOOD},{bad},7]");
        assert_eq!(check(JSON, &batch), "422 1:/1/tenant_id 1:/1/data/a/0/pwd 2:/2");
        assert_eq!(check(JSON, &bad), "422 /tenant_id /data/a/0/pwd");
        assert_eq!(check(LINES, &format!("\n\n{bad}")), "422 0:/0/tenant_id 0:/0/data/a/0/pwd");
        assert_eq!(check(JSON, "[]"), "422 ");
    }

    #[test]
    fn a_foreign_workspace_is_403_whatever_else_is_invalid() {
        let foreign = GOOD.replace("ws_a", "ws_b");
        assert_eq!(check(JSON, &foreign), "403 /workspace_id");
        assert_eq!(check(JSON, &format!("[{GOOD},7,{foreign}]")), "403 2:/2/workspace_id");
        // An invalid workspace identifier belongs to no token: 422.
        assert_eq!(check(JSON, &GOOD.replace("ws_a", "b")), "422 /workspace_id");
    }

    #[test]
    fn a_body_that_is_too_large_or_no_json_is_refused() {
        assert_eq!(check("text/plain", GOOD), "415");
        assert_eq!(check(JSON, "{"), "400");
        assert_eq!(check(LINES, &format!("{GOOD}\n{{")), "400");
        assert_eq!(check(JSON, &format!("[{GOOD},{GOOD},{GOOD},{GOOD}]")), "413 ");
        let large = GOOD.replace("{}", &format!("{{\"a\":\"{}\"}}", "x".repeat(100)));
        assert_eq!(check(JSON, &large), "413 ");
        assert_eq!(check(LINES, &format!("{GOOD}\n{large}")), "413 1:/1");
    }

    #[test]
    fn a_415_lists_every_accepted_media_type() {
        let detail = with(&call("text/plain", GOOD), |validated| {
            let reply = validated.map(|_| ()).expect_err("it is refused");
            String::from_utf8(reply.body.to_vec()).expect("UTF-8")
        });
        for name in MEDIA_TYPES {
            assert!(detail.contains(&format!("{name}`")), "{detail}");
            assert!(check(name, GOOD).starts_with("1 good"), "{name}");
        }
    }

    #[test]
    fn every_event_has_its_own_id_and_given_ids_stay() {
        let named_one = GOOD.replace("{\"type", "{\"id\":\"evt_mine\",\"type");
        let call = call(JSON, &format!("[{GOOD},{named_one},{GOOD}]"));
        let events = with(&call, |validated| {
            assign_ids(validated.map_err(|_| ()).expect("they are valid").0, UnixTime(1))
        });
        let events = events.expect("the random source works");
        assert_eq!(events[1].id.as_ref(), "evt_mine");
        assert_ne!(events[0].id, events[2].id);
        assert_eq!(events[0].digest, events[1].digest);
    }

    #[test]
    fn assigned_ids_ascend_in_the_order_of_the_call() {
        let without_id = || ValidEvent {
            id: None,
            kind: crate::domain::event::EventType::new("plan.changed"),
            workspace: "ws_a".to_owned(),
            tenant: Some("tn_1".to_owned()),
            data: "{}",
        };
        let events = assign_ids((0..64).map(|_| without_id()).collect(), UnixTime(1));
        let events = events.expect("the random source works");
        assert!(events.is_sorted_by(|one, next| one.id < next.id));
    }

    /// A handler, and a body over its limit for small ones.
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
            std::fs::write(folder.path(name), text).expect("the disk has space");
        }
        let store = open_store(folder, &clock);
        let ingest = Ingest::new(Arc::new(state_of(folder, &clock, store).0));
        let events = vec![GOOD; SMALL_BODY_BYTES / GOOD.len() + 1];
        (ingest, format!("[{}]", events.join(",")))
    }

    #[tokio::test]
    async fn a_large_body_waits_for_a_permit_and_a_small_one_does_not() {
        let folder = Folder::new();
        let (ingest, body) = listener(&folder);
        let permit = ingest.large_permits.try_acquire().expect("the permit is free");
        let mut large = std::pin::pin!(ingest.handle(call(JSON, &body)));
        // Enough calls for a large one to end, if it did not wait.
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
        drop(permit);
        assert_eq!(large.await.status, 202);
        let foreign = call(JSON, &body.replace("ws_a", "ws_b"));
        assert_eq!(ingest.handle(foreign).await.status, 403);
        assert_eq!(ingest.large_permits.available_permits(), LARGE_AT_ONCE);
    }

    #[tokio::test]
    async fn a_disconnected_call_keeps_its_permit_while_its_body_is_parsed() {
        let folder = Folder::new();
        let (ingest, body) = listener(&folder);
        // The one thread is busy, so parsing has not ended when the call is dropped.
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
        assert_eq!(ingest.pending_calls.all.load(Ordering::Relaxed), 0);
        assert_eq!(ingest.large_permits.available_permits(), 0);
        drop(go);
        busy.await.expect("it waited").expect_err("the sender is gone");
        let permit = ingest.large_permits.acquire().await;
        assert!(permit.is_ok(), "the permit is free again");
    }

    #[test]
    fn a_202_lists_each_event_and_whether_it_is_new() {
        let reply = accepted_reply(&["evt_1".into(), "evt_2".into()], &[true, false]);
        assert_eq!(reply.status, 202);
        let expected = r#"{"events":[{"id":"evt_1","new":true},{"id":"evt_2","new":false}]}"#;
        assert_eq!(reply.body, expected);
    }

    #[test]
    fn only_a_post_to_one_path_sends_events() {
        let status = |method, path| check_route(&method, path).map_or_else(|no| no.status, |()| 0);
        assert_eq!(status(Method::POST, PATH), 0);
        assert_eq!(status(Method::PUT, PATH), 405);
        assert_eq!(status(Method::POST, "/"), 404);
        assert_eq!(status(Method::GET, "/"), 404);
    }

    #[test]
    fn pending_calls_are_bounded_and_large_ones_leave_room_for_small_ones() {
        let calls = PendingCalls::default();
        let check = |most: usize, large: &str, expected: &str| {
            let pending: Vec<_> = large.chars().map(|one| calls.admit(most, one == 'L')).collect();
            let admitted = pending.iter().map(|one| if one.is_some() { '+' } else { '-' });
            assert_eq!(admitted.collect::<String>(), expected, "{large} where {most} may wait");
        };
        check(2, "sss", "++-");
        check(4, "LLLsss", "++-++-");
        check(4, "sssLL", "++++-");
        check(1, "Ls", "+-");
        check(1, "sL", "+-");
        // Calls that ended or were refused no longer count.
        assert_eq!([calls.all, calls.large].map(AtomicUsize::into_inner), [0, 0]);
    }

    #[test]
    fn a_conflict_points_at_the_id() {
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
