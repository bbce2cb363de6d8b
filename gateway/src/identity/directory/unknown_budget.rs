//! For whom a directory is asked, and what that may cost it.
//!
//! Whoever invents names has each of them asked about. A name that nobody has is charged to the
//! address that came with it; one that somebody has costs nothing, so that whoever calls for many
//! tenants from one address is never refused for it.

use weir_common::bucket;
use weir_common::time::Tick;

use crate::limit::memory::Store;
use crate::limit::{Ask, Quota};

/// Names that nobody knows, which an address may have asked about at once: a script with the
/// wrong list finds out, and a search through all names does not get far.
pub const UNKNOWN_MAX: u32 = 60;

/// The same, each second from then on.
const UNKNOWN_PER_SECOND: u32 = 1;

/// What the state of that is found by: no limit's name has a space in it.
pub const UNKNOWN_LIMIT: &str = "unknown names";

/// How many names an address may still have asked about that nobody knows.
pub const UNKNOWN_QUOTA: Quota =
    Quota::Bucket(bucket::Quota { rate: UNKNOWN_PER_SECOND, burst: UNKNOWN_MAX });

/// For whom something is asked.
pub struct Asker<'s> {
    /// What its address may yet ask about that nobody knows. The operator may ask about anything.
    pub allowance: Option<(&'s Store, Ask)>,
    /// When the request came.
    pub now: Tick,
}

impl Asker<'_> {
    /// Whether the directory may be asked about a name of which nothing is remembered.
    pub(super) fn may_ask(&self) -> bool {
        let Some((store, ask)) = &self.allowance else { return true };
        // A process whose place was taken has but a few requests left, and need not know.
        !store.standing(ask, self.now).is_ok_and(|standing| standing.remaining == 0)
    }

    /// The directory was asked about a name that nobody has.
    pub(super) fn found_nobody(&self) {
        if let Some((store, ask)) = &self.allowance {
            // Whether it fits was asked before; of a few at one time, the last may not.
            let _ = store.judge(std::slice::from_ref(ask), self.now);
        }
    }
}
