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

#[cfg(all(test, feature = "conformance", feature = "container", feature = "vm", feature = "wasm"))]
mod tests {
    /// Checks the names that the registry needs even without a backend's feature.
    #[test]
    fn names_are_those_of_the_backends() {
        let backends = [
            cofferdam_simulated::NAME,
            cofferdam_wasm::NAME,
            cofferdam_process::NAME,
            cofferdam_container::NAME,
            cofferdam_vm::NAME,
        ];
        let known: Vec<&str> = super::super::built_in().map(|info| info.name).collect();
        assert_eq!(known, backends);
        let constants = [super::super::MODULE_BACKEND, super::super::CONTAINER_BACKEND, super::super::MACHINE_BACKEND];
        assert_eq!(constants, [cofferdam_wasm::NAME, cofferdam_container::NAME, cofferdam_vm::NAME]);
    }
}
