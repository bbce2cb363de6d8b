//! Checks each promise by what receivers, customers and the disk have seen.
//!
//! `gate` checks each start, `turns` the order of starts, `paces` all limits but an endpoint's,
//! `replies` each reply of the store and `owners` what follows from it, `disabled` what owners
//! disable, `ledger` what is on disk, `attempts` what is there of each attempt, `operator` the
//! events for operators, `upkeep` what jobs and sweeps leave, `pages` the lists that customers
//! read, `mails` what the mail server sees, `secrets` the log, `judge` each moment at which
//! everything is idle.

mod attempts;
mod disabled;
mod gate;
mod judge;
pub(crate) mod ledger;
mod mails;
mod operator;
mod owners;
mod paces;
mod pages;
mod replies;
pub(crate) mod secrets;
mod turns;
mod upkeep;
