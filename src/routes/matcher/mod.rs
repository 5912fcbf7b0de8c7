//! Finds the best route for a request: compares summaries, never the order in the file (R2).

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use thiserror::Error;

use crate::idempotency::Policy;
use crate::routes::path::{generously, loosely, normalise, raw_segments};
use crate::routes::{Route, RouteSettings};

/// All routes and the policy of requests that none matches.
#[derive(Debug)]
pub struct Routes {
    routes: Vec<Compiled>,
    default: Arc<Route>,
}

/// Two routes that cannot be told apart, or a pattern that is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RouteError {
    /// A tie by R2.
    #[error("routes {0:?} and {1:?} match the same requests")]
    Tie(String, String),
    /// Not a path pattern.
    #[error("route {0:?}: {1}")]
    Pattern(String, &'static str),
}

/// What a target matched.
#[derive(Debug, Clone)]
pub struct Matched {
    /// The best route, or the default.
    pub route: Arc<Route>,
    /// The raw and the normalised path match differently.
    pub ambiguous: Option<Arc<Route>>,
    /// Encoded slashes or dot segments.
    pub suspicious: bool,
}

#[derive(Debug)]
struct Compiled {
    route: Arc<Route>,
    host: HostPattern,
    path: Vec<Segment>,
    /// The same as the most generous upstream reads it.
    generous: Vec<Segment>,
    methods: Option<Vec<Method>>,
}

#[derive(Debug, PartialEq, Eq)]
enum HostPattern {
    Any,
    /// `*.example.com`, kept as `.example.com`.
    Suffix(String),
    Exact(String),
}

#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Parameter,
    Rest,
}

/// How good a match is; the greatest wins.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    host: (u8, usize),
    path: Vec<u8>,
    methods: bool,
}

impl Routes {
    /// Compiles routes; a tie is an error.
    pub fn new(default: Policy, routes: Vec<RouteSettings>) -> Result<Self, RouteError> {
        let mut compiled: Vec<Compiled> = Vec::with_capacity(routes.len());
        let mut seen: HashMap<String, String> = HashMap::new();
        for settings in routes {
            let next = Compiled::new(settings)?;
            for identity in next.identities() {
                if let Some(other) = seen.insert(identity, next.route.name.clone()) {
                    return Err(RouteError::Tie(other, next.route.name.clone()));
                }
            }
            compiled.push(next);
        }
        let default = Arc::new(Route {
            name: "default".to_owned(),
            policy: default,
        });
        Ok(Self {
            routes: compiled,
            default,
        })
    }

    /// The route of a request. `host` is without port.
    pub fn find(&self, host: &str, path: &str, method: &Method) -> Matched {
        let normalised = normalise(path);
        if self.routes.is_empty() {
            let route = self.default.clone();
            return Matched {
                route,
                ambiguous: None,
                suspicious: normalised.suspicious,
            };
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let route = self.best(&host, &normalised.segments, Some(method));
        let raw = self.best(&host, &raw_segments(path), Some(method));
        let mut readings = vec![raw];
        if normalised.suspicious {
            readings.push(self.best(&host, &loosely(path), Some(method)));
        }
        let ambiguous = readings
            .into_iter()
            .find(|reading| !Arc::ptr_eq(&route, reading))
            .or_else(|| self.evaded(&route, &host, path, method));
        Matched {
            route,
            ambiguous,
            suspicious: normalised.suspicious,
        }
    }

    /// R27: whether some covered method has a covering route at this path.
    pub fn path_is_covered(&self, host: &str, path: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let segments = normalise(path).segments;
        let covered = |route: &Arc<Route>| {
            route.policy.methods.iter().any(|method| {
                let best = self.best(&host, &segments, Some(method));
                best.covers(method) || self.evaded(&best, &host, path, method).is_some()
            })
        };
        let default = std::iter::once(&self.default);
        self.routes
            .iter()
            .map(|compiled| &compiled.route)
            .chain(default)
            .any(covered)
    }

    /// R2: a covering route that the request slips past by a spelling which some upstreams take for
    /// the route's own.
    fn evaded(
        &self,
        route: &Arc<Route>,
        host: &str,
        path: &str,
        method: &Method,
    ) -> Option<Arc<Route>> {
        if route.covers(method) || self.routes.is_empty() {
            return None;
        }
        let segments = generously(path);
        let ranked: Vec<_> = self
            .routes
            .iter()
            .filter_map(|compiled| {
                let rank = compiled.rank(host, &compiled.generous, &segments, Some(method))?;
                Some((rank, &compiled.route))
            })
            .collect();
        let Some(best) = ranked.iter().map(|(rank, _)| rank).max() else {
            // Read so, it is under no route: what holds for the rest holds for it.
            return self.default.covers(method).then(|| self.default.clone());
        };
        let mut of_best = ranked.iter().filter(|(rank, _)| rank == best);
        if of_best.clone().any(|(_, other)| Arc::ptr_eq(other, route)) {
            return None;
        }
        let evaded = of_best.find(|(_, other)| other.covers(method))?;
        Some(evaded.1.clone())
    }

    fn best(&self, host: &str, segments: &[String], method: Option<&Method>) -> Arc<Route> {
        self.routes
            .iter()
            .filter_map(|route| Some((route.rank(host, &route.path, segments, method)?, route)))
            .max_by(|(one, _), (other, _)| one.cmp(other))
            .map_or_else(|| self.default.clone(), |(_, route)| route.route.clone())
    }
}

impl Compiled {
    fn new(settings: RouteSettings) -> Result<Self, RouteError> {
        let generous = settings.path.strip_prefix('/').map(generous_pattern);
        let path = match parse_path(&settings.path) {
            Ok(path) => path,
            Err(why) => return Err(RouteError::Pattern(settings.name, why)),
        };
        let host = match settings.host.map(|host| host.to_ascii_lowercase()) {
            None => HostPattern::Any,
            Some(host) => match host.strip_prefix('*') {
                Some(suffix) => HostPattern::Suffix(suffix.to_owned()),
                None => HostPattern::Exact(host),
            },
        };
        let route = Arc::new(Route {
            name: settings.name,
            policy: settings.policy,
        });
        Ok(Self {
            route,
            host,
            path,
            generous: generous.unwrap_or_default(),
            methods: settings.methods,
        })
    }

    /// One text per method (or one for all): equal texts are ties.
    fn identities(&self) -> Vec<String> {
        let shape: Vec<_> = self
            .path
            .iter()
            .map(|segment| match segment {
                Segment::Literal(text) => format!("/={text}"),
                Segment::Parameter => "/{}".to_owned(),
                Segment::Rest => "/{*}".to_owned(),
            })
            .collect();
        let base = format!("{:?} {}", self.host, shape.concat());
        match &self.methods {
            None => vec![base],
            Some(methods) => methods
                .iter()
                .map(|method| format!("{base} {method}"))
                .collect(),
        }
    }

    /// `path`: one of the two that it has.
    fn rank(
        &self,
        host: &str,
        path: &[Segment],
        segments: &[String],
        method: Option<&Method>,
    ) -> Option<Rank> {
        let host = match &self.host {
            HostPattern::Any => (0, 0),
            HostPattern::Suffix(suffix) => {
                let matches = host.len() > suffix.len() && host.ends_with(suffix.as_str());
                matches.then_some((1, suffix.len()))?
            }
            HostPattern::Exact(exact) => (host == exact).then_some((2, 0))?,
        };
        let methods = match (&self.methods, method) {
            (Some(methods), Some(method)) => methods.contains(method).then_some(true)?,
            (Some(_), None) => true,
            (None, _) => false,
        };
        Some(Rank {
            host,
            path: rank_path(path, segments)?,
            methods,
        })
    }
}

fn rank_path(path: &[Segment], segments: &[String]) -> Option<Vec<u8>> {
    let mut rank = Vec::with_capacity(path.len());
    let mut rest = segments.iter();
    for pattern in path {
        match pattern {
            Segment::Rest => {
                // One or more: `/a/{*rest}` matches neither `/a` nor `/a/`.
                let first = rest.next()?;
                if first.is_empty() && rest.len() == 0 {
                    return None;
                }
                rank.push(1);
                return Some(rank);
            }
            Segment::Parameter => {
                if rest.next()?.is_empty() {
                    return None;
                }
                rank.push(2);
            }
            Segment::Literal(literal) => {
                if rest.next()? != literal {
                    return None;
                }
                rank.push(3);
            }
        }
    }
    rest.next().is_none().then_some(rank)
}

/// A pattern without its first slash, its literals read as generously as a path.
fn generous_pattern(path: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    for part in path.split('/') {
        if part.starts_with("{*") {
            segments.push(Segment::Rest);
        } else if part.starts_with('{') {
            segments.push(Segment::Parameter);
        } else {
            segments.extend(generously(part).into_iter().map(Segment::Literal));
        }
    }
    segments
}

fn parse_path(path: &str) -> Result<Vec<Segment>, &'static str> {
    let Some(rest) = path.strip_prefix('/') else {
        return Err("the path must begin with /");
    };
    let mut segments = Vec::new();
    let mut parts = rest.split('/').peekable();
    while let Some(part) = parts.next() {
        let name = part
            .strip_prefix('{')
            .and_then(|part| part.strip_suffix('}'));
        segments.push(match name.map(|name| name.strip_prefix('*').ok_or(name)) {
            Some(Ok(_)) if parts.peek().is_some() => return Err("{*rest} must come last"),
            Some(Ok("") | Err("")) => return Err("a parameter needs a name"),
            Some(Ok(_)) => Segment::Rest,
            Some(Err(_)) => Segment::Parameter,
            None if part.contains(['{', '}']) => return Err("a parameter is a whole segment"),
            None => Segment::Literal(part.to_owned()),
        });
    }
    // A literal is compared in the same form as a request's path.
    let normal = normalise(path).segments;
    if normal.len() == segments.len() {
        for (segment, normal) in segments.iter_mut().zip(normal) {
            if let Segment::Literal(literal) = segment {
                *literal = normal;
            }
        }
    }
    Ok(segments)
}

#[cfg(test)]
mod tests;
