//! What metrics are told apart by: words of a fixed set, and the names of routes.

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

/// Labels of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route's name.
    pub route: String,
    /// The method; unknown ones are `_OTHER`.
    pub method: &'static str,
    /// What became of it: `executed`, `replayed`, `passed`, `unprotected`, or a problem's code.
    pub outcome: &'static str,
}

/// One label, a fixed word.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Label<const N: usize>(pub [(&'static str, &'static str); N]);

impl<const N: usize> EncodeLabelSet for Label<N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }
}

/// The method as a label of bounded cardinality.
pub fn method_label(method: &str) -> &'static str {
    const KNOWN: [&str; 8] = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
    ];
    KNOWN
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("_OTHER")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_methods_share_one_label() {
        assert_eq!(method_label("POST"), "POST");
        assert_eq!(method_label("BREW"), "_OTHER");
    }
}
