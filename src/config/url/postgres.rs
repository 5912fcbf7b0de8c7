//! `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE`, also `postgresql://`.
//!
//! Invariant: a parameter that is not understood is an error. `sslmode=prefer` and its like would
//! go on without TLS where they cannot have it, so they do not exist here.

use std::path::{Path, PathBuf};

use super::{UrlError, host_and_port, percent_encoding_is_whole, wrong};
use crate::store::{PostgresAddress, PostgresPlace};

const HELP: &str = "write \"postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE\"";
const ENCODE: &str = "a password with / ? # or @ in it needs these as %2F, %3F, %23 and %40";
const PARAMETERS: &str =
    "write \"?sslmode=verify-full\" for TLS, \"?host=/FOLDER\" for a Unix socket";
const DEFAULT_PORT: u16 = 5432;

/// Reads what follows `postgres://`.
pub(super) fn postgres(rest: &str) -> Result<PostgresAddress, UrlError> {
    if rest.contains('#') {
        return wrong("has a fragment", ENCODE);
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (user_info, place) = match rest.rsplit_once('@') {
        Some((user_info, place)) => (user_info, place),
        None if query.contains('@') => return wrong("has user info after a ?", ENCODE),
        None => return wrong("names no user", HELP),
    };
    if user_info.contains(['@', '/']) || user_info.contains(char::is_whitespace) {
        return wrong("has user info that is not percent-encoded", ENCODE);
    }
    let (user, password) = match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    };
    let user = decoded(user)?;
    if user.is_empty() {
        return wrong("names no user", HELP);
    }
    let password = password.map(decoded).transpose()?;
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let database = decoded(database)?;
    if database.is_empty() {
        return wrong("names no database", HELP);
    }
    let Parameters { tls, folder } = parameters(query)?;
    let (place, port) = match folder {
        Some(folder) => (PostgresPlace::Folder(folder), socket_port(authority)?),
        None => match host_and_port(authority) {
            Ok((host, port)) => (PostgresPlace::Host(host.to_owned()), port),
            Err(message) => return wrong(message, HELP),
        },
    };
    if tls && matches!(place, PostgresPlace::Folder(_)) {
        return wrong(
            "asks for TLS over a Unix socket",
            "remove sslmode: such a socket has no TLS",
        );
    }
    Ok(PostgresAddress {
        user,
        password,
        place,
        port: port.unwrap_or(DEFAULT_PORT),
        database,
        tls,
    })
}

struct Parameters {
    tls: bool,
    folder: Option<PathBuf>,
}

fn parameters(query: &str) -> Result<Parameters, UrlError> {
    let mut tls = None;
    let mut folder = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decoded(value)?;
        match name {
            "sslmode" => {
                let asked = match value.as_str() {
                    "require" | "verify-full" => true,
                    "disable" => false,
                    _ => {
                        return wrong(
                            "has an sslmode that is not one of require, verify-full, disable",
                            "write require or verify-full, which both verify the server's \
                             certificate and name, or disable",
                        );
                    }
                };
                if tls.replace(asked).is_some() {
                    return wrong("has sslmode twice", "keep one of the two");
                }
            }
            "host" => {
                if !Path::new(&value).is_absolute() {
                    return wrong(
                        "has a `host` parameter that is no folder",
                        "write the folder of the Unix socket, e.g. \"?host=/run/postgresql\"; a \
                         host name stands before the port",
                    );
                }
                if value.contains('\0') {
                    return wrong("has a `host` parameter that is no folder", PARAMETERS);
                }
                if folder.replace(PathBuf::from(value)).is_some() {
                    return wrong("has `host` twice", "keep one of the two");
                }
            }
            _ => return wrong("has a parameter that is not known here", PARAMETERS),
        }
    }
    Ok(Parameters {
        tls: tls.unwrap_or(false),
        folder,
    })
}

/// What may stand before the slash when a folder is named: nothing, or a port.
fn socket_port(authority: &str) -> Result<Option<u16>, UrlError> {
    if authority.is_empty() {
        return Ok(None);
    }
    let port = authority.strip_prefix(':').map(str::parse::<u16>);
    match port {
        Some(Ok(port)) if port > 0 => Ok(Some(port)),
        Some(_) => wrong("has a port that is no number from 1 to 65535", HELP),
        None => wrong(
            "names a host and the folder of a Unix socket",
            "keep one of the two",
        ),
    }
}

fn decoded(text: &str) -> Result<String, UrlError> {
    if !percent_encoding_is_whole(text) {
        return wrong("has a % that begins no escape", "write % itself as %25");
    }
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| str::from_utf8(digits).ok());
        match digits.map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(octet)) if *first == b'%' => {
                octets.push(octet);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                octets.push(*first);
                rest = after;
            }
        }
    }
    match String::from_utf8(octets) {
        // The protocol ends its texts with it.
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => wrong(
            "has an escape that is no text",
            "escapes are UTF-8, without %00",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_store_url;
    use super::*;
    use crate::store::StoreUrl;

    fn parsed(url: &str) -> PostgresAddress {
        match parse_store_url(url) {
            Ok(StoreUrl::Postgres(address)) => *address,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn a_server_is_named_by_host_or_folder() {
        let address = parsed("postgres://me:hun%40ter2@db.internal/app");
        assert_eq!(address.user, "me");
        assert_eq!(address.password.as_deref(), Some("hun@ter2"));
        assert_eq!(address.place, PostgresPlace::Host("db.internal".into()));
        assert_eq!((address.port, address.tls), (5432, false));
        assert_eq!(address.database, "app");
        assert_eq!(address.to_string(), "postgres://db.internal:5432/app");
        let address = parsed("postgresql://m%C3%A9@[::1]:6432/a%2Fb?sslmode=require");
        assert_eq!((address.port, address.tls), (6432, true));
        assert_eq!(
            (address.user.as_str(), address.password.clone()),
            ("m\u{e9}", None)
        );
        let shown = format!("{address:?}");
        assert_eq!(shown, "postgres://[::1]:6432/a/b?sslmode=verify-full");
        assert!(parsed("postgres://u@h/d?sslmode=verify-full").tls);
        assert!(!parsed("postgres://u@h/d?sslmode=disable").tls);
        let address = parsed("postgres://u@/d?host=/run/postgresql");
        assert_eq!(
            address.place,
            PostgresPlace::Folder("/run/postgresql".into())
        );
        assert_eq!(
            address.to_string(),
            "postgres://:5432/d?host=/run/postgresql"
        );
        assert_eq!(parsed("postgres://u@:5433/d?host=/run").port, 5433);
        let url = StoreUrl::Postgres(Box::new(parsed("postgres://u:hunter2@h/d?sslmode=require")));
        assert!(url.is_tls());
        assert!(!format!("{url} {url:?}").contains("hunter2"));
    }

    #[test]
    fn what_is_no_server_is_refused_without_repeating_it() {
        for url in [
            "postgres:",
            "postgres:hunter2",
            "postgres://",
            "postgres://host",
            "postgres://host/hunter2",
            "postgres://@host/d",
            "postgres://:hunter2@host/d",
            "postgres://u:hunter2@host",
            "postgres://u:hunter2@host/",
            "postgres://u:hunter2@/d",
            "postgres://u:hunter2@host:0/d",
            "postgres://u:hunter2@host:x/d",
            "postgres://u:hunter2@a,b/d",
            "postgres://u:hunter2%@host/d",
            "postgres://u:hunter2%00@host/d",
            "postgres://u:hunter2%ff@host/d",
            "postgres://u:hun ter2@host/d",
            "postgres://u:hun/ter2@host/d",
            "postgres://u:hun?ter2@host/d",
            "postgres://u:hun#ter2@host/d",
            "postgres://u:hun@ter2@host/d",
            "postgres://u:hunter2@host/d?sslmode=prefer",
            "postgres://u:hunter2@host/d?sslmode=require&sslmode=require",
            "postgres://u:hunter2@host/d?sslmode",
            "postgres://u:hunter2@host/d?password=hunter2",
            "postgres://u:hunter2@host/d?host=hunter2",
            "postgres://u:hunter2@host/d?host=/run",
            "postgres://u:hunter2@:x/d?host=/run",
            "postgres://u:hunter2@/d?host=/run&sslmode=require",
            "postgres://u:hunter2@/d?host=/run&host=/run",
            "Postgres://u:hunter2@host/d",
        ] {
            let error = parse_store_url(url).expect_err(url);
            let shown = error.to_string();
            assert!(!shown.contains("ter2"), "{url}: {shown}");
            assert!(!error.help.is_empty(), "{url}");
        }
    }
}
