//! What the command lines of both programs share: the source of the configuration, output, exit
//! codes.
//!
//! Not here: the commands.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use tokio::runtime::{Builder, Runtime};

use crate::config::document::{Diagnostic, lines};
use crate::config::file::ConfigFile;
use crate::config::files;
use crate::secret::Secret;

/// The configuration, or the command line, is wrong (sysexits.h: EX_USAGE).
pub const EXIT_USAGE: u8 = 64;

/// Something outside failed: an address, a file, a server.
pub const EXIT_FAILURE: u8 = 1;

/// Where the configuration is.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The configuration; without it the file in config/ that is named for the program
    #[arg(long, short)]
    pub config: Option<PathBuf>,
    /// The built-in example in place of a configuration
    #[arg(long, conflicts_with = "config")]
    pub demo: bool,
}

impl ConfigArgs {
    /// The file that was named, the built-in example, or else the file at `usual`.
    #[must_use]
    pub fn file(&self, usual: &'static str) -> ConfigFile {
        if self.demo {
            ConfigFile::built_in(usual)
        } else {
            ConfigFile::new(self.config.clone(), usual)
        }
    }
}

/// Prints a result, and returns the exit code of success.
#[must_use]
pub fn print(text: &str) -> u8 {
    let mut out = io::stdout();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            fail(EXIT_FAILURE, &format!("cannot write to standard output: {why}"))
        }
        // The reader of a pipe that is closed has read enough.
        _ => 0,
    }
}

/// Prints why a command failed, and returns `code`.
#[must_use]
pub fn fail(code: u8, text: &str) -> u8 {
    print_error(text);
    code
}

/// Prints what works now, and may not do what its reader expects.
pub fn warn(warnings: impl Iterator<Item = impl Display>) {
    for warning in warnings {
        print_error(&format!("warning: {warning}"));
    }
}

fn print_error(text: &str) {
    // One write, so that lines of two processes on one terminal do not mix. It fails where standard
    // error is closed, and then no line is read.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints the errors of a configuration, and returns the exit code.
#[must_use]
pub fn refuse(diagnostics: &[Diagnostic]) -> u8 {
    fail(EXIT_USAGE, &lines(diagnostics))
}

/// Prints the result of a command, if it has one, and returns the exit code.
#[must_use]
pub fn report(result: Result<String, String>) -> u8 {
    match result {
        Ok(text) if text.is_empty() => 0,
        Ok(text) => print(&text),
        Err(why) => fail(EXIT_FAILURE, &why),
    }
}

/// Prints the completion script of a program.
#[must_use]
pub fn completions<C: CommandFactory>(shell: Shell) -> u8 {
    let (mut command, mut script) = (C::command(), Vec::new());
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

/// A runtime for one command.
///
/// # Errors
///
/// If it cannot be created.
pub fn runtime() -> Result<Runtime, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|why| format!("cannot start: {why}"))
}

/// The secret in the first line of a file that the command line names.
///
/// # Errors
///
/// If it cannot be read, or its first line is empty.
pub fn secret(file: &Path) -> Result<Secret<String>, String> {
    files::first_line(file).map_err(|why| format!("cannot read {}: {why}", file.display()))
}
