//! Accepts events: authenticates, checks, makes durable, and only then says 202.
//!
//! # Invariants
//!
//! 1. A 202 means that all events of the call, with all their deliveries, are on disk (DESIGN
//!    invariant 8); any other answer means that none of them is there because of this call.
//! 2. What is wrong is all named at once, by JSON pointers; nothing of a bad batch is stored.
//! 3. Calls that wait for the disk are bounded; one more is 503 at once.
//!
//! Not here: what makes an event a good one (`ingest::event`, `ingest::forbidden`).

// core
pub(crate) mod batch;

// core
pub(crate) mod event;

// core
pub(crate) mod forbidden;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use log::Level;
use serde_json::{Value, json};
use weir_common::logging;

use self::batch::{Batch, Form, Unreadable};
use self::event::Checked;
use crate::auth::{Scope, Token};
use crate::force::Force;
use crate::parts::Parts;
use crate::serve::refuse::{self, Flaw, Flaws};
use crate::serve::{Call, Handler, Reply};
use crate::store::{Accepted, NewEvent};

/// The one path.
const PATH: &str = "/internal/v1/events";

/// A body to any other path is not for us.
const STRAY_BYTES_MAX: usize = 64 * 1024;

/// The listener of backends.
pub struct Ingest {
    parts: Arc<Parts>,
    waiting: AtomicUsize,
}

impl Ingest {
    /// With these parts.
    #[must_use]
    pub fn new(parts: Arc<Parts>) -> Self {
        Self { parts, waiting: AtomicUsize::new(0) }
    }

    async fn answer(&self, call: &Call) -> Result<Reply, Reply> {
        let force = self.parts.force.load_full();
        if call.path != PATH {
            return Err(refuse::not_found());
        }
        if call.method != Method::POST {
            return Err(refuse::method_not_allowed("POST"));
        }
        let authorised = force.tokens.authorise(&call.headers, Scope::EventsWrite, None);
        let token = authorised.map_err(|denial| denial.reply())?;
        // Counted before the body is looked at: reading it is work as well.
        let place = self.place(force.settings.ingest.waiting_max)?;
        let (checked, pointers) = checked(call, &force, token)?;
        let now = self.parts.clock.now().unix;
        let events = named(checked, now).map_err(|()| refuse::broken())?;
        let ids: Vec<Arc<str>> = events.iter().map(|event| Arc::clone(&event.id)).collect();
        let accepted = self.parts.store.accept(events, now).await;
        drop(place);
        match accepted.map_err(|error| refuse::store(&error))? {
            Accepted::Stored { new, arrivals } => {
                self.parts.worker.arrived(arrivals);
                Ok(stored(&ids, &new))
            }
            Accepted::Conflict(places) => Err(conflict(&places, &pointers)),
        }
    }

    fn place(&self, most: usize) -> Result<Place<'_>, Reply> {
        let place = Place(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= most {
            return Err(refuse::busy("More calls wait to be written than may."));
        }
        Ok(place)
    }
}

/// A call among those that wait; leaves when dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Handler for Ingest {
    async fn handle(&self, call: Call) -> Reply {
        self.answer(&call).await.unwrap_or_else(|reply| reply)
    }

    fn body_bytes_max(&self, path: &str) -> usize {
        if path == PATH {
            self.parts.force.load().settings.ingest.body_bytes_max
        } else {
            STRAY_BYTES_MAX
        }
    }
}

/// The events of a call, each found good and permitted, and where they stand; or the answer that
/// says what is wrong with them.
fn checked<'a>(
    call: &'a Call,
    force: &Force,
    token: &Token,
) -> Result<(Vec<Checked<'a>>, Vec<String>), Reply> {
    let form = Form::of(&call.headers)
        .ok_or_else(|| refuse::media_type("application/json or application/x-ndjson"))?;
    let allowed = &force.settings.ingest;
    let batch =
        Batch::read(&call.body, form, allowed.events_max).map_err(
            |unreadable| match unreadable {
                Unreadable::Malformed(detail) => refuse::malformed(detail),
                Unreadable::Empty => refuse::unprocessable(&Flaw::at("", "holds no event").into()),
                Unreadable::TooMany => {
                    let text = format!("holds more than {} events", allowed.events_max);
                    too_large(&Flaw::at("", text).into())
                }
            },
        )?;
    let mut large = Flaws::default();
    for item in batch.items.iter().filter(|item| item.text.len() > allowed.event_bytes_max) {
        large.go_to(item.index);
        let (found, most) = (item.text.len(), allowed.event_bytes_max);
        large.at(&item.pointer, item.said(&format!("has {found} bytes; at most {most} may be")));
    }
    if !large.is_empty() {
        return Err(too_large(&large));
    }
    let (mut events, mut flaws, mut foreign) = (Vec::new(), Flaws::default(), Flaws::default());
    for item in &batch.items {
        let reading = event::read(item, &mut flaws);
        if let Some(workspace) = reading.workspace.filter(|name| !token.sees(name)) {
            let text = format!("this token may not send for `{workspace}`");
            foreign.go_to(item.index);
            foreign.at(format!("{}/workspace_id", item.pointer), item.said(&text));
        }
        events.extend(reading.event);
    }
    if !foreign.is_empty() {
        return Err(refuse::flawed(403, "foreign-workspace", "Not permitted", &foreign));
    }
    if !flaws.is_empty() {
        return Err(refuse::unprocessable(&flaws));
    }
    Ok((events, batch.items.into_iter().map(|item| item.pointer).collect()))
}

fn too_large(flaws: &Flaws) -> Reply {
    refuse::flawed(413, "body-too-large", "The body is too large", flaws)
}

/// The events with the names and envelopes that they are stored under.
fn named(checked: Vec<Checked<'_>>, now: weir_common::time::UnixTime) -> Result<Vec<NewEvent>, ()> {
    let nameless = checked.iter().filter(|event| event.id.is_none()).count();
    let mut random = vec![0; nameless * event::ID_RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| {
        let fields = [("error", error.to_string().into())];
        logging::event(Level::Error, "the system has no random bytes", &fields);
    })?;
    let mut random = random.chunks_exact(event::ID_RANDOM_BYTES);
    let created_at = now.rfc3339();
    let stored = checked.into_iter().map(|event| {
        let chunk = if event.id.is_none() { random.next() } else { None };
        event.stored(chunk.unwrap_or_default(), now, &created_at)
    });
    Ok(stored.collect())
}

fn stored(ids: &[Arc<str>], new: &[bool]) -> Reply {
    let events = ids.iter().zip(new).map(|(id, new)| json!({"id": id.as_ref(), "new": new}));
    Reply::json(202, &json!({"events": events.collect::<Vec<Value>>()}))
}

fn conflict(places: &[usize], pointers: &[String]) -> Reply {
    let mut flaws = Flaws::default();
    for (index, pointer) in places.iter().filter_map(|place| Some((*place, pointers.get(*place)?)))
    {
        flaws.go_to((!pointer.is_empty()).then_some(index));
        flaws.at(format!("{pointer}/id"), "another event is stored, or sent, under this id");
    }
    refuse::flawed(409, "id-taken", "The id is taken", &flaws)
}
