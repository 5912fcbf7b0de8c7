//! What a Redis url says: whom to connect to, and as whom.
//!
//! ```text
//! redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]                        one server
//! redis+unix://[USER[:PASSWORD]@]/PATH[?db=DB]                      one server, by its socket
//! redis+sentinel://[...@]HOST[:PORT],HOST[:PORT]/MASTER[/DB]        whom the sentinels name
//! redis+cluster://[...@]HOST[:PORT],HOST[:PORT]                     a cluster
//! ```
//!
//! `rediss` in place of `redis` is the same over TLS. Invariant: no message repeats what was
//! written, since it may hold a password.
//!
//! Deliberately absent: connecting, looking names up.

use std::path::PathBuf;

use redis::RedisConnectionInfo;

/// Where a Redis listens by default.
const SERVER_PORT: u16 = 6_379;
/// Where a sentinel does.
const SENTINEL_PORT: u16 = 26_379;

const ENCODE: &str = "a password with / ? # or @ in it needs these as %2F, %3F, %23 and %40";
const DATABASE: &str = "write a number after the slash, e.g. \"redis://127.0.0.1:6379/0\"";
const SERVER: &str =
    "write \"memory:\", \"file:PATH\" or \"redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]\"";
const SOCKET: &str = "write \"redis+unix:///PATH\", e.g. \"redis+unix:///run/redis.sock?db=0\"";
const SENTINELS: &str = "write \"redis+sentinel://HOST[:PORT],HOST[:PORT]/MASTER[/DB]\": the sentinels, then the name they know the master by";
const CLUSTER: &str =
    "write \"redis+cluster://HOST[:PORT],HOST[:PORT]\": some of the nodes, the others are found";

/// Why a url cannot be used, and what to write. Holds nothing of the url itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongUrl {
    /// What is wrong.
    pub message: &'static str,
    /// What to write instead.
    pub help: &'static str,
}

fn wrong<T>(message: &'static str, help: &'static str) -> Result<T, WrongUrl> {
    Err(WrongUrl { message, help })
}

/// A host and its port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// A name or an address, IPv6 without brackets.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How to get to the server that keeps a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    Server(Place),
    Socket(PathBuf),
    Sentinels { places: Vec<Place>, master: String },
    Cluster(Vec<Place>),
}

/// A url, read.
#[derive(Debug, Clone)]
pub(super) struct Address {
    pub(super) tls: bool,
    /// User, password and database; its `Debug` hides the password.
    pub(super) login: RedisConnectionInfo,
    pub(super) way: Way,
}

/// Whether the url can be used, and if not why.
pub fn check_redis_url(url: &str) -> Result<(), WrongUrl> {
    parse(url).map(drop)
}

/// The schemes, for who looks for misspellings.
pub const REDIS_SCHEMES: [&str; 7] = [
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
];

/// Reads a url whose scheme is one of [`REDIS_SCHEMES`].
pub(super) fn parse(url: &str) -> Result<Address, WrongUrl> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return wrong("is not a store url", SERVER);
    };
    let help = match scheme {
        "redis" | "rediss" => SERVER,
        "redis+unix" => SOCKET,
        "redis+sentinel" | "rediss+sentinel" => SENTINELS,
        "redis+cluster" | "rediss+cluster" => CLUSTER,
        "rediss+unix" => return wrong("asks for TLS over a Unix socket", SOCKET),
        _ => return wrong("does not begin with a known scheme", SERVER),
    };
    let Some(rest) = rest.strip_prefix("//") else {
        return wrong("lacks the two slashes after its scheme", help);
    };
    let tls = scheme.starts_with("rediss");
    let (user_info, rest) = if scheme == "redis+unix" {
        // A path may hold an @; what stands before the path may not hold a slash.
        let at = rest.find('/').unwrap_or(rest.len());
        let (user_info, path) = rest.split_at(at);
        match user_info.strip_suffix('@') {
            Some(user_info) => (user_info, path),
            None if user_info.is_empty() => ("", path),
            None => return wrong("has a host before the socket's path", SOCKET),
        }
    } else {
        if rest.contains(['?', '#']) {
            return wrong("has a query or fragment", ENCODE);
        }
        rest.rsplit_once('@').unwrap_or(("", rest))
    };
    let login = login(user_info)?;
    let (way, database) = match scheme {
        "redis" | "rediss" => server(rest)?,
        "redis+unix" => socket(rest)?,
        "redis+sentinel" | "rediss+sentinel" => sentinels(rest)?,
        _ => (cluster(rest)?, 0),
    };
    let login = login.set_db(database);
    Ok(Address { tls, login, way })
}

fn login(user_info: &str) -> Result<RedisConnectionInfo, WrongUrl> {
    if user_info.contains(['@', '/', '?', '#']) || user_info.contains(char::is_whitespace) {
        return wrong("has user info that is not percent-encoded", ENCODE);
    }
    let (user, password) = match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    };
    let mut login = RedisConnectionInfo::default();
    if !user.is_empty() {
        login = login.set_username(decoded(user)?);
    }
    if let Some(password) = password {
        login = login.set_password(decoded(password)?);
    }
    Ok(login)
}

/// Without percent-encoding.
fn decoded(text: &str) -> Result<String, WrongUrl> {
    const HELP: &str = "write % itself as %25";
    let mut octets = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    octets.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| {
            let mut digits = digits.bytes();
            digits.all(|digit| digit.is_ascii_hexdigit())
        });
        let octet = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (Some(octet), Some(rest)) = (octet, part.get(2..)) else {
            return wrong("has a % that begins no escape", HELP);
        };
        octets.push(octet);
        octets.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(octets).or_else(|_| wrong("has user info that is no UTF-8", HELP))
}

fn server(rest: &str) -> Result<(Way, i64), WrongUrl> {
    let (place, number) = rest.split_once('/').unwrap_or((rest, ""));
    let place = one_place(place, SERVER_PORT, SERVER)?;
    Ok((Way::Server(place), database(number, DATABASE)?))
}

fn socket(rest: &str) -> Result<(Way, i64), WrongUrl> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, "db=0"));
    let Some(number) = query.strip_prefix("db=") else {
        return wrong("has a query other than db=NUMBER", SOCKET);
    };
    if path.len() < 2 || path.ends_with('/') {
        return wrong("names no socket", SOCKET);
    }
    if path.contains(['\0', '#', '%']) {
        return wrong("is not a path", SOCKET);
    }
    // What the kernel takes, with the zero at the end.
    if path.len() > 107 {
        return wrong("has a path of more than 107 octets", SOCKET);
    }
    Ok((Way::Socket(path.into()), database(number, SOCKET)?))
}

fn sentinels(rest: &str) -> Result<(Way, i64), WrongUrl> {
    let (listed, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let places = places(listed, SENTINEL_PORT, SENTINELS)?;
    let (master, number) = rest.split_once('/').unwrap_or((rest, ""));
    let fits = |octet: u8| octet.is_ascii_alphanumeric() || b".-_".contains(&octet);
    if master.is_empty() {
        return wrong("names no master", SENTINELS);
    }
    if !master.bytes().all(fits) {
        return wrong("has a master that is no name", SENTINELS);
    }
    let master = master.to_owned();
    let way = Way::Sentinels { places, master };
    Ok((way, database(number, SENTINELS)?))
}

fn cluster(rest: &str) -> Result<Way, WrongUrl> {
    let (listed, number) = rest.split_once('/').unwrap_or((rest, ""));
    if database(number, CLUSTER)? != 0 {
        return wrong("has a database, and a cluster has only the first", CLUSTER);
    }
    Ok(Way::Cluster(places(listed, SERVER_PORT, CLUSTER)?))
}

fn places(listed: &str, port: u16, help: &'static str) -> Result<Vec<Place>, WrongUrl> {
    let each = listed.split(',');
    each.map(|place| one_place(place, port, help)).collect()
}

fn one_place(text: &str, default: u16, help: &'static str) -> Result<Place, WrongUrl> {
    match host_and_port(text) {
        Ok((host, port)) => Ok(Place {
            host: host.to_owned(),
            port: port.unwrap_or(default),
        }),
        Err(message) => {
            let port = text.rsplit_once(':').map_or("", |(_, port)| port);
            let is_port = port.bytes().all(|octet| octet.is_ascii_digit());
            wrong(message, if is_port { help } else { ENCODE })
        }
    }
}

fn database(text: &str, help: &'static str) -> Result<i64, WrongUrl> {
    if text.is_empty() {
        return Ok(0);
    }
    let number = text.parse::<u32>().map(i64::from);
    number.or_else(|_| wrong("has a database that is no number", help))
}

/// Takes `host`, `host:port`, `[v6]`, `[v6]:port` apart.
pub fn host_and_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("has a [ without ]")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("has no IPv6 address in its brackets");
        }
        let port = after.strip_prefix(':');
        if port.is_none() && !after.is_empty() {
            return Err("has something between ] and the port");
        }
        (host, port)
    } else {
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty() {
            return Err("names no host");
        }
        if !host.bytes().all(fits) {
            return Err("has a host that is no name or address");
        }
        (host, port)
    };
    let number = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err("has a port that is no number from 1 to 65535"),
    };
    Ok((host, port.map(number).transpose()?))
}

/// The url without user info.
pub(in crate::store) fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let address = if scheme.ends_with("+unix") {
        let path = rest.find('/').and_then(|at| rest.get(at..));
        path.unwrap_or_default()
    } else {
        rest.rsplit_once('@').map_or(rest, |(_, address)| address)
    };
    format!("{scheme}://{address}")
}
