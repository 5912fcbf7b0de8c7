//! Which policy applies to a request (R2).
//!
//! Best match wins, order never matters: exact host before `*.` host before none; then segment by
//! segment literal before `{name}` before `{*rest}`; then with `methods` before without. A tie is a
//! configuration error. Matching uses a normalised copy of the path; the raw target is forwarded.

mod matcher;
mod path;

use http::Method;

use crate::idempotency::Policy;
use crate::idempotency::policy::Mode;

pub use matcher::{Matched, RouteError, Routes};

/// A route as a request meets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The label in metrics and logs; `default` where no `[[route]]` matched.
    pub name: String,
    /// What applies.
    pub policy: Policy,
}

impl Route {
    /// R1, R3: whether the rules apply to this method here.
    pub fn covers(&self, method: &Method) -> bool {
        self.policy.mode == Mode::Enforce && self.policy.methods.contains(method)
    }
}

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
