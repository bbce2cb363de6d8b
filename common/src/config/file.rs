//! The source of a program's settings: a file, or the example that is built into the program.
//!
//! # Invariants
//!
//! 1. A file that cannot be read is reported: the built-in example never replaces it, and is used
//!    only if the operator selects it.
//! 2. With built-in settings, files that they name are built in, too, where they cannot be read.
//!
//! Not here: what the file contains (`document`).

use std::io;
use std::path::{Path, PathBuf};

use crate::config::document::{Diagnostic, Document, Spanned};
use crate::config::files::{self, unreadable, whole};

/// The source of the settings: a file, or the built-in example.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: Option<PathBuf>,
    is_named: bool,
    usual: &'static str,
}

impl ConfigFile {
    /// The file `named`, or else the one at `usual`.
    #[must_use]
    pub fn new(named: Option<PathBuf>, usual: &'static str) -> Self {
        let is_named = named.is_some();
        Self { path: Some(named.unwrap_or_else(|| PathBuf::from(usual))), is_named, usual }
    }

    /// The built-in example, named for the file at `usual`.
    #[must_use]
    pub fn built_in(usual: &'static str) -> Self {
        Self { path: None, is_named: false, usual }
    }

    /// The path, if it is a file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => {
                let name = Path::new(self.usual).file_name().unwrap_or_default();
                format!("built-in {}", name.display())
            }
        }
    }

    /// The text of the settings.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read(&self, built_in: &str) -> Result<String, Diagnostic> {
        match &self.path {
            Some(path) => files::read(path).map_err(|why| self.unreadable(&why)),
            None => Ok(built_in.to_owned()),
        }
    }

    fn unreadable(&self, why: &io::Error) -> Diagnostic {
        let mut diagnostic = unreadable(&self.name(), why);
        if !self.is_named && why.kind() == io::ErrorKind::NotFound {
            let place = whole(self.usual);
            diagnostic.message = format!(
                "there is no {place}: name a configuration with --config FILE, or ask for the \
                 built-in example with --demo"
            );
        }
        diagnostic
    }

    /// The text of a file that the settings name under `key`; if it cannot be read, `built_in` for
    /// built-in settings, else none and an error in `document`.
    #[must_use]
    pub fn beside(
        &self,
        document: &Document,
        path: &Spanned<String>,
        key: &str,
        built_in: &str,
    ) -> Option<String> {
        match files::read(Path::new(&path.value)) {
            Ok(text) => Some(text),
            Err(_) if self.path.is_none() => Some(built_in.to_owned()),
            Err(why) => {
                let place = whole(&path.value);
                let text = format!(
                    "cannot read {place}: {why}; set {key}, which counts from the directory that \
                     the program runs in"
                );
                document.fault(path.at, text);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: &str = "no/such/place/weir.toml";

    #[test]
    fn a_file_that_was_named_is_never_replaced_by_what_is_built_in() {
        let named = ConfigFile::new(Some("no/such/file.toml".into()), USUAL);
        let diagnostic = named.read("built in").unwrap_err();
        assert_eq!((diagnostic.file.as_str(), diagnostic.line), ("no/such/file.toml", 1));
        let document = Document::new(&named.name(), "");
        let path = Spanned { value: "no/such/tokens.toml".to_owned(), at: 0 };
        assert_eq!(named.beside(&document, &path, "auth.tokens", "built in"), None);
        let [diagnostic] = document.diagnostics().try_into().unwrap();
        assert!(diagnostic.message.contains("no/such/tokens.toml: No such file"), "{diagnostic:?}");
        assert!(diagnostic.message.contains("set auth.tokens"), "{diagnostic:?}");
    }

    #[test]
    fn the_built_in_configuration_is_used_only_if_selected() {
        let usual = ConfigFile::new(None, USUAL);
        let diagnostic = usual.read("built in").unwrap_err();
        assert_eq!(diagnostic.file, USUAL);
        let folder = std::env::current_dir().unwrap();
        let there = folder.join(USUAL).display().to_string();
        for word in [there.as_str(), "--config FILE", "--demo"] {
            assert!(diagnostic.message.contains(word), "{word}: {diagnostic:?}");
        }
    }

    #[test]
    fn what_is_built_in_names_files_that_are() {
        let built_in = ConfigFile::built_in(USUAL);
        assert_eq!(built_in.path(), None);
        assert_eq!(built_in.name(), "built-in weir.toml");
        assert_eq!(built_in.read("built in").unwrap(), "built in");
        let document = Document::new(&built_in.name(), "");
        let path = Spanned { value: "no/such/tokens.toml".to_owned(), at: 0 };
        let text = built_in.beside(&document, &path, "auth.tokens", "as well");
        assert_eq!(text.as_deref(), Some("as well"));
        assert!(document.diagnostics().is_empty());
    }
}
