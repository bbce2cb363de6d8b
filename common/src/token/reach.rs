//! Which workspaces a token reaches. (core)

/// Whether a token reaches `workspace`: one with a workspace claim reaches exactly those in it, one
/// without those whose `organisation`, by the directory, is in its organisation claim. A claim is
/// `None` if the token lacks it.
pub fn reaches<'d>(
    workspaces: Option<&[Box<str>]>,
    organisations: Option<&[Box<str>]>,
    workspace: &str,
    organisation: impl FnOnce() -> Option<&'d str>,
) -> bool {
    let has = |all: &[Box<str>], name: &str| all.iter().any(|one| **one == *name);
    match (workspaces, organisations) {
        (Some(all), _) => has(all, workspace),
        (None, Some(all)) => organisation().is_some_and(|own| has(all, own)),
        (None, None) => false,
    }
}
