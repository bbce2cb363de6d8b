//! What runs apart from requests: the admin listener, background tasks, persistence, upgrades.

pub mod admin;
pub mod background;
pub mod explain;
pub mod persistence;
pub mod systemd;
pub mod upgrade;
pub mod warnings;
pub mod watch;
