//! Checks on routes beside each other: names, ties (R2), and the bare path beside `{*rest}`.

use super::super::Config;
use super::Checks;
use crate::routes::RouteSettings;

impl Checks<'_, '_> {
    /// Every pair of routes.
    pub(super) fn routes(&mut self, config: &Config) {
        let document = self.document;
        let routes: Vec<_> = document.routes.iter().zip(&config.routes).collect();
        for (index, (table, route)) in routes.iter().enumerate() {
            for (_, earlier) in routes.iter().take(index) {
                if route.name == earlier.name && !route.name.is_empty() {
                    self.error(
                        Some(table),
                        &["route.name"],
                        format!("two routes are named `{}`", route.name),
                        "give each route a name of its own",
                    );
                }
                if tie(route, earlier) {
                    self.error(
                        Some(table),
                        &["route.path", "route.host", "route.methods"],
                        format!(
                            "the routes `{}` and `{}` match the same requests equally well",
                            earlier.name, route.name
                        ),
                        "set different hosts, paths or methods, or merge them",
                    );
                }
            }
            let bare = bare_path(route);
            let sibling = |bare: &str| {
                let mut others = routes.iter().map(|(_, other)| *other);
                others.any(|other| same_or_no_host(other, route) && covers(&other.path, bare))
            };
            if let Some(bare) = bare.filter(|bare| !sibling(bare)) {
                self.warning(
                    Some(table),
                    &["route.path"],
                    format!("`{}` does not match `{bare}` itself", route.path),
                    format!("if it should, add a route with path = \"{bare}\""),
                );
            }
        }
    }
}

/// A segment of a path pattern, names aside.
#[derive(Debug, PartialEq, Eq)]
enum Segment<'p> {
    Literal(&'p str),
    One,
    Rest,
}

fn segments(path: &str) -> Vec<Segment<'_>> {
    let segment = |text| match text {
        text if !str::starts_with(text, '{') => Segment::Literal(text),
        text if text.starts_with("{*") => Segment::Rest,
        _ => Segment::One,
    };
    let parts = path.strip_prefix('/').unwrap_or(path).split('/');
    parts.map(segment).collect()
}

/// R2: nothing decides between the two where both match.
fn tie(a: &RouteSettings, b: &RouteSettings) -> bool {
    let overlap = match (&a.methods, &b.methods) {
        (None, None) => true,
        (Some(a), Some(b)) => a.iter().any(|method| b.contains(method)),
        _ => false,
    };
    let complete = !a.path.is_empty() && !b.path.is_empty();
    complete && overlap && a.host == b.host && segments(&a.path) == segments(&b.path)
}

/// `/v1/payments` of `/v1/payments/{*rest}`.
fn bare_path(route: &RouteSettings) -> Option<&str> {
    let (bare, last) = route.path.rsplit_once('/')?;
    (last.starts_with("{*") && !bare.is_empty()).then_some(bare)
}

fn same_or_no_host(other: &RouteSettings, route: &RouteSettings) -> bool {
    other.host.is_none() || other.host == route.host
}

/// Whether `pattern` matches every path that `path` does.
fn covers(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (segments(pattern), segments(path));
    let mut rest = path.iter();
    for segment in &pattern {
        match (segment, rest.next()) {
            (Segment::Rest, Some(_)) => return true,
            (_, None) => return false,
            (Segment::One, Some(_)) => {}
            (literal, Some(other)) if literal != other => return false,
            _ => {}
        }
    }
    rest.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::Policy;
    use http::Method;

    fn route(host: Option<&str>, path: &str, methods: Option<&[Method]>) -> RouteSettings {
        RouteSettings {
            name: String::new(),
            host: host.map(str::to_owned),
            path: path.to_owned(),
            methods: methods.map(<[Method]>::to_vec),
            policy: Policy::default(),
        }
    }

    #[test]
    fn names_of_parameters_decide_nothing() {
        let tied = |a, b| tie(&route(None, a, None), &route(None, b, None));
        assert!(tied("/a", "/a"));
        assert!(tied("/a/{x}/b", "/a/{y}/b"));
        assert!(tied("/a/{*x}", "/a/{*y}"));
        assert!(!tied("/a/{x}", "/a/{*x}"));
        assert!(!tied("/a/{x}", "/a/b"));
        assert!(!tied("/a", "/a/"));
        assert!(!tied("/a", "/A"));
        assert!(
            !tied("", ""),
            "a path that could not be read ties with nothing"
        );
    }

    #[test]
    fn hosts_and_methods_decide() {
        let (get, post) = ([Method::GET], [Method::POST]);
        let both = [Method::GET, Method::POST];
        let tied = |a, b| tie(&route(None, "/a", a), &route(None, "/a", b));
        assert!(!tied(Some(&get), Some(&post)));
        assert!(tied(Some(&both), Some(&post)));
        assert!(
            !tied(Some(&both), None),
            "with methods comes before without"
        );
        let hosts = |a, b| tie(&route(a, "/a", None), &route(b, "/a", None));
        assert!(hosts(Some("a.b"), Some("a.b")));
        assert!(!hosts(Some("a.b"), Some("*.b")));
        assert!(!hosts(Some("a.b"), None));
    }

    #[test]
    fn the_bare_path_is_what_stands_before_the_rest() {
        let bare = |path| bare_path(&route(None, path, None)).map(str::to_owned);
        assert_eq!(bare("/v1/payments/{*rest}").unwrap(), "/v1/payments");
        assert_eq!(bare("/v1/{id}"), None);
        assert_eq!(bare("/{*rest}"), None);
        assert_eq!(bare(""), None);
    }

    #[test]
    fn a_sibling_may_match_by_parameter_or_rest() {
        for pattern in [
            "/v1/payments",
            "/v1/{x}",
            "/{a}/{b}",
            "/v1/{*rest}",
            "/{*rest}",
        ] {
            assert!(covers(pattern, "/v1/payments"), "{pattern}");
        }
        for pattern in [
            "/v1/payments/{*rest}",
            "/v1",
            "/v1/refunds",
            "/v1/{x}/y",
            "",
        ] {
            assert!(!covers(pattern, "/v1/payments"), "{pattern}");
        }
        assert!(covers("/v1/{x}", "/v1/{y}"));
        assert!(!covers("/v1/a", "/v1/{y}"));
    }
}
