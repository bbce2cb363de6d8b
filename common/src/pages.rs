//! What the pages of both programs have in common: their files, their headers, charts, words for
//! numbers, what forms send; and the operators' pages, of which only the content differs.
//!
//! Invariant: a page has no script and no style in it, and its headers forbid any ([`reply`]).
//!
//! Not here: which pages there are (`admin`, and the dispatcher's `dashboard`).

pub mod assets;
pub mod form;
pub mod history;
pub mod origin;
pub mod plot;
pub mod reply;
pub mod screen;
pub mod show;
