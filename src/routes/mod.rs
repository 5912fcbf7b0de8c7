//! Which policy applies to a request (R2).
//!
//! Best match wins, order never matters: exact host before `*.` host before none; then segment by
//! segment literal before `{name}` before `{*rest}`; then with `methods` before without. A tie is a
//! configuration error. Matching uses a normalised copy of the path; the raw target is forwarded.

use http::Method;

use crate::idempotency::Policy;

/// One `[[route]]`, resolved: `policy` is `[policy]` with `[route.policy]` laid over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSettings {
    /// Unique; the label in metrics and logs.
    pub name: String,
    /// `api.example.com` or `*.example.com`, lower case.
    pub host: Option<String>,
    /// `/v1/payments/{id}`; `{*rest}` only at the end.
    pub path: String,
    /// Which methods the route matches; `None`: any.
    pub methods: Option<Vec<Method>>,
    /// What applies.
    pub policy: Policy,
}
