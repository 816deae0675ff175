//! Results of a backend's examination of a host, as `cofferdam doctor` reports them.

use serde::Serialize;

use crate::Error;

/// The state of one requirement of a backend on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingState {
    /// Available and sufficient.
    Ok,
    /// Available, but enforces less than it could.
    Weaker,
    /// Not available.
    Missing,
}

/// One requirement of a backend and its state on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the requirement, such as `user namespaces`.
    pub name: String,
    /// Its state.
    pub state: FindingState,
    /// The observation.
    pub detail: String,
    /// The remedy, if the state is not ok and a remedy is known.
    pub remedy: Option<String>,
}

impl Finding {
    /// Creates a finding.
    pub fn new(name: &str, state: FindingState, detail: impl Into<String>, remedy: Option<&str>) -> Self {
        Self { name: name.to_owned(), state, detail: detail.into(), remedy: remedy.map(str::to_owned) }
    }

    /// Creates the finding of a requirement that is missing because of this error, with the error's remedy.
    pub fn missing(name: &str, error: &Error) -> Self {
        Self::new(name, FindingState::Missing, error.to_string(), error.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_the_documented_json_form() {
        let error = Error::unsupported("create", "there is no kernel").with_remedy("boot one");
        let findings = [Finding::missing("kernel", &error), Finding::new("landlock", FindingState::Ok, "ABI 7", None)];
        let expected = serde_json::json!([
            {"name": "kernel", "state": "missing", "detail": error.to_string(), "remedy": "boot one"},
            {"name": "landlock", "state": "ok", "detail": "ABI 7", "remedy": null},
        ]);
        assert_eq!(serde_json::to_value(findings).unwrap(), expected);
    }
}
