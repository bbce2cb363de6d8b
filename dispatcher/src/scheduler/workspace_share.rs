//! Limits the attempts of one workspace beyond the first of each of its webhooks, and parks the
//! endpoints that wait for this share. (core)
//!
//! # Invariants
//!
//! 1. While another workspace has attempts in flight, a workspace has at most an eighth of the free
//!    slots for attempts beyond the first of each webhook. So some slots stay free, whatever the
//!    number of greedy workspaces and the history of their receivers: ten of them settle at one
//!    eighteenth of all slots each.
//! 2. A parked endpoint is unparked as soon as its workspace may start more, whichever attempt
//!    ended; endpoints of one workspace take turns.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::domain::id::EndpointId;
use crate::scheduler::load::Load;

/// The share of free slots, in eighths, for a workspace's attempts beyond first ones. Twenty
/// webhooks with 17 attempts each are within it on an otherwise idle dispatcher.
const SHARE: usize = 1;

/// The attempts in flight of a workspace.
#[derive(Debug, Default)]
struct Share {
    load: Load,
    /// Webhooks with attempts in flight.
    webhooks: usize,
    /// Parked endpoints.
    endpoints: BTreeSet<EndpointId>,
    /// The endpoint that was unparked last.
    last: Option<EndpointId>,
}

impl Share {
    fn beyond_first(&self) -> Load {
        Load { attempts: self.load.attempts - self.webhooks, ..self.load }
    }

    /// The endpoint after the one that was unparked last.
    fn next_endpoint(&mut self) -> Option<EndpointId> {
        let after = |last: EndpointId| {
            self.endpoints.range(EndpointId(last.0.saturating_add(1))..).next().copied()
        };
        let endpoint = self.last.and_then(after).or_else(|| self.endpoints.first().copied())?;
        self.endpoints.remove(&endpoint);
        self.last = Some(endpoint);
        Some(endpoint)
    }
}

/// The shares of all workspaces with attempts in flight.
#[derive(Debug, Default)]
pub(super) struct Shares {
    workspaces: HashMap<Arc<str>, Share>,
    /// Workspaces with parked endpoints, by their attempts beyond first ones.
    waiting: BTreeSet<(usize, Arc<str>)>,
}

impl Shares {
    /// Counts a started attempt: the first of its webhook, or a further one.
    pub(super) fn started(&mut self, workspace: &Arc<str>, bytes: usize, first: bool) {
        self.change(workspace, |share| {
            share.load = share.load.plus(bytes);
            share.webhooks += usize::from(first);
        });
    }

    /// Counts an ended attempt: the last of its webhook, or one of several.
    pub(super) fn ended(&mut self, workspace: &Arc<str>, bytes: usize, last: bool) {
        self.change(workspace, |share| {
            share.load = share.load.minus(bytes);
            share.webhooks -= usize::from(last);
        });
    }

    /// Whether a workspace has used up its share of `free`, while others have attempts in flight.
    pub(super) fn is_used_up(&self, workspace: &str, free: Load) -> bool {
        let share = self.workspaces.get(workspace).filter(|_| self.workspaces.len() > 1);
        share.is_some_and(|share| share.beyond_first().reaches(SHARE, free))
    }

    /// Parks an endpoint until the workspace may start more.
    pub(super) fn park(&mut self, workspace: &Arc<str>, endpoint: EndpointId) {
        self.change(workspace, |share| {
            share.endpoints.insert(endpoint);
        });
    }

    /// Unparks an endpoint whose workspace may start more with `free` slots.
    pub(super) fn unpark(&mut self, free: Load) -> Option<EndpointId> {
        let beyond_first = |attempts| Load { attempts, bytes: 0 };
        let mut fewest = self.waiting.iter().take_while(|(attempts, _)| {
            self.workspaces.len() == 1 || !beyond_first(*attempts).reaches(SHARE, free)
        });
        let (_, workspace) = fewest.find(|(_, one)| !self.is_used_up(one, free))?;
        let workspace = workspace.clone();
        let mut endpoint = None;
        self.change(&workspace, |share| endpoint = share.next_endpoint());
        endpoint
    }

    /// Updates a workspace. One without attempts is removed with its parked endpoints: each was
    /// served again when its last attempt ended.
    fn change(&mut self, workspace: &Arc<str>, change: impl FnOnce(&mut Share)) {
        let share = self.workspaces.entry(workspace.clone()).or_default();
        if !share.endpoints.is_empty() {
            self.waiting.remove(&(share.beyond_first().attempts, workspace.clone()));
        }
        change(share);
        if share.load.attempts == 0 {
            self.workspaces.remove(workspace);
        } else if !share.endpoints.is_empty() {
            self.waiting.insert((share.beyond_first().attempts, workspace.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Load = Load { attempts: 32, bytes: usize::MAX / 8 };

    fn free(attempts: usize) -> Load {
        Load { attempts, ..FREE }
    }

    #[test]
    fn a_workspace_has_an_eighth_beside_first_attempts_unless_it_is_alone() {
        let (greedy, other) = (Arc::from("ws_greedy"), Arc::from("ws_other"));
        let mut shares = Shares::default();
        (0..9).for_each(|nth| shares.started(&greedy, 0, nth < 5));
        assert!(!shares.is_used_up(&greedy, FREE), "no other workspace has attempts in flight");
        shares.started(&other, 0, true);
        assert!(shares.is_used_up(&greedy, FREE));
        assert!(!shares.is_used_up(&greedy, free(33)));
        assert!(!shares.is_used_up(&other, FREE));
        shares.ended(&greedy, 0, false);
        assert!(!shares.is_used_up(&greedy, FREE));
    }

    #[test]
    fn bytes_are_shared_like_attempts() {
        let (greedy, other) = (Arc::from("ws_greedy"), Arc::from("ws_other"));
        let mut shares = Shares::default();
        shares.started(&greedy, 800, true);
        shares.started(&other, 1, true);
        let left = |bytes| Load { attempts: 32, bytes };
        assert!(shares.is_used_up(&greedy, left(6_400)));
        assert!(!shares.is_used_up(&greedy, left(6_401)));
        shares.park(&greedy, EndpointId(1));
        assert_eq!(shares.unpark(left(6_400)), None);
        assert_eq!(shares.unpark(left(6_401)), Some(EndpointId(1)));
    }

    #[test]
    fn an_endpoint_is_unparked_when_any_slots_are_released() {
        let (greedy, other) = (Arc::from("ws_greedy"), Arc::from("ws_other"));
        let mut shares = Shares::default();
        (0..5).for_each(|nth| shares.started(&greedy, 0, nth == 0));
        shares.started(&other, 0, true);
        shares.park(&greedy, EndpointId(7));
        shares.park(&greedy, EndpointId(7));
        assert_eq!(shares.unpark(FREE), None);
        assert_eq!(shares.unpark(free(33)), Some(EndpointId(7)));
        assert_eq!(shares.unpark(free(33)), None, "it was unparked");

        shares.park(&greedy, EndpointId(7));
        shares.ended(&other, 0, true);
        assert_eq!(shares.unpark(FREE), Some(EndpointId(7)), "it is alone");
    }

    #[test]
    fn endpoints_take_turns_and_the_workspace_with_the_fewest_attempts_is_first() {
        let (greedy, modest) = (Arc::from("ws_greedy"), Arc::from("ws_modest"));
        let mut shares = Shares::default();
        (0..4).for_each(|nth| shares.started(&greedy, 0, nth == 0));
        (0..2).for_each(|nth| shares.started(&modest, 0, nth == 0));
        for endpoint in [1, 2, 3] {
            shares.park(&greedy, EndpointId(endpoint));
        }
        shares.park(&modest, EndpointId(9));
        assert_eq!(shares.unpark(FREE), Some(EndpointId(9)));
        assert_eq!(shares.unpark(FREE), Some(EndpointId(1)));
        shares.park(&greedy, EndpointId(1));
        let rest: Vec<_> = std::iter::from_fn(|| shares.unpark(FREE)).collect();
        assert_eq!(rest, [EndpointId(2), EndpointId(3), EndpointId(1)]);
    }

    #[test]
    fn a_workspace_without_attempts_is_evicted() {
        let one = Arc::from("ws_one");
        let mut shares = Shares::default();
        shares.started(&one, 10, true);
        shares.park(&one, EndpointId(1));
        shares.ended(&one, 10, true);
        assert!(shares.workspaces.is_empty() && shares.waiting.is_empty());
    }
}
