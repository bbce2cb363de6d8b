//! The events that are posted: each is derived from the seed, the number of its call and its index
//! in it, so that a receiver knows the expected bytes.

use std::fmt;

use super::cast::{KINDS, WORKSPACES};
use crate::rng::SeededRng;

/// Identifies an event; it is in the body as `data.mark`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// The number of the call that posts it.
    pub call: u64,
    /// Its index in that call.
    pub nth: u64,
}

impl fmt::Display for Mark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.call, self.nth)
    }
}

impl Mark {
    /// A number for this event, unique except in calls of more than 101 events.
    pub fn number(self) -> u64 {
        self.call.wrapping_mul(101).wrapping_add(self.nth)
    }

    /// The mark in a body.
    pub fn of(body: &str) -> Option<Self> {
        let (_, rest) = body.split_once("\"mark\":\"")?;
        let (call, nth) = rest.split_once('"')?.0.split_once('.')?;
        Some(Self { call: call.parse().ok()?, nth: nth.parse().ok()? })
    }
}

/// An event, as it is posted.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its workspace, an index of [`WORKSPACES`].
    pub workspace: usize,
    /// Its type, an index of [`KINDS`].
    pub kind: usize,
    /// The bytes of its `data`.
    pub data: String,
}

impl Event {
    /// The event of a mark.
    pub fn new(seed: u64, mark: Mark) -> Self {
        let mut rng = SeededRng::stream(seed, mark.number());
        let workspace = rng.below(WORKSPACES.len() as u64) as usize;
        let kind = rng.below(KINDS.len() as u64) as usize;
        let pad = match rng.below(100) {
            0..90 => rng.below(600),
            90..99 => rng.below(8_000),
            _ => rng.below(100_000),
        };
        // Formatted as no JSON library would: it must be delivered byte for byte.
        let data = format!(
            "{{ \"mark\":\"{mark}\",  \"n\":1.50e+1, \"name\":\"\\u00e9é\\/\", \"pad\":\"{}\"}}",
            "x".repeat(pad as usize)
        );
        Self { workspace, kind, data }
    }

    /// The JSON that is posted for it.
    pub fn posted(&self, id: Option<&str>) -> String {
        let id = id.map(|id| format!("\"id\":\"{id}\",")).unwrap_or_default();
        let (kind, workspace) = (KINDS[self.kind], WORKSPACES[self.workspace]);
        format!(
            "{{{id}\"type\":\"{kind}\",\"workspace_id\":\"{workspace}\",\
             \"tenant_id\":\"tn_1\",\"data\":{}}}",
            self.data
        )
    }

    /// The expected body of its delivery, with the id and the time that the dispatcher assigned.
    pub fn delivered(&self, id: &str, created_at: &str) -> String {
        let (kind, workspace) = (KINDS[self.kind], WORKSPACES[self.workspace]);
        format!(
            "{{\"id\":\"{id}\",\"type\":\"{kind}\",\"workspace_id\":\"{workspace}\",\
             \"tenant_id\":\"tn_1\",\"created_at\":\"{created_at}\",\"data\":{}}}",
            self.data
        )
    }
}

/// The id that is posted with an event, if its call has ids.
pub fn given_id(mark: Mark) -> String {
    format!("evt_given_{}_{}", mark.call, mark.nth)
}
