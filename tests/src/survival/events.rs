//! The events that are posted: each is made from the seed, the number of its call and its place
//! there, so that a receiver can tell what its bytes must be.

use std::fmt;

use super::cast::{KINDS, WORKSPACES};
use crate::rng::SeededRng;

/// Which event this is: `data.mark` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// The number of the call that posts it.
    pub call: u64,
    /// Its place there.
    pub nth: u64,
}

impl fmt::Display for Mark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.call, self.nth)
    }
}

impl Mark {
    /// A number of its own, near enough.
    pub fn number(self) -> u64 {
        self.call.wrapping_mul(101).wrapping_add(self.nth)
    }

    /// The mark that a body carries.
    pub fn of(body: &str) -> Option<Self> {
        let (_, rest) = body.split_once("\"mark\":\"")?;
        let (call, nth) = rest.split_once('"')?.0.split_once('.')?;
        Some(Self { call: call.parse().ok()?, nth: nth.parse().ok()? })
    }
}

/// An event, as it is posted.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its workspace, by its place.
    pub workspace: usize,
    /// Its type, by its place.
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
        // Written as no library would: what is sent is what came, byte for byte.
        let data = format!(
            "{{ \"mark\":\"{mark}\",  \"n\":1.50e+1, \"name\":\"\\u00e9é\\/\", \"pad\":\"{}\"}}",
            "x".repeat(pad as usize)
        );
        Self { workspace, kind, data }
    }

    /// What is posted for it.
    pub fn posted(&self, id: Option<&str>) -> String {
        let id = id.map(|id| format!("\"id\":\"{id}\",")).unwrap_or_default();
        let (kind, workspace) = (KINDS[self.kind], WORKSPACES[self.workspace]);
        format!(
            "{{{id}\"type\":\"{kind}\",\"workspace_id\":\"{workspace}\",\
             \"tenant_id\":\"tn_1\",\"data\":{}}}",
            self.data
        )
    }

    /// What must arrive, where the dispatcher gave it this id and this time.
    pub fn delivered(&self, id: &str, created_at: &str) -> String {
        let (kind, workspace) = (KINDS[self.kind], WORKSPACES[self.workspace]);
        format!(
            "{{\"id\":\"{id}\",\"type\":\"{kind}\",\"workspace_id\":\"{workspace}\",\
             \"tenant_id\":\"tn_1\",\"created_at\":\"{created_at}\",\"data\":{}}}",
            self.data
        )
    }
}

/// The id that is posted with an event, where its call gives ids.
pub fn given_id(mark: Mark) -> String {
    format!("evt_given_{}_{}", mark.call, mark.nth)
}
