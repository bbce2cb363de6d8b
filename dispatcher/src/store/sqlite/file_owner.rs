//! Gives files that root makes to the user who runs the program.
//!
//! Invariant: the user who could open the earlier file can open the new one, or it is an error.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use crate::store::sqlite::key_file::folder_of;

/// The user that runs the program could not open a file.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot give {} the owner of what was there (uid {uid}): {source}; run this as that user, \
     or as root",
    path.display()
)]
pub struct OwnerError {
    path: PathBuf,
    uid: u32,
    source: io::Error,
}

/// Sets the owner and group of files to those of the file at `model`, or else of its folder.
pub(super) fn keep_owner(model: &Path, files: &[&Path]) -> Result<(), OwnerError> {
    let before = fs::metadata(model);
    let is_known = before.is_ok();
    let Ok(model) = before.or_else(|_| fs::metadata(folder_of(model))) else { return Ok(()) };
    let (uid, gid) = (model.uid(), model.gid());
    for file in files {
        let Err(source) = chown(file, Some(uid), Some(gid)) else { continue };
        // Ignored if only the group differs, or without a model: mode 0600 is for the owner.
        if is_known && fs::metadata(file).is_ok_and(|made| made.uid() != uid) {
            let path = (*file).to_owned();
            return Err(OwnerError { path, uid, source });
        }
    }
    Ok(())
}
