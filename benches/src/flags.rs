//! Reads `--name value` and `--name` from the command line, and refuses unknown arguments.

use std::path::PathBuf;
use std::str::FromStr;

/// The command line, taken apart flag by flag.
pub struct Flags {
    usage: &'static str,
    args: Vec<String>,
}

impl Flags {
    /// What this process was started with.
    #[must_use]
    pub fn from_env(usage: &'static str) -> Self {
        Self { usage, args: std::env::args().skip(1).collect() }
    }

    /// Whether `name` was given; takes it away.
    pub fn has(&mut self, name: &str) -> bool {
        let before = self.args.len();
        self.args.retain(|arg| arg != name);
        self.args.len() != before
    }

    /// The value after `name`, or `default`; takes both away.
    pub fn value<T: FromStr>(&mut self, name: &str, default: T) -> T {
        let Some(at) = self.args.iter().position(|arg| arg == name) else { return default };
        let mut taken = self.args.drain(at..(at + 2).min(self.args.len()));
        match taken.nth(1).map(|text| text.parse()) {
            Some(Ok(value)) => value,
            _ => fail(&format!("{name} needs a value\n{}", self.usage)),
        }
    }

    /// What is left, when it is exactly `N` words.
    #[must_use]
    pub fn rest<const N: usize>(self) -> [String; N] {
        match self.args.try_into() {
            Ok(words) => words,
            Err(args) => fail(&format!("not understood: {args:?}\n{}", self.usage)),
        }
    }
}

/// A program that was built beside this one.
#[must_use]
pub fn sibling(name: &str) -> PathBuf {
    std::env::current_exe().map(|path| path.with_file_name(name)).unwrap_or_else(|_| name.into())
}

/// Prints the reason on standard error and ends the process: a failed measurement yields no number.
pub fn fail(why: &str) -> ! {
    crate::lab::end_all();
    eprintln!("{why}");
    std::process::exit(1)
}
