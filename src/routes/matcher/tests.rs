//! Which route wins, and which configurations are ties.

use super::*;
use crate::idempotency::policy::Mode;

fn route(name: &str, host: Option<&str>, path: &str, methods: Option<&[Method]>) -> RouteSettings {
    RouteSettings {
        name: name.to_owned(),
        host: host.map(str::to_owned),
        path: path.to_owned(),
        methods: methods.map(<[Method]>::to_vec),
        policy: Policy::default(),
    }
}

fn routes(list: Vec<RouteSettings>) -> Routes {
    Routes::new(
        Policy {
            mode: Mode::Off,
            ..Policy::default()
        },
        list,
    )
    .unwrap()
}

fn found(routes: &Routes, host: &str, path: &str) -> String {
    routes.find(host, path, &Method::POST).route.name.clone()
}

#[test]
fn the_best_match_wins_in_any_order() {
    let mut list = vec![
        route("rest", None, "/v1/{*rest}", None),
        route("id", None, "/v1/{id}", None),
        route("literal", None, "/v1/orders", None),
        route("method", None, "/v1/orders", Some(&[Method::POST])),
        route("deep", None, "/v1/{id}/lines", None),
        route("suffix", Some("*.example.com"), "/{*rest}", None),
        route("longer", Some("*.api.example.com"), "/{*rest}", None),
        route("exact", Some("api.example.com"), "/{*rest}", None),
    ];
    for _ in 0..list.len() {
        list.rotate_left(1);
        let routes = routes(list.clone());
        assert_eq!(found(&routes, "h", "/v1/orders"), "method");
        assert_eq!(
            routes.find("h", "/v1/orders", &Method::PUT).route.name,
            "literal"
        );
        assert_eq!(found(&routes, "h", "/v1/7"), "id");
        assert_eq!(found(&routes, "h", "/v1/7/lines"), "deep");
        assert_eq!(found(&routes, "h", "/v1/7/other"), "rest");
        assert_eq!(found(&routes, "h", "/v1/"), "default");
        assert_eq!(found(&routes, "h", "/v1"), "default");
        assert_eq!(found(&routes, "API.example.com.", "/v1/orders"), "exact");
        assert_eq!(found(&routes, "x.api.example.com", "/v1/orders"), "longer");
        assert_eq!(found(&routes, "x.example.com", "/v1/orders"), "suffix");
        assert_eq!(found(&routes, "example.com", "/v1/orders"), "method");
    }
}

#[test]
fn a_literal_beats_a_parameter_at_the_first_segment_that_differs() {
    let routes = routes(vec![
        route("early", None, "/a/{x}/{y}", None),
        route("late", None, "/{x}/b/c", None),
    ]);
    assert_eq!(found(&routes, "h", "/a/b/c"), "early");
}

#[test]
fn ties_are_errors_whatever_the_parameters_are_called() {
    let tie = |list| Routes::new(Policy::default(), list).unwrap_err();
    let error = tie(vec![
        route("a", None, "/v/{x}", None),
        route("b", None, "/v/{y}", None),
    ]);
    assert_eq!(error, RouteError::Tie("a".into(), "b".into()));
    tie(vec![
        route("a", None, "/v", Some(&[Method::POST, Method::PUT])),
        route("b", None, "/v", Some(&[Method::PUT])),
    ]);
    tie(vec![
        route("a", Some("H"), "/%76", None),
        route("b", Some("h"), "/v", None),
    ]);
    routes(vec![
        route("a", None, "/v", Some(&[Method::POST])),
        route("b", None, "/v", Some(&[Method::PUT])),
        route("c", None, "/v", None),
        route("d", Some("h"), "/v", None),
    ]);
}

#[test]
fn raw_and_normalised_paths_that_match_differently_are_seen() {
    let routes = routes(vec![route("orders", None, "/v1/orders", None)]);
    for path in [
        "/v1//orders",
        "/v1/./orders",
        "/v1/%6frders",
        "/v1/x/../orders",
    ] {
        let matched = routes.find("h", path, &Method::POST);
        assert_eq!(matched.route.name, "orders", "{path}");
        assert_eq!(matched.ambiguous.unwrap().name, "default", "{path}");
    }
    let matched = routes.find("h", "/v1/orders", &Method::POST);
    assert!(matched.ambiguous.is_none() && !matched.suspicious);
}

#[test]
fn a_path_that_some_upstreams_read_as_a_covered_one_is_seen() {
    let routes = routes(vec![route("orders", None, "/v1/orders", None)]);
    for path in [
        "/v1%2Forders",
        "/v1%2f%2e/orders",
        "/v1%5corders",
        "/v1\\orders",
    ] {
        let matched = routes.find("h", path, &Method::POST);
        assert_eq!(matched.route.name, "default", "{path}");
        assert_eq!(matched.ambiguous.unwrap().name, "orders", "{path}");
    }
    let elsewhere = routes.find("h", "/files/a%2Fb", &Method::POST);
    assert!(elsewhere.ambiguous.is_none() && elsewhere.suspicious);
}

#[test]
fn patterns_that_are_none_are_refused() {
    for path in [
        "v1",
        "/a/{*rest}/b",
        "/a/{}",
        "/a/{*}",
        "/a/x{id}",
        "/a/{id}x",
    ] {
        let result = Routes::new(Policy::default(), vec![route("r", None, path, None)]);
        assert!(matches!(result, Err(RouteError::Pattern(..))), "{path}");
    }
}

#[test]
fn a_path_is_covered_if_some_covered_method_is_there() {
    let routes = routes(vec![route(
        "orders",
        None,
        "/v1/orders",
        Some(&[Method::POST]),
    )]);
    assert!(routes.path_is_covered("h", "/v1/orders"));
    assert!(routes.path_is_covered("h", "/v1/%6frders"));
    assert!(!routes.path_is_covered("h", "/v1/other"));
}

#[test]
fn no_spelling_slips_past_a_covering_route() {
    let off = Policy {
        mode: Mode::Off,
        ..Policy::default()
    };
    let list = vec![
        route("orders", None, "/v1/orders", None),
        route("lines", None, "/v1/orders/{id}/lines/", None),
        RouteSettings {
            policy: off.clone(),
            ..route("open", None, "/V1/open", None)
        },
        route("shut", None, "/v1/open", None),
    ];
    let routes = Routes::new(off, list).unwrap();
    for path in [
        "/v1/orders/",
        "/V1/orders",
        "/v1/orders;jsessionid=1",
        "/v1;x/orders",
        "/v1/orders%3bx",
        "/v1/Orders%2F",
        "/v1/orders/7/lines",
        "/v1/ORDERS/7/lines;x/",
        "/V1/OPEN",
    ] {
        let found = routes.find("h", path, &Method::POST);
        assert_eq!(found.route.policy.mode, Mode::Off, "{path}");
        let evaded = found.ambiguous.unwrap_or_else(|| panic!("{path}"));
        assert!(evaded.covers(&Method::POST), "{path}");
        // Nor does an override of the method (R27).
        assert!(routes.path_is_covered("h", path), "{path}");
        // What no route covers is nobody's to refuse.
        let read = routes.find("h", path, &Method::GET).ambiguous;
        assert!(
            read.is_none_or(|other| !other.covers(&Method::GET)),
            "{path}"
        );
    }
    // Somebody said that this one is another.
    let open = routes.find("h", "/V1/open", &Method::POST);
    assert_eq!(
        (open.route.name.as_str(), open.ambiguous.is_none()),
        ("open", true)
    );
    for path in [
        "/v1/orders2",
        "/v1/order",
        "/v1",
        "/",
        "/v1/orders/7",
        "/v1/orders/7/lines/8",
    ] {
        assert!(
            routes.find("h", path, &Method::POST).ambiguous.is_none(),
            "{path}"
        );
    }
}

#[test]
fn no_spelling_slips_out_of_an_uncovered_route_past_the_default() {
    let off = Policy {
        mode: Mode::Off,
        ..Policy::default()
    };
    let hooks = RouteSettings {
        policy: off,
        ..route("hooks", None, "/hooks/{*rest}", None)
    };
    let routes = Routes::new(Policy::default(), vec![hooks]).unwrap();
    for path in [
        "/hooks/../orders",
        "/hooks/..;/orders",
        "/hooks/..;x=1/orders",
        "/hooks/%2e%2e;/orders",
        "/hooks/..%3b/orders",
    ] {
        let evaded = routes.find("h", path, &Method::POST).ambiguous;
        assert!(evaded.is_some(), "{path}");
        assert!(routes.path_is_covered("h", path), "{path}");
    }
    for path in ["/hooks/x", "/hooks/X/", "/hooks/x;y=1", "/Hooks/x"] {
        let found = routes.find("h", path, &Method::POST);
        let slips_out = found.route.name == "hooks" && found.ambiguous.is_some();
        assert!(!slips_out, "{path}");
    }
}
