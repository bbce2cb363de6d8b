//! Decides which workspaces share connections to one origin. (core)
//!
//! A receiver that answers and then works may hold the next request on that connection, which looks
//! as if the receiver of that request were slow. So where an attempt has no response on a
//! connection that another workspace used before, both are suspects: they do not share.
//!
//! # Invariants
//!
//! 1. A workspace is a suspect for [`SUSPECT_FOR`], and for [`NEW_FOR`] if that happens again
//!    before an answer refutes it. After its own connection was silent to it, for [`NEW_FOR`].
//! 2. Connections of a workspace serve others one at a time until they answer: it makes one of
//!    their attempts late before it is a suspect. Only an answer to another one refutes that.
//! 3. A workspace without a response since its last turn makes no other a suspect: one whose
//!    receiver is silent stops no sharing among others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use weir_common::time::Tick;

/// One silence proves little: receivers have timeouts of their own.
pub(crate) const SUSPECT_FOR: Duration = Duration::from_secs(60);

/// A receiver that holds the next request does so after each answer.
pub(crate) const NEW_FOR: Duration = Duration::from_secs(3_600);

/// A workspace, or none.
pub(crate) type Workspace = Option<Arc<str>>;

/// One attempt's use of a connection that has served another attempt before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// The workspace of the attempt before.
    pub(super) before: Workspace,
    /// The workspace of this attempt.
    pub(super) user: Workspace,
}

impl Turn {
    /// Whether one workspace uses its own connection.
    pub(super) fn is_own(&self) -> bool {
        self.before == self.user
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// With a response.
    Answered,
    /// Without one, at the deadline or before.
    Unanswered,
    /// The connection was closed as the request was sent, which shows nothing.
    Closed,
}

/// Which workspaces share connections to one origin.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Workspaces of which a connection serves another one, without an answer so far.
    lending: HashSet<Workspace>,
    /// Workspaces since whose turn without a response no answer has refuted that.
    suspects: HashMap<Workspace, Suspicion>,
}

/// Why a workspace is suspected, since when, and for how long it does not share.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    role: Role,
    since: Tick,
    lasts: Duration,
    /// Whether it was answered since: the next turn without a response is its first again.
    refuted: bool,
}

/// The part of a workspace in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It had used the connection before.
    Before,
    /// It used the connection.
    User,
}

impl Sharing {
    /// Whether a workspace reuses connections, and leaves its own to be reused.
    pub(super) fn shares(&self, workspace: &Workspace, now: Tick) -> bool {
        self.suspects.get(workspace).is_none_or(|one| now.since(one.since) >= one.lasts)
    }

    /// Whether a turn may begin, between two workspaces that share.
    pub(super) fn admits(&self, turn: &Turn) -> bool {
        turn.is_own() || !self.lending.contains(&turn.before)
    }

    /// Begins a turn.
    pub(super) fn begin(&mut self, turn: &Turn) {
        if !turn.is_own() {
            self.lending.insert(turn.before.clone());
        }
    }

    /// Ends a turn.
    pub(super) fn end(&mut self, turn: &Turn, end: TurnEnd, now: Tick) {
        if !turn.is_own() {
            self.lending.remove(&turn.before);
        }
        match end {
            TurnEnd::Answered => {
                self.answered(&turn.user, now);
                // An answer to a turn that began before the suspicion refutes nothing.
                if !turn.is_own() && self.shares(&turn.before, now) {
                    self.refute((&turn.before, Role::Before), now);
                }
            }
            TurnEnd::Unanswered if turn.is_own() => {
                self.suspect((&turn.before, Role::Before), NEW_FOR, now);
            }
            TurnEnd::Unanswered => {
                let is_likely = self.is_known(&turn.user);
                self.suspect((&turn.user, Role::User), SUSPECT_FOR, now);
                if !is_likely {
                    self.suspect((&turn.before, Role::Before), SUSPECT_FOR, now);
                }
            }
            TurnEnd::Closed => {}
        }
    }

    /// Notes a response to an attempt of a workspace, on any connection.
    pub(super) fn answered(&mut self, user: &Workspace, now: Tick) {
        self.refute((user, Role::User), now);
    }

    /// Removes what a workspace in this role is suspected of, or does so once that is over.
    fn refute(&mut self, (workspace, role): (&Workspace, Role), now: Tick) {
        let is_over = self.shares(workspace, now);
        let Some(one) = self.suspects.get_mut(workspace).filter(|one| one.role == role) else {
            return;
        };
        one.refuted = true;
        if is_over {
            self.suspects.remove(workspace);
        }
    }

    fn is_known(&self, workspace: &Workspace) -> bool {
        self.suspects.get(workspace).is_some_and(|one| !one.refuted)
    }

    /// Suspects a workspace for a time, or for [`NEW_FOR`] if it was suspected before.
    fn suspect(&mut self, (workspace, role): (&Workspace, Role), lasts: Duration, now: Tick) {
        if self.shares(workspace, now) {
            let lasts = if self.is_known(workspace) { NEW_FOR } else { lasts };
            let suspicion = Suspicion { role, since: now, lasts, refuted: false };
            self.suspects.insert(workspace.clone(), suspicion);
        }
    }

    /// The number of suspects.
    pub(super) fn suspects(&self) -> usize {
        self.suspects.len()
    }

    /// Forgets suspects that share again.
    pub(super) fn forget(&mut self, now: Tick) {
        self.suspects.retain(|_, one| now.since(one.since) < one.lasts);
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.lending.is_empty() && self.suspects.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs turns at one origin. Each line is the time in seconds, the workspace before, the user,
    /// and `answered` or `silent`; or the user and `new`, for a response on a new connection; or
    /// else the time and the workspaces that do not share then.
    fn check(lines: &str) {
        let mut sharing = Sharing::default();
        for line in lines.split(", ") {
            let words: Vec<&str> = line.split(' ').collect();
            let now = Tick(words[0].parse::<u64>().expect("seconds") * 1_000_000);
            let named = |name: &str| Some(Arc::from(name));
            if let [_, user, "new"] = words[..] {
                sharing.answered(&named(user), now);
                continue;
            }
            let end = match words.last().copied() {
                Some("answered") => TurnEnd::Answered,
                Some("silent") => TurnEnd::Unanswered,
                _ => {
                    let apart = ["a", "b", "c", "m"];
                    let apart = apart.into_iter().filter(|one| !sharing.shares(&named(one), now));
                    assert_eq!(apart.collect::<Vec<_>>(), words[1..], "{line}");
                    continue;
                }
            };
            let turn = Turn { before: named(words[1]), user: named(words[2]) };
            assert!(sharing.admits(&turn), "{line}");
            sharing.begin(&turn);
            assert_eq!(sharing.admits(&turn), words[1] == words[2], "{line}: one at a time");
            sharing.end(&turn, end, now);
        }
    }

    #[test]
    fn a_workspace_that_holds_the_next_request_is_a_suspect_for_an_hour_the_second_time() {
        check("10 m a silent, 69 a m, 70, 80 c a answered, 90 m b silent, 91 b m, 150 m, 3689 m");
        check("10 m a silent, 90 m b silent, 3690, 3700 m c silent, 3760 m, 7299 m, 7300");
    }

    #[test]
    fn answers_to_the_workspace_itself_refute_no_suspicion_that_it_holds_requests_of_others() {
        check("10 m a silent, 80 m m answered, 81 c m answered, 90 m b silent, 91 b m, 3689 m");
        check("10 m a silent, 80 m b answered, 90 m b silent, 91 b m, 150");
        check("10 m m silent, 3610 m m answered, 3620 m a silent, 3690 m, 7219 m, 7220");
    }

    #[test]
    fn a_workspace_that_was_answered_on_a_new_connection_leaves_the_blame_to_the_one_before() {
        check("10 m a silent, 20 a new, 80 m a silent, 81 a m, 140 m, 3679 m, 3680");
        check("10 m a silent, 80 a new, 85 b a silent, 86 a b, 145");
    }

    #[test]
    fn a_workspace_that_holds_its_own_request_is_a_suspect_for_an_hour() {
        check("10 m m silent, 3609 m, 3610");
    }

    #[test]
    fn a_silent_workspace_makes_one_other_a_suspect_until_it_is_answered() {
        check("10 a m silent, 11 b m silent, 12 c m silent, 13 a m, 80 b m silent, 81 m");
        check(
            "10 a m silent, 3800 b m silent, 3801 m, 8000 c m answered, 8001 b m silent, 8002 b m",
        );
    }

    #[test]
    fn an_answer_refutes_a_suspicion_that_is_over() {
        check(
            "10 a b silent, 20 a b answered, 69 a b, 70 a c answered, 80 a c silent, 139 a c, 140",
        );
    }
}
