//! What each workspace has under way beside the first attempt of each of its webhooks, and which
//! endpoints wait because that is as much as it may have now.
//!
//! # Invariants
//!
//! 1. Attempts that a workspace has under way beside the first of each of its webhooks are no more
//!    than an eighth of the places that are free, while another workspace has any under way. So
//!    however many workspaces are greedy at once, whatever their receivers did last, some places
//!    stay free: of ten, each has one in eighteen.
//! 2. An endpoint that waits for this is called back as soon as its workspace may have more,
//!    whoever's
//!    attempt has ended; endpoints of one workspace take turns.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::domain::id::EndpointId;
use crate::scheduler::load::Load;

/// Of what is free, in eighths, for what one workspace has beside the first attempts of its
/// webhooks. Twenty webhooks of 17 attempts fit into it while all else is quiet.
const SHARE: usize = 1;

/// What a workspace has under way.
#[derive(Debug, Default)]
struct Share {
    load: Load,
    /// Webhooks that have something under way.
    webhooks: usize,
    /// Endpoints on which it could start more, if it had less.
    endpoints: BTreeSet<EndpointId>,
    /// The endpoint that was called back last.
    called: Option<EndpointId>,
}

impl Share {
    fn beside_first(&self) -> Load {
        Load { attempts: self.load.attempts - self.webhooks, ..self.load }
    }

    /// The endpoint after the one that was called back last.
    fn next_endpoint(&mut self) -> Option<EndpointId> {
        let after = |called: EndpointId| {
            self.endpoints.range(EndpointId(called.0.saturating_add(1))..).next().copied()
        };
        let endpoint = self.called.and_then(after).or_else(|| self.endpoints.first().copied())?;
        self.endpoints.remove(&endpoint);
        self.called = Some(endpoint);
        Some(endpoint)
    }
}

/// Of all workspaces that have anything under way.
#[derive(Debug, Default)]
pub(super) struct Shares {
    workspaces: HashMap<Arc<str>, Share>,
    /// Those of which endpoints wait, by the attempts that they have beside first ones.
    waiting: BTreeSet<(usize, Arc<str>)>,
}

impl Shares {
    /// Notes that an attempt of a workspace has started: the first of its webhook, or one more.
    pub(super) fn started(&mut self, workspace: &Arc<str>, bytes: usize, first: bool) {
        self.change(workspace, |share| {
            share.load = share.load.plus(bytes);
            share.webhooks += usize::from(first);
        });
    }

    /// Notes that an attempt of a workspace has ended: the last of its webhook, or one of several.
    pub(super) fn ended(&mut self, workspace: &Arc<str>, bytes: usize, last: bool) {
        self.change(workspace, |share| {
            share.load = share.load.minus(bytes);
            share.webhooks -= usize::from(last);
        });
    }

    /// Whether a workspace has as much under way as it may while others have something, too, where
    /// so much is free.
    pub(super) fn is_used_up(&self, workspace: &str, free: Load) -> bool {
        let share = self.workspaces.get(workspace).filter(|_| self.workspaces.len() > 1);
        share.is_some_and(|share| share.beside_first().reaches(SHARE, free))
    }

    /// Leaves an endpoint out, for this workspace of it, until that may have more.
    pub(super) fn park(&mut self, workspace: &Arc<str>, endpoint: EndpointId) {
        self.change(workspace, |share| {
            share.endpoints.insert(endpoint);
        });
    }

    /// Gives an endpoint whose workspace may have more again, where so much is free.
    pub(super) fn unpark(&mut self, free: Load) -> Option<EndpointId> {
        let beside_first = |attempts| Load { attempts, bytes: 0 };
        let mut fewest = self.waiting.iter().take_while(|(attempts, _)| {
            self.workspaces.len() == 1 || !beside_first(*attempts).reaches(SHARE, free)
        });
        let (_, workspace) = fewest.find(|(_, one)| !self.is_used_up(one, free))?;
        let workspace = workspace.clone();
        let mut endpoint = None;
        self.change(&workspace, |share| endpoint = share.next_endpoint());
        endpoint
    }

    /// Changes what is known of a workspace. One without attempts is forgotten, and with it the
    /// endpoints that wait: each had one of the attempts that have ended, and was looked at then.
    fn change(&mut self, workspace: &Arc<str>, change: impl FnOnce(&mut Share)) {
        let share = self.workspaces.entry(workspace.clone()).or_default();
        if !share.endpoints.is_empty() {
            self.waiting.remove(&(share.beside_first().attempts, workspace.clone()));
        }
        change(share);
        if share.load.attempts == 0 {
            self.workspaces.remove(workspace);
        } else if !share.endpoints.is_empty() {
            self.waiting.insert((share.beside_first().attempts, workspace.clone()));
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
        assert!(!shares.is_used_up(&greedy, FREE), "nobody else has anything under way");
        shares.started(&other, 0, true);
        assert!(shares.is_used_up(&greedy, FREE));
        assert!(!shares.is_used_up(&greedy, free(33)));
        assert!(!shares.is_used_up(&other, FREE));
        shares.ended(&greedy, 0, false);
        assert!(!shares.is_used_up(&greedy, FREE));
    }

    #[test]
    fn bytes_are_shared_as_attempts_are() {
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
    fn an_endpoint_is_called_back_when_places_are_free_again_whoever_had_them() {
        let (greedy, other) = (Arc::from("ws_greedy"), Arc::from("ws_other"));
        let mut shares = Shares::default();
        (0..5).for_each(|nth| shares.started(&greedy, 0, nth == 0));
        shares.started(&other, 0, true);
        shares.park(&greedy, EndpointId(7));
        shares.park(&greedy, EndpointId(7));
        assert_eq!(shares.unpark(FREE), None);
        assert_eq!(shares.unpark(free(33)), Some(EndpointId(7)));
        assert_eq!(shares.unpark(free(33)), None, "it was called back");

        shares.park(&greedy, EndpointId(7));
        shares.ended(&other, 0, true);
        assert_eq!(shares.unpark(FREE), Some(EndpointId(7)), "it is alone");
    }

    #[test]
    fn endpoints_of_a_workspace_take_turns_and_who_has_least_comes_first() {
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
    fn a_workspace_without_attempts_is_forgotten() {
        let one = Arc::from("ws_one");
        let mut shares = Shares::default();
        shares.started(&one, 10, true);
        shares.park(&one, EndpointId(1));
        shares.ended(&one, 10, true);
        assert!(shares.workspaces.is_empty() && shares.waiting.is_empty());
    }
}
