//! What is said to the person who wrote a configuration: one finding, its place, what to write.
//!
//! Invariant: a finding never holds a password. Source lines are masked before they come here
//! (`source/`), and messages name keys, not secrets.
//!
//! Deliberately absent: colours and counting; the command line prints.

use std::fmt;

use super::source::{Origin, Source};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The program does not start.
    Error,
    /// It starts; the choice weakens a promise.
    Warning,
}

/// Where a finding points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file as a whole.
    Whole(String),
    /// A stretch of one line.
    Line {
        /// The file's name as given.
        file: String,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
        /// The line, secrets masked.
        shown: String,
        /// Characters of `shown` before the underline.
        before: usize,
        /// Characters underlined, at least 1.
        width: usize,
    },
    /// An environment variable; its value is never shown.
    Variable(String),
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// Where.
    pub place: Place,
    /// What to write instead.
    pub help: Option<String>,
}

impl fmt::Display for Diagnostic {
    /// Several lines, the last one without a line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{word}: {}", self.message)?;
        let indent = match &self.place {
            Place::Whole(file) => {
                write!(f, "  --> {file}")?;
                2
            }
            Place::Variable(name) => {
                write!(f, "  --> environment variable {name}")?;
                2
            }
            Place::Line { line, .. } => {
                let indent = line.to_string().len() + 1;
                self.fmt_line(f, indent)?;
                indent
            }
        };
        match &self.help {
            Some(help) => write!(f, "\n{:indent$}= help: {help}", ""),
            None => Ok(()),
        }
    }
}

impl Diagnostic {
    fn fmt_line(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        let Place::Line {
            file,
            line,
            column,
            shown,
            before,
            width,
        } = &self.place
        else {
            return Ok(());
        };
        // Tabs stay tabs, so that the underline stands below what it means.
        let padding: String = shown
            .chars()
            .take(*before)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let arrow = indent - 1;
        writeln!(f, "{:arrow$}--> {file}:{line}:{column}", "")?;
        writeln!(f, "{:indent$}|", "")?;
        writeln!(f, "{line} | {shown}")?;
        write!(f, "{:indent$}| {padding}{}", "", "^".repeat(*width))
    }
}

/// Why a configuration is not valid: every error at once, and the warnings beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// At least one.
    pub errors: Vec<Diagnostic>,
    /// Worth knowing, too.
    pub warnings: Vec<Diagnostic>,
}

impl fmt::Display for ConfigErrors {
    /// The errors, a blank line between two.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Collects findings while a configuration is read.
pub(super) struct Sink<'a> {
    source: &'a Source<'a>,
    found: Vec<Diagnostic>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(source: &'a Source<'a>) -> Self {
        Self {
            source,
            found: Vec::new(),
        }
    }

    /// Adds an error; an empty help is none.
    pub(super) fn error(
        &mut self,
        at: &Origin,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(Severity::Error, at, message.into(), help.into());
    }

    /// Adds a warning.
    pub(super) fn warning(
        &mut self,
        at: &Origin,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(Severity::Warning, at, message.into(), help.into());
    }

    fn add(&mut self, severity: Severity, at: &Origin, message: String, help: String) {
        let finding = Diagnostic {
            severity,
            message,
            place: self.source.place(at),
            help: (!help.is_empty()).then_some(help),
        };
        // A route that inherits a mistake finds it again at the same place.
        if !self.found.contains(&finding) {
            self.found.push(finding);
        }
    }

    /// Drops what `keep` does not want.
    pub(super) fn retain(&mut self, keep: impl Fn(&Diagnostic) -> bool) {
        self.found.retain(keep);
    }

    /// Errors and warnings, each in the order of the file, the environment last.
    pub(super) fn finish(mut self) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        self.found.sort_by(|a, b| a.place.cmp(&b.place));
        self.found
            .into_iter()
            .partition(|finding| finding.severity == Severity::Error)
    }
}
