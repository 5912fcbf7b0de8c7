//! Which PostgreSQL: the installed one, or another release that the environment names.
//!
//! The cluster is made once per test process and release, and copied for each server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;

use super::postgres::{command, folder, user};
use super::redis::skipped;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The one in the path, or Debian's.
    Installed,
    /// The one whose programs are in the folder that `RETRYSAFE_TEST_POSTGRES14` names.
    V14,
    /// The same with `RETRYSAFE_TEST_POSTGRES16`, and so on.
    V16,
    V17,
    V18,
}

/// What the servers of one release are made from. It goes with the last of them.
#[derive(Debug)]
pub(super) struct Origin {
    programs: PathBuf,
    /// An empty cluster, to be copied.
    cluster: TempDir,
    /// Programs that the server's user could not reach where they are.
    _copied: Option<TempDir>,
}

impl Origin {
    /// The folder of its programs.
    pub(super) fn programs(&self) -> &Path {
        &self.programs
    }

    pub(super) fn cluster(&self) -> PathBuf {
        self.cluster.path().join("data")
    }
}

impl Release {
    /// Its first number, where it is known before it is asked.
    pub fn number(self) -> Option<u32> {
        match self {
            Self::Installed => None,
            Self::V14 => Some(14),
            Self::V16 => Some(16),
            Self::V17 => Some(17),
            Self::V18 => Some(18),
        }
    }

    /// `None`, and a line that says so, without such a server.
    pub(super) fn origin(self) -> Option<Arc<Origin>> {
        static ORIGINS: [Mutex<Weak<Origin>>; 5] = [const { Mutex::new(Weak::new()) }; 5];
        let known = &ORIGINS[self as usize];
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(origin) = known.upgrade() {
            return Some(origin);
        }
        let (programs, copied) = match self.number() {
            None => (installed()?, None),
            Some(number) => reachable(named(number)?),
        };
        let cluster = cluster(&programs);
        let origin = Arc::new(Origin {
            programs,
            cluster,
            _copied: copied,
        });
        *known = Arc::downgrade(&origin);
        Some(origin)
    }
}

/// Where the server's programs are: in the path, or where Debian keeps them, the newest first.
fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut debian: Vec<_> = versions
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse::<u32>().ok()?,
                entry.path(),
            ))
        })
        .collect();
    debian.sort();
    folders.extend(debian.into_iter().rev().map(|(_, path)| path.join("bin")));
    let found = folders
        .into_iter()
        .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists());
    if found.is_none() {
        skipped("PostgreSQL is not installed (apt-get install postgresql)");
    }
    found
}

/// The folder that the environment names for a release.
fn named(number: u32) -> Option<PathBuf> {
    let variable = format!("RETRYSAFE_TEST_POSTGRES{number}");
    let named = std::env::var_os(&variable).filter(|path| !path.is_empty());
    if named.is_none() {
        skipped(&format!("{variable} names no folder (tests/run sets it)"));
    }
    named.map(PathBuf::from)
}

/// The programs where the server's user can run them. A clone may lie in a folder that is root's
/// alone, and the server finds its libraries beside its own folder: all of them are copied.
fn reachable(programs: PathBuf) -> (PathBuf, Option<TempDir>) {
    if user().is_none() {
        return (programs, None);
    }
    let copy = folder();
    let from = programs.parent().expect("the folder of the whole release");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(from.join("."))
        .arg(copy.path())
        .status();
    assert!(copied.unwrap().success());
    let name = programs.file_name().expect("the name of the folder");
    (copy.path().join(name), Some(copy))
}

/// An empty cluster.
fn cluster(programs: &Path) -> TempDir {
    let folder = folder();
    let made = command(&programs.join("initdb"))
        .args(["-A", "trust", "-U", "app", "--no-sync"])
        .args(["-E", "UTF8", "--locale=C", "--wal-segsize=1", "-D"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "{errors}");
    folder
}
