//! Opening the file: its creation, its lock, and what to say when that fails.
//!
//! Invariant: a file that stands under its final name is a whole database. It is made under another
//! name first, so that a crash in the middle leaves nothing that no later start could open.
//!
//! Deliberately absent: what is in the file (`tables.rs`).

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, StorageError};

use crate::store::OpenError;

/// redb's page cache. Enough for the hot part; the kernel caches the rest.
const CACHE: usize = 64 * 1024 * 1024;

/// Opens the database, at start and again after the disk was full.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, OpenError> + Send>;

pub(super) fn opener(path: &Path) -> Opener {
    let path = path.to_owned();
    Box::new(move || {
        if !path.exists() {
            create(&path).map_err(|error| describe(&path, error))?;
        }
        let file = options().open(&path).map_err(DatabaseError::from);
        file.and_then(database)
            .map_err(|error| describe(&path, error))
    })
}

/// Locks the file; an empty one becomes a database. After a crash all of it is read once and
/// checked (some seconds for a million records); the other way, saving what makes that unnecessary
/// with each commit, would cost every commit a second `fsync`.
fn database(file: File) -> Result<Database, DatabaseError> {
    let backend = FileBackend::new(file)?;
    Builder::new()
        .set_cache_size(CACHE)
        .set_repair_callback(|session| {
            let percent = 100.0 * session.progress();
            tracing::warn!(
                event = "file_check",
                "the store's file was not closed; it is checked, {percent:.0} %"
            );
        })
        .create_with_backend(backend)
}

/// Answers are other people's data: nobody but the owner may read the file.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn create(path: &Path) -> Result<(), DatabaseError> {
    let draft = draft(path);
    let file = options().create(true).truncate(true).open(&draft)?;
    drop(database(file)?);
    // A link, not a rename: another process that was faster keeps its file.
    let linked = std::fs::hard_link(&draft, path);
    std::fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    // Without this the name may be gone after a power cut, and all records with it.
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(())
}

fn draft(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    // Random: in two containers with one volume both processes may have number 1.
    let random = RandomState::new().build_hasher().finish();
    name.push(format!(".{random:016x}.new"));
    name.into()
}

fn describe(path: &Path, error: DatabaseError) -> OpenError {
    let at = path.display();
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse(format!(
            "{at} is in use by another process, and only one can have it open. Stop that process, \
             or give this one a file of its own (store.url = \"file:PATH\"); several replicas need \
             a store they can share (store.url = \"redis://HOST\")"
        )),
        DatabaseError::UpgradeRequired(version) => OpenError::Unfit(format!(
            "{at} is in file format {version}, which this build cannot read"
        )),
        DatabaseError::Storage(StorageError::Io(error)) => on_io(path, &error),
        other => OpenError::Unfit(format!(
            "{at} cannot be opened: {other}. Put it aside if its records may be forgotten"
        )),
    }
}

fn on_io(path: &Path, error: &io::Error) -> OpenError {
    let at = path.display();
    match error.kind() {
        ErrorKind::InvalidData => OpenError::Unfit(format!(
            "{at} is no store of this program: {error}. Name another file in store.url"
        )),
        ErrorKind::NotFound => OpenError::Unfit(format!(
            "{at} cannot be created: its folder does not exist. Create the folder or change \
             store.url"
        )),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::IsADirectory => {
            OpenError::Unfit(format!(
                "{at} cannot be opened for writing: {error}. This process must own it, or \
                 store.url must name another file"
            ))
        }
        _ => OpenError::Unreachable(format!("{at} cannot be opened: {error}")),
    }
}
