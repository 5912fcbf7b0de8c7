//! Positions and masking.

use super::*;

fn shown(line: &str) -> String {
    mask(line).0
}

fn place(text: &str, part: &str) -> (usize, usize, String, String) {
    let source = Source {
        name: "c.toml",
        text,
    };
    let start = text.find(part).unwrap();
    match source.place(&Origin::File(start..start + part.len())) {
        Place::Line {
            line,
            column,
            shown,
            before,
            width,
            ..
        } => {
            let under = shown.chars().skip(before).take(width).collect();
            (line, column, shown, under)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn lines_and_columns_count_from_one_and_in_characters() {
    let text = "a = 1\r\n\r\ncafé = \"é\" # ü\nlast = 9";
    assert_eq!(place(text, "a"), (1, 1, "a = 1".into(), "a".into()));
    assert_eq!(
        place(text, "\"é\""),
        (3, 8, "café = \"é\" # ü".into(), "\"é\"".into())
    );
    assert_eq!(place(text, "9"), (4, 8, "last = 9".into(), "9".into()));
}

#[test]
fn a_stretch_over_several_lines_is_underlined_on_the_first() {
    let text = "a = [\n 1,\n]\n";
    assert_eq!(place(text, "[\n 1,\n]"), (1, 5, "a = [".into(), "[".into()));
}

#[test]
fn a_place_at_or_past_the_end_is_still_a_place() {
    let source = Source {
        name: "c.toml",
        text: "a =",
    };
    for at in [3, 4, 400] {
        let Place::Line { width, line, .. } = source.place(&Origin::File(at..at)) else {
            panic!("no line");
        };
        assert_eq!((width, line), (1, 1), "{at}");
    }
}

#[test]
fn the_whole_and_the_environment_are_places() {
    let source = Source {
        name: "c.toml",
        text: "",
    };
    assert_eq!(source.place(&Origin::Whole), Place::Whole("c.toml".into()));
    assert_eq!(
        source.place(&Origin::Variable("X".into())),
        Place::Variable("X".into())
    );
}

#[test]
fn user_info_is_masked_and_the_rest_is_not() {
    let cases = [
        (
            r#"url = "redis://u:hunter2@h:1/0""#,
            r#"url = "redis://***@h:1/0""#,
        ),
        (r#"url = "redis://:hun@ter2@h""#, r#"url = "redis://***@h""#),
        (
            r#"url = "redis://:hun/ter#2@h" # x"#,
            r#"url = "redis://***@h" # x"#,
        ),
        (r#"url = "redis:/u:hunter2@h""#, r#"url = "redis:***@h""#),
        (r#"url = "u:hunter2@h""#, r#"url = "u:***@h""#),
        ("url = redis://u:hunter2@h", "url = redis://***@h"),
        (r#"url = "redis://:hunter2""#, r#"url = "redis://:***""#),
        (
            r#"url = "postgres://me:hunter2/db""#,
            r#"url = "postgres://me:***""#,
        ),
        (
            r#"url = "postgres://db:5432/db""#,
            r#"url = "postgres://db:5432/db""#,
        ),
        (r#"url = "redis://:123456""#, r#"url = "redis://:***""#),
        (r#"url = "redis://:hunter2/0""#, r#"url = "redis://:***""#),
        (
            r#"url = "redis://h/?password=hunter2""#,
            r#"url = "redis://h/?password=***"#,
        ),
        (r#"pasword = "hunter2""#, "pasword = ***"),
        (r#"password = "hunter2" # x"#, "password = ***"),
        (r#"store.secret="hunter2""#, "store.secret=***"),
        ("auth_token= 'hunter2'", "auth_token= ***"),
        (r#"x = { password = "hunter2" }"#, "x = { password = ***"),
        (
            r#"upstream = "http://u:hunter2@h:1""#,
            r#"upstream = "http://***@h:1""#,
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(shown(line), expected);
    }
}

#[test]
fn what_is_no_secret_stays() {
    for line in [
        r#"url = "redis://127.0.0.1:6379/0""#,
        r#"url = "redis://[::1]:6379""#,
        r#"url = "redis://host:99999""#,
        r#"url_file = "/run/secrets/url""#,
        r#"secret_file = "/run/secrets/url""#,
        r#"path = "/users/@me""#,
        r#"scope = ["header:x-tenant"]"#,
        r#"caller = ["x-auth-token"]"#,
        "# a comment: see x",
    ] {
        assert_eq!(shown(line), line);
    }
}

#[test]
fn the_underline_follows_the_mask() {
    let text = r#"url = "redis://user:hunter2@h:0/0" # mine"#;
    let (_, column, shown, under) = place(text, r#""redis://user:hunter2@h:0/0""#);
    assert_eq!(column, 7);
    assert_eq!(shown, r#"url = "redis://***@h:0/0" # mine"#);
    assert_eq!(under, r#""redis://***@h:0/0""#);
    // A syntax error in the middle of a password.
    let (_, _, _, under) = place(text, "hunter");
    assert!(!under.contains('h'), "{under}");
    let (_, _, _, under) = place(text, "# mine");
    assert_eq!(under, "# mine");
}

#[test]
fn control_characters_do_not_reach_a_terminal() {
    assert_eq!(shown("a = \u{1b}[31m\tx"), "a = \u{fffd}[31m\tx");
}

#[test]
fn quotes_are_short_and_masked() {
    assert_eq!(quoted("abc"), "\"abc\"");
    assert_eq!(quoted("redis://a:hunter2@h"), "\"redis://***@h\"");
    assert_eq!(quoted(&"x".repeat(60)), format!("\"{}\"", "x".repeat(60)));
    assert_eq!(
        quoted(&"x".repeat(61)),
        format!("\"{}...\"", "x".repeat(60))
    );
    assert_eq!(quoted("a\nb"), "\"a\"");
}

#[test]
fn lines_are_found_by_number_and_offset() {
    let source = Source {
        name: "",
        text: "a\nb\nc",
    };
    assert_eq!(source.line(2), "b");
    assert_eq!(source.line(9), "");
    assert_eq!(source.line_of(0), 1);
    assert_eq!(source.line_of(4), 3);
}
