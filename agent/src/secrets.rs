//! Keeps new secrets out of transcripts: each goes to a file of its own, which is named.
//!
//! # Invariants
//!
//! 1. The file is there, and can be written, before the call that makes the secret: a secret is
//!    shown once, and one that cannot be kept would be lost.
//! 2. Only this user may read it, and no file is replaced.
//! 3. It is in the folder, whatever the gateway says that the webhook's identifier is.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use weir_common::config::files;
use weir_common::identifier::is_identifier;
use weir_common::secret::Secret;

/// A folder for secrets.
#[derive(Clone, Debug)]
pub(crate) struct SecretFolder {
    path: PathBuf,
}

/// A file that waits for its secret; removed if none comes.
#[derive(Debug)]
pub(crate) struct SecretFile {
    folder: PathBuf,
    draft: PathBuf,
    file: File,
}

impl SecretFolder {
    /// The folder at `path`, made if it is not there.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", path.display())))?;
        Ok(Self { path: std::path::absolute(path)? })
    }

    /// The folder at `path`, which is not made.
    ///
    /// # Errors
    ///
    /// If no secret could be written into it.
    pub(crate) fn check(path: &Path) -> io::Result<Self> {
        files::may_make(&path.join("secret"))?;
        Ok(Self { path: std::path::absolute(path)? })
    }

    /// A folder for `name` within it.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub(crate) fn within(&self, name: &str) -> io::Result<Self> {
        Self::open(&self.path.join(name))
    }

    /// A file for a secret that is about to be made; `nonce` is a random number.
    pub(crate) fn prepare(&self, nonce: u64) -> io::Result<SecretFile> {
        let draft = self.path.join(format!(".{nonce:016x}.draft"));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        Ok(SecretFile { folder: self.path.clone(), draft, file })
    }
}

impl SecretFile {
    /// Writes the secret, and returns the file's path: named for the webhook, if that has an
    /// identifier, and the draft.
    pub(crate) fn keep(mut self, webhook: &str, secret: &Secret<String>) -> io::Result<PathBuf> {
        writeln!(self.file, "{}", secret.expose())?;
        self.file.sync_all()?;
        let draft = self.draft.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let nonce = draft.trim_start_matches('.');
        let webhook = if is_identifier(webhook) { format!("{webhook}.") } else { String::new() };
        let path = self.folder.join(format!("{webhook}{nonce}.secret"));
        fs::rename(&self.draft, &path)?;
        File::open(&self.folder)?.sync_all()?;
        Ok(path)
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // After `keep` there is no draft; otherwise an empty file stays at worst.
        let _ = fs::remove_file(&self.draft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let path = Path::new("/proc/weir-secrets");
        let why = SecretFolder::open(path).unwrap_err().to_string();
        assert!(why.starts_with("/proc/weir-secrets: "), "{why}");
    }

    #[test]
    fn a_check_makes_no_folder() {
        let root = std::env::temp_dir().join(format!("weir-agent-check-{}", std::process::id()));
        SecretFolder::check(&root.join("in")).unwrap();
        assert!(!root.exists());
        assert!(SecretFolder::check(Path::new("/dev/null/secrets")).is_err());
    }

    #[test]
    fn a_secret_stays_in_its_folder_whatever_the_webhook_is_called() {
        let root = std::env::temp_dir().join(format!("weir-agent-secrets-{}", std::process::id()));
        let folder = SecretFolder::open(&root.join("in")).unwrap();
        let elsewhere = root.join("evil").display().to_string();
        for (nonce, (webhook, name)) in [
            ("wh_1", "wh_1.0000000000000000.secret"),
            ("../evil", "0000000000000001.secret"),
            (&*elsewhere, "0000000000000002.secret"),
            ("", "0000000000000003.secret"),
        ]
        .into_iter()
        .enumerate()
        {
            let file = folder.prepare(nonce as u64).unwrap();
            let path = file.keep(webhook, &Secret::new("whsec_x".to_owned())).unwrap();
            assert_eq!(path, root.join("in").join(name), "{webhook}");
            assert_eq!(fs::read_to_string(path).unwrap(), "whsec_x\n");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
