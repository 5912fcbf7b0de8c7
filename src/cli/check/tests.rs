//! What `check` prints and answers.

use super::*;

fn run(text: &str, env: &[(&str, &str)]) -> (u8, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    std::fs::write(&path, text).unwrap();
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut out = Vec::new();
    let code = check(Some(&path), &env.collect(), &mut out);
    let printed = String::from_utf8(out).unwrap();
    (code, printed.replace(&path.display().to_string(), "c.toml"))
}

#[test]
fn a_valid_configuration_is_summed_up() {
    let (code, printed) = run("", &[]);
    assert_eq!(code, 0);
    assert_eq!(
        printed,
        "Valid configuration: c.toml\n\
         \x20 listen    0.0.0.0:4390\n\
         \x20 health    0.0.0.0:4391\n\
         \x20 upstream  http://127.0.0.1:3000\n\
         \x20 store     file:retrysafe.db\n\
         \x20 policy    enforce on POST, PUT, PATCH, DELETE\n\
         \x20 routes    0\n"
    );
}

#[test]
fn routes_are_named_and_no_password_is_shown() {
    let text = "upstream.url = \"http://[::1]:81\"\npolicy.mode = \"off\"\n\
        [[route]]\nname = \"a\"\npath = \"/a\"\n[[route]]\nname = \"b\"\npath = \"/b\"\n";
    let (code, printed) = run(text, &[("RETRYSAFE__STORE__URL", "redis://u:hunter2@h/1")]);
    assert_eq!(code, 0);
    assert!(printed.contains("  store     redis://h/1\n"), "{printed}");
    assert!(
        printed.contains("  upstream  http://[::1]:81\n"),
        "{printed}"
    );
    assert!(printed.contains("  policy    off on POST"), "{printed}");
    assert!(printed.contains("  routes    2 (a, b)\n"), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn a_cache_is_named_beside_its_store() {
    let text = "[store]\nurl = \"postgres://u:hunter2@h/d\"\ncache = \"redis://:hunter2@c\"\n";
    let (code, printed) = run(text, &[]);
    assert_eq!(code, 0);
    let line = "  store     postgres://h:5432/d with the cache redis://c\n";
    assert!(printed.contains(line), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
    // Both urls may come from the environment, over whatever is written.
    let env = [("RETRYSAFE__STORE__CACHE", "redis://other:1")];
    let (_, printed) = run(&text.replace("cache =", "cache_file ="), &env);
    assert!(
        printed.contains("with the cache redis://other:1\n"),
        "{printed}"
    );
}

#[test]
fn warnings_are_printed_and_the_code_is_0() {
    let (code, printed) = run(
        "store.url = \"memory:\"\npolicy.on_5xx = \"release\"\n",
        &[],
    );
    assert_eq!(code, 0);
    assert!(printed.starts_with("warning: "), "{printed}");
    assert!(
        printed.contains("\n\nValid configuration: c.toml (2 warnings)\n"),
        "{printed}"
    );
}

#[test]
fn errors_are_counted_and_the_code_is_78() {
    let (code, printed) = run("sever = 1\nstore.url = \"memory:\"\npolicy.ttl = 5\n", &[]);
    assert_eq!(code, 78);
    assert!(
        printed.starts_with("error: unknown key `sever`"),
        "{printed}"
    );
    assert!(
        printed.ends_with("\n\nInvalid configuration: 2 errors, 1 warning\n"),
        "{printed}"
    );
    let (code, printed) = run("policy.ttl = 5\n", &[]);
    assert_eq!(code, 78);
    assert!(
        printed.ends_with("Invalid configuration: 1 error\n"),
        "{printed}"
    );
}

#[test]
fn a_missing_file_is_invalid() {
    let mut out = Vec::new();
    let code = check(
        Some(Path::new("/nowhere/c.toml")),
        &Environment::new(),
        &mut out,
    );
    assert_eq!(code, 78);
    let printed = String::from_utf8(out).unwrap();
    assert!(printed.contains("  --> /nowhere/c.toml\n"), "{printed}");
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let mut nowhere: &mut [u8] = &mut [];
    let code = check(
        Some(Path::new("/nowhere")),
        &Environment::new(),
        &mut nowhere,
    );
    assert_eq!(code, 1);
}
