//! The environment variables that every guest gets.

use cofferdam_contract::{EnvDelta, WORKSPACE_PATH};

/// Returns the base environment of every guest. WASI has no working directory, so `PWD` carries it.
pub(crate) fn base_environment(working_dir: &str) -> [(&'static str, &str); 4] {
    [("PATH", "/workspace"), ("HOME", "/workspace"), ("LANG", "C.UTF-8"), ("PWD", working_dir)]
}

/// Returns the environment of a guest whose request changes nothing, in the order of requests.
pub(crate) fn plain_environment() -> Vec<String> {
    let base = base_environment(WORKSPACE_PATH);
    EnvDelta::default().apply(base).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}
