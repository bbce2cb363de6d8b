//! Checks each promise by what receivers, customers and the disk have seen.
//!
//! `gate` checks each start, `turns` the order of starts, `replies` each reply of the store,
//! `disabled` what owners disable, `ledger` what is on disk, `upkeep` what jobs and sweeps leave there, `pages` the lists that
//! customers read, `mails` what the mail server sees, `secrets` the log, `judge` each moment at
//! which everything is idle.

mod disabled;
mod gate;
mod judge;
pub(crate) mod ledger;
mod mails;
mod pages;
mod replies;
pub(crate) mod secrets;
mod turns;
mod upkeep;
