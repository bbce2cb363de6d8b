//! How an operator runs the gateway: files, flags, signals and the admin listener.

mod admin;
mod boosts;
mod commands;
mod diagnostics;
mod logging;
mod reloading;
mod stopping;
mod tunnels;
mod upgrading;

use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway;

/// A folder with a configuration and a directory, for commands that need no running gateway.
fn folder_of(config: &Config, directory: &str) -> Folder {
    let folder = Folder::new();
    folder.write(gateway::CONFIG, &config.to_string());
    folder.write(gateway::DIRECTORY, directory);
    folder
}

/// A folder with the default files.
fn folder() -> Folder {
    folder_of(&Config::default(), DIRECTORY)
}
