//! Checks what is written of attempts: where each went, what was sent, and what its receiver
//! answered; and that nothing is kept that must be masked.

use std::str;

use rusqlite::{Connection, OptionalExtension};
use weir_dispatcher::domain::id::DeliveryId;
use weir_dispatcher::domain::outcome::{Failure, Outcome};
use weir_dispatcher::domain::transcript::{Headers, Transcript};

use crate::model::flight::Sent;
use crate::model::{Model, violated};
use crate::orders::CUSTOM_VALUE;

const WRITTEN: &str = "SELECT e.url, t.record FROM attempts a \
    JOIN endpoints e ON e.id = a.endpoint \
    LEFT JOIN transcripts t ON t.attempt = a.id WHERE a.id = ?1";

/// Transcripts whose attempt is gone.
const LEFT_OVER: &str = "SELECT t.attempt FROM transcripts t LEFT JOIN attempts a \
    ON a.id = t.attempt WHERE a.id IS NULL LIMIT 1";

/// What takes the place of a secret.
const MASKED: &str = "***";

/// The shortest part of a signature that counts as one.
const SIGNATURE_MIN: usize = 16;

/// Headers that are kept as they were sent.
const PLAIN: [&str; 3] = ["content-type", "webhook-id", "webhook-timestamp"];

impl Model {
    /// Checks what was written of an attempt that is in flight in the model.
    pub(crate) fn is_as_sent(
        &mut self,
        conn: &Connection,
        attempt: i64,
        id: DeliveryId,
        outcome: &Outcome,
    ) {
        let Some(delivery) = self.deliveries.get(&id) else { return };
        let Some(flight) = &delivery.flight else { return };
        let mut query = conn.prepare_cached(WRITTEN).unwrap();
        let row = query.query_row([attempt], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?))
        });
        let Some((url, record)) = row.optional().unwrap() else {
            violated("true", format!("an attempt of {id:?} has no endpoint on disk"))
        };
        let called = &self.urls[flight.url];
        if url != *called {
            violated("true", format!("{id:?}: expected an attempt at {called}, found {url}"));
        }
        let keeps_all = self.hooks[&delivery.hook].options.all_answers;
        let must = match outcome {
            Outcome::Failed(Failure::Status(_)) => Some(true),
            Outcome::Delivered { .. } => Some(keeps_all),
            // Whether the request was sent before it failed is known to the network alone.
            Outcome::Failed(_) | Outcome::Internal(_) => None,
        };
        if must.is_some_and(|must| must != record.is_some()) {
            let found = if record.is_some() { "an answer" } else { "none" };
            violated("answers", format!("{id:?} ends with {outcome}, and {found} is kept"));
        }
        if let Some(record) = record {
            self.counts.transcripts += 1;
            let Some(found) = Transcript::of_stored(&record) else {
                violated("answers", format!("the transcript of {id:?} cannot be read"))
            };
            is_masked(id, &found, &flight.sent);
            is_true(id, &found, &flight.sent);
            if found.answer.is_none() {
                // It may repeat secrets that its webhook has since it started.
                self.unanswered.insert(id);
            }
        }
    }

    /// Checks that no transcript outlives its attempt.
    pub(crate) fn none_left_over(&self, conn: &Connection) {
        let mut query = conn.prepare_cached(LEFT_OVER).unwrap();
        let found = query.query_row([], |row| row.get::<_, i64>(0)).optional().unwrap();
        if let Some(id) = found {
            violated("memory", format!("the transcript of attempt {id} outlives it"));
        }
    }
}

/// Checks that a transcript has no secret of its webhook, no signature and no custom value.
fn is_masked(id: DeliveryId, found: &Transcript, sent: &Sent) {
    let headers =
        |headers: &Headers| headers.fields.clone().into_iter().flat_map(<[String; 2]>::from);
    let mut texts: Vec<String> = headers(&found.request).collect();
    if let Some(answer) = &found.answer {
        texts.extend(headers(&answer.headers));
        texts.push(String::from_utf8_lossy(&answer.body).into_owned());
    }
    let signatures = sent.headers.iter().filter(|(name, _)| name.as_str().ends_with("-signature"));
    let signatures: Vec<&str> = signatures
        .flat_map(|(_, value)| value.to_str().unwrap().split([',', ' ']))
        .map(|part| part.split_once("v1=").map_or(part, |(_, hex)| hex))
        .filter(|part| part.len() >= SIGNATURE_MIN)
        .collect();
    assert!(signatures.len() >= 2, "an attempt is signed in both schemes: {:?}", sent.headers);
    for text in texts {
        let shown = ["whsec_", CUSTOM_VALUE].into_iter().chain(signatures.iter().copied());
        if let Some(secret) = shown.into_iter().find(|secret| text.contains(secret)) {
            violated(
                "masked",
                format!("what is kept of an attempt of {id:?} has `{secret}`: {text}"),
            );
        }
    }
}

/// Checks that a transcript has what was sent and answered, but for what is masked.
fn is_true(id: DeliveryId, found: &Transcript, sent: &Sent) {
    for (name, value) in &sent.headers {
        let mut named = found.request.fields.iter().filter(|(found, _)| *found == name.as_str());
        let right = match named.next() {
            Some((_, kept)) if PLAIN.contains(&name.as_str()) => *kept == *value.to_str().unwrap(),
            Some((_, kept)) => is_part_of(kept.as_bytes(), value.as_bytes()),
            None => false,
        };
        if !right {
            violated("answers", format!("{id:?}: the header `{name}` that was sent is not kept"));
        }
    }
    let Some(answer) = &found.answer else { return };
    let Some(body) = &sent.answered else {
        violated("answers", format!("{id:?} has the answer of a receiver that gave none"))
    };
    if !is_part_of(&answer.body, body) || (answer.body.is_empty() && !body.is_empty()) {
        let kept = String::from_utf8_lossy(&answer.body);
        violated("answers", format!("{id:?}: the answer kept is not its receiver's: {kept}"));
    }
}

/// Whether `kept` is `whole`, up to some length, with parts of it masked.
fn is_part_of(kept: &[u8], whole: &[u8]) -> bool {
    let (kept, whole) = (String::from_utf8_lossy(kept), String::from_utf8_lossy(whole));
    let mut rest = &*whole;
    for (nth, piece) in kept.split(MASKED).enumerate() {
        let at = if nth == 0 { rest.starts_with(piece).then_some(0) } else { rest.find(piece) };
        let Some(at) = at else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}
