//! Where a PostgreSQL is, as the configuration says it. Shows everything but the password.

use std::fmt;
use std::path::PathBuf;

/// `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE`, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresAddress {
    /// Who connects.
    pub user: String,
    /// Never shown.
    pub password: Option<String>,
    /// Where.
    pub place: PostgresPlace,
    /// Part of the socket's name too.
    pub port: u16,
    /// Which database.
    pub database: String,
    /// `sslmode=require` or `verify-full`: verified either way.
    pub tls: bool,
}

/// How the server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostgresPlace {
    /// A name or an address, without brackets.
    Host(String),
    /// The folder of its Unix socket.
    Folder(PathBuf),
}

impl fmt::Display for PostgresAddress {
    /// Without user info.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, database, .. } = self;
        match &self.place {
            PostgresPlace::Host(host) if host.contains(':') => {
                write!(f, "postgres://[{host}]:{port}/{database}")?;
            }
            PostgresPlace::Host(host) => write!(f, "postgres://{host}:{port}/{database}")?,
            PostgresPlace::Folder(folder) => {
                let folder = folder.display();
                write!(f, "postgres://:{port}/{database}?host={folder}")?;
            }
        }
        // A socket knows no TLS, so that this is the first parameter.
        if self.tls {
            f.write_str("?sslmode=verify-full")?;
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
