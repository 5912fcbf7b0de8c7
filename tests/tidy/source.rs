//! Source files as the rules see them: raw text, and code without comments, strings and tests.

use std::fs;
use std::path::{Path, PathBuf};

/// A file below the repository's root.
pub(crate) struct Source {
    /// `src/proxy/mod.rs`.
    pub(crate) path: String,
    /// As it is.
    pub(crate) text: String,
    /// Comments and the insides of literals blanked; as many lines as `text`.
    pub(crate) code: String,
    /// The same without test code: `tests.rs`, `tests/`, `#[cfg(test)]` items.
    pub(crate) shipped: String,
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let code = blank(&text);
        let shipped = if is_test_file(&path) {
            newlines(&code)
        } else {
            without_test_items(&code)
        };
        Self {
            path,
            text,
            code,
            shipped,
        }
    }

    /// The line that holds octet `at` of `code` or `shipped`, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.code[..at].matches('\n').count()
    }

    /// The room a file of `src` belongs to.
    pub(crate) fn room(&self) -> Option<&str> {
        let below = self.path.strip_prefix("src/")?;
        let first = below.split('/').next()?;
        Some(first.trim_end_matches(".rs"))
    }
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Reads a file below the root.
pub(crate) fn read(path: &str) -> String {
    let full = root().join(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()))
}

/// Every file below `folder` whose name ends so, sorted.
pub(crate) fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    let mut names: Vec<String> = found
        .iter()
        .filter_map(|path| path.strip_prefix(root()).ok()?.to_str())
        .filter(|path| path.ends_with(ending))
        .map(str::to_owned)
        .collect();
    names.sort();
    assert!(!names.is_empty(), "no *{ending} below {folder}");
    names
}

/// Every Rust file below `folder`.
pub(crate) fn sources(folder: &str) -> Vec<Source> {
    files(folder, ".rs")
        .into_iter()
        .map(|path| {
            let text = read(&path);
            Source::new(path, text)
        })
        .collect()
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    const NOT_OURS: [&str; 5] = [".git", "target", ".venv", "node_modules", "__pycache__"];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if NOT_OURS.contains(&name.as_ref()) {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn newlines(code: &str) -> String {
    code.chars()
        .map(|letter| if letter == '\n' { '\n' } else { ' ' })
        .collect()
}

/// Blanks comments and what stands inside string and character literals; octets keep their places.
fn blank(text: &str) -> String {
    let octets = text.as_bytes();
    let mut out = octets.to_vec();
    let mut at = 0;
    while at < octets.len() {
        let Some(end) = literal_end(octets, at) else {
            at += 1;
            continue;
        };
        for octet in &mut out[at..end] {
            if *octet != b'\n' {
                *octet = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(out).unwrap()
}

/// Where the comment or literal that begins at `at` ends, if one does.
fn literal_end(octets: &[u8], at: usize) -> Option<usize> {
    let rest = &octets[at..];
    let before = at.checked_sub(1).map(|before| octets[before]);
    let in_word = before.is_some_and(|octet| octet.is_ascii_alphanumeric() || octet == b'_');
    let until = |needle: &[u8]| {
        let found = rest
            .windows(needle.len())
            .position(|window| window == needle);
        at + found.map_or(rest.len(), |found| found + needle.len())
    };
    match rest {
        [b'/', b'/', ..] => Some(until(b"\n") - usize::from(until(b"\n") < octets.len())),
        [b'/', b'*', ..] => Some(until(b"*/")),
        [b'r', b'"' | b'#', ..] if !in_word || before == Some(b'b') => {
            let hashes = rest[1..].iter().take_while(|octet| **octet == b'#').count();
            if rest.get(1 + hashes) != Some(&b'"') {
                return None;
            }
            let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
            let body = &rest[hashes + 2..];
            let found = body
                .windows(close.len())
                .position(|window| window == close.as_slice())?;
            Some(at + hashes + 2 + found + close.len())
        }
        [b'"', body @ ..] => Some(at + 1 + quoted_len(body, b'"')),
        [b'\'', b'\\', body @ ..] => Some(at + 2 + 1 + quoted_len(&body[1..], b'\'')),
        // A character of any width, and not a lifetime.
        [b'\'', first, ..] if *first != b'\'' => {
            let width = rest[1..].iter().take(5).position(|octet| *octet == b'\'')?;
            let inner = std::str::from_utf8(&rest[1..=width]).ok()?;
            (inner.chars().count() == 1).then_some(at + width + 2)
        }
        _ => None,
    }
}

fn quoted_len(body: &[u8], close: u8) -> usize {
    let mut at = 0;
    while at < body.len() {
        match body[at] {
            b'\\' => at += 2,
            octet if octet == close => return at + 1,
            _ => at += 1,
        }
    }
    body.len()
}

/// Blanks each item behind `#[cfg(test)]`.
fn without_test_items(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(found) = code[from..].find(MARK) {
        let start = from + found;
        let end = item_end(code, start + MARK.len());
        for octet in &mut out[start..end] {
            if *octet != b'\n' {
                *octet = b' ';
            }
        }
        from = end;
    }
    String::from_utf8(out).unwrap()
}

/// Where the item that begins at `at` ends: its `;`, or the brace that closes its body.
pub(crate) fn item_end(code: &str, at: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, octet) in code.as_bytes()[at..].iter().enumerate() {
        match octet {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + offset + 1;
                }
            }
            b';' if depth == 0 => return at + offset + 1,
            _ => {}
        }
    }
    code.len()
}

#[test]
fn comments_literals_and_tests_are_told_from_code() {
    let text = r#"//! crate::a
use crate::b; // crate::c
const S: &str = "crate::d \" {"; /* crate::e */
fn f<'a>(x: &'a str) -> char { '{' }
const R: &str = r"crate::f";
#[cfg(test)]
mod tests { use crate::g; fn h() {} }
fn after() -> char { '\'' }
"#;
    let source = Source::new("src/proxy/x.rs".into(), text.into());
    assert_eq!(source.room(), Some("proxy"));
    assert_eq!(source.code.lines().count(), text.lines().count());
    for hidden in [
        "crate::a", "crate::c", "crate::d", "crate::e", "crate::f", "'{'",
    ] {
        assert!(!source.code.contains(hidden), "{hidden}");
    }
    assert!(source.code.contains("crate::b") && source.code.contains("crate::g"));
    assert!(source.code.contains("fn f<'a>(x: &'a str)"));
    assert!(!source.shipped.contains("crate::g") && source.shipped.contains("fn after"));
    assert_eq!(source.line(source.code.find("fn after").unwrap()), 8);
}
