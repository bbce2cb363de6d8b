//! What the pages of both programs have in common: their files, their headers, charts, words for
//! numbers, and what forms send.
//!
//! Invariant: a page has no script and no style in it, and its headers forbid any ([`reply`]).
//!
//! Not here: which pages there are (the dispatcher's `dashboard`).

pub mod assets;
pub mod form;
pub mod origin;
pub mod plot;
pub mod reply;
pub mod show;
