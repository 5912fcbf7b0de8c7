//! TLS on both sides: which certificate is shown, who is trusted, and new files while it runs.
//!
//! Invariant: what is in use was checked whole, each key fits its certificate. A new set of files
//! that is not fit never replaces one that is.
//!
//! Deliberately absent: early data (a replay of the network's own), revocation lists, several
//! certificates by name.
//!
//! Read next: `files.rs` (what is read and refused), `server.rs`, `client.rs`, `renewal.rs`.

mod client;
mod files;
mod renewal;
mod server;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

pub use client::{
    ClientKeys, ClientSettings, ClientStream, Connector, Failure, Offers, failure, is_name,
};
pub use files::Contents;
pub use server::{Acceptor, ClientAuth, ServerSettings};

/// One of the files, by the key that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsFile {
    /// The key.
    pub key: &'static str,
    holds: Holds,
}

/// What a file should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// A certificate and those of its issuers.
    Chain,
    /// The private key of a certificate.
    Key,
    /// The certificates of who vouches for the other side.
    Authorities,
}

/// What is wrong with a file. Never shows its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The key that names the file.
    pub key: &'static str,
    /// What, as it follows the key's name.
    pub message: String,
    /// What to do.
    pub help: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.key, self.message)
    }
}

/// What was made of files, and what is worth a warning about them; or all that is wrong.
pub type Judged<M> = Result<(Arc<M>, Option<Finding>), Vec<Finding>>;

/// One side of TLS: which files it has, and what is made of them.
pub trait Side: fmt::Debug + Clone + Send + 'static {
    /// How connections are spoken to.
    type Made: Send + Sync + 'static;

    /// Every file.
    fn files(&self) -> Vec<(TlsFile, &Path)>;

    /// How connections are to be spoken to, with these contents.
    fn judge(&self, contents: &Contents) -> Judged<Self::Made>;
}

/// What is in use now. Each connection takes the newest.
pub struct Live<M>(watch::Receiver<Arc<M>>);

impl<M> Live<M> {
    fn now(&self) -> Arc<M> {
        self.0.borrow().clone()
    }
}

impl<M> Clone for Live<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M> fmt::Debug for Live<M> {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

/// The files of one side and what was made of them.
pub struct Certificates<S: Side> {
    settings: S,
    /// The contents that were judged last.
    judged: Contents,
    current: watch::Sender<Arc<S::Made>>,
}

impl<S: Side> fmt::Debug for Certificates<S> {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<S: Side> Certificates<S> {
    /// Reads and checks every file.
    pub fn load(settings: &S) -> Result<Self, Vec<Finding>> {
        let judged = Contents::read(settings);
        let (made, _warning) = settings.judge(&judged)?;
        Ok(Self {
            settings: settings.clone(),
            judged,
            current: watch::Sender::new(made),
        })
    }

    /// What is in use, now and later.
    pub fn live(&self) -> Live<S::Made> {
        Live(self.current.subscribe())
    }
}

/// Whether the files are fit to be used: a warning, or every error.
pub fn inspect<S: Side>(settings: &S) -> Result<Option<Finding>, Vec<Finding>> {
    let judged = settings.judge(&Contents::read(settings));
    judged.map(|(_, warning)| warning)
}

/// What the library refuses beyond what was looked at.
fn refused(key: &'static str, error: &rustls::Error) -> Vec<Finding> {
    vec![Finding {
        key,
        message: format!("cannot be used: {error}"),
        help: "",
    }]
}
