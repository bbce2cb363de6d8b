//! A disk that can be filled: a small tmpfs if the process may mount one (ENOSPC), otherwise a
//! limit on file sizes, which fails writes with EFBIG.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The size of the small disk: many times the database and WAL of a run.
const BYTES: &str = "256m";

/// The bytes of one write that fills a disk.
const PIECE_BYTES: usize = 64 * 1024;

/// The disk that the database is on.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    kind: Kind,
    full: bool,
    /// Whether it has been full at any time.
    was_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The disk of the folder; it is never filled.
    Plain,
    /// A tmpfs, mounted for the run: ENOSPC.
    Mounted,
    /// The disk of the folder; while it is "full" the process cannot write to any file: EFBIG.
    Limited,
}

impl Disk {
    /// The disk of the folder, which is never full.
    pub fn plain(folder: &Path) -> Self {
        Self::of(folder, Kind::Plain)
    }

    fn of(folder: &Path, kind: Kind) -> Self {
        Self { folder: folder.to_owned(), kind, full: false, was_full: false }
    }

    /// The disk of the folder; [`Self::fill`] limits the file sizes of the process.
    pub fn limited(folder: &Path) -> Self {
        Self::of(folder, Kind::Limited)
    }

    /// A small disk of its own; [`Self::limited`] if the process may not mount one.
    pub fn small(folder: &Path) -> Self {
        let at = folder.join("disk");
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={BYTES},mode=700"), "weir-survival"])
            .arg(&at)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let kind = match mounted {
            Ok(status) if status.success() => Kind::Mounted,
            _ => Kind::Limited,
        };
        Self::of(&at, kind)
    }

    /// How it is filled, in words.
    pub fn how(&self) -> &'static str {
        match self.kind {
            Kind::Plain => "never filled",
            Kind::Mounted => "a tmpfs of 256 MiB, filled (ENOSPC)",
            Kind::Limited => "every write fails (RLIMIT_FSIZE, EFBIG)",
        }
    }

    /// The folder for the database.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it is full now.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Whether it has been full at any time.
    pub fn was_full(&self) -> bool {
        self.was_full
    }

    /// A command that runs `program` with this disk's limit.
    pub fn command(&self, program: &Path) -> Command {
        if self.kind != Kind::Limited {
            return Command::new(program);
        }
        // SIGXFSZ, which comes with EFBIG, ends a process unless it is ignored; exec keeps it
        // ignored.
        let limit = if self.full { "ulimit -S -f 0;" } else { "" };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("trap '' XFSZ; {limit} exec \"$0\" \"$@\"")).arg(program);
        shell
    }

    /// Fills the disk.
    pub fn fill(&mut self, process: Option<u32>) {
        (self.full, self.was_full) = (true, true);
        match (self.kind, process) {
            (Kind::Mounted, _) => self.write_filler(),
            (Kind::Limited, Some(process)) => limit(process, "0"),
            _ => {}
        }
    }

    /// Frees the disk again.
    pub fn make_room(&mut self, process: Option<u32>) {
        self.full = false;
        match (self.kind, process) {
            (Kind::Mounted, _) => fs::remove_file(self.filler()).unwrap(),
            (Kind::Limited, Some(process)) => limit(process, "unlimited"),
            _ => {}
        }
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// While the disk is to be full, fills space that has become free.
    pub fn top_up(&self) {
        if self.full && self.kind == Kind::Mounted {
            self.write_filler();
        }
    }

    fn write_filler(&self) {
        let file = File::options().create(true).append(true).open(self.filler());
        let mut file = file.unwrap();
        let piece = vec![0; PIECE_BYTES];
        // Large pieces first, then the remaining space a page at a time.
        for size in [PIECE_BYTES, 4_096] {
            while file.write_all(&piece[..size]).is_ok() {}
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.kind == Kind::Mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        }
    }
}

/// Sets the soft limit on the size of files of a process, which may have ended.
fn limit(process: u32, bytes: &str) {
    let limit = format!("--fsize={bytes}:");
    let mut command = Command::new("prlimit");
    command.args(["--pid", &process.to_string(), &limit]).stderr(Stdio::null());
    command.status().unwrap();
}
