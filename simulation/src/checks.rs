//! The promises, each judged by what receivers, customers and the disk have seen.
//!
//! `gate` judges each start, `turns` which of several starts, `replies` each answer of the store,
//! `ledger` what is on disk, `upkeep` what jobs and sweeps leave there, `pages` what customers read
//! of it, `mails` what the mail server sees, `secrets` the log, `judge` each
//! moment at which all is idle.

mod gate;
mod judge;
pub(crate) mod ledger;
mod mails;
mod pages;
mod replies;
pub(crate) mod secrets;
mod turns;
mod upkeep;
