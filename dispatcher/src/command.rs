//! The command line.

/// Delivers events to webhooks.
#[derive(Debug, clap::Parser)]
pub struct Command {}

impl Command {
    /// Does what was asked, and gives the exit code.
    #[must_use]
    pub fn execute(self) -> u8 {
        0
    }
}
