//! Cargo features that add backends and commands to a build.

/// Returns the cargo feature that adds a backend.
pub(super) fn feature_of(backend: &str) -> Option<&'static str> {
    match backend {
        "simulated" => Some("conformance"),
        super::MODULE_BACKEND => Some("wasm"),
        super::CONTAINER_BACKEND => Some("container"),
        super::MACHINE_BACKEND => Some("vm"),
        _ => None,
    }
}

/// Returns the remedy for a feature that this build does not have.
pub fn build_with(feature: &str) -> String {
    format!("in the sources of Cofferdam: cargo install --path crates/cofferdam --features {feature} (or full for all)")
}
