//! Reads `--name value` and `--name` from the command line, and refuses unknown arguments.

use std::path::PathBuf;
use std::str::FromStr;

/// The arguments of the command line; parsing a flag removes it.
pub struct Flags {
    usage: &'static str,
    args: Vec<String>,
}

impl Flags {
    /// The arguments of this process.
    #[must_use]
    pub fn from_env(usage: &'static str) -> Self {
        Self { usage, args: std::env::args().skip(1).collect() }
    }

    /// Whether `name` was given; removes it.
    pub fn has(&mut self, name: &str) -> bool {
        let before = self.args.len();
        self.args.retain(|arg| arg != name);
        self.args.len() != before
    }

    /// The value after `name`, or `default`; removes both.
    pub fn value<T: FromStr>(&mut self, name: &str, default: T) -> T {
        self.given(name).unwrap_or(default)
    }

    /// The value after `name`, if it is there; removes both.
    pub fn given<T: FromStr>(&mut self, name: &str) -> Option<T> {
        let at = self.args.iter().position(|arg| arg == name)?;
        let mut taken = self.args.drain(at..(at + 2).min(self.args.len()));
        match taken.nth(1).map(|text| text.parse()) {
            Some(Ok(value)) => Some(value),
            _ => fail(&format!("{name} needs a value\n{}", self.usage)),
        }
    }

    /// The remaining arguments, which must be exactly `N`.
    #[must_use]
    pub fn rest<const N: usize>(self) -> [String; N] {
        match self.args.try_into() {
            Ok(words) => words,
            Err(args) => fail(&format!("not understood: {args:?}\n{}", self.usage)),
        }
    }
}

/// The path of a program in this program's folder.
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
