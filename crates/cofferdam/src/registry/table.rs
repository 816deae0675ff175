//! The table of backends: one row for each, and one file beside this one for each that this build can have.

use std::pin::Pin;
use std::sync::Arc;

#[cfg(feature = "conformance")]
use cofferdam_conformance::{Target, UnixPrograms};
use cofferdam_contract::{Backend, Error, Finding, Level, Result};
use cofferdam_process::ForkedLauncher;
use serde_json::Value;

use super::{BackendInfo, CONTAINER_BACKEND, DEFAULT_BACKEND, ImageProgress, MODULE_BACKEND, Setup, VM_BACKEND};

/// A backend that this version or another one has.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) info: BackendInfo,
    /// The cargo feature that adds it. `None` if every build or no build has it.
    pub(super) feature: Option<&'static str>,
    /// Other names, each with the qualifier that it stands for.
    aliases: &'static [(&'static str, Option<&'static str>)],
    /// The qualifiers that may follow the name, as in `docker:runsc`.
    qualifiers: Qualifiers,
    /// True if the backend is used only by its name, and never because of its level.
    pub(super) is_by_name: bool,
    /// True if its sandboxes are those of another server, where each costs something.
    pub(super) is_external: bool,
    /// `None` if this build lacks it.
    pub(super) implementation: Option<&'static Implementation>,
}

/// The qualifiers of a backend's name.
#[derive(Debug)]
enum Qualifiers {
    None,
    /// Any text.
    Any,
    OneOf(&'static [&'static str]),
}

/// The result of an examination of this host.
pub(super) type Examination<'a> = Pin<Box<dyn Future<Output = Vec<Finding>> + Send + 'a>>;

/// The functions of a backend of this build.
#[derive(Debug)]
pub(super) struct Implementation {
    /// Creates the backend. Starts, contacts and examines nothing that can wait for the first sandbox.
    pub(super) create: fn(Creation<'_>) -> Result<Arc<dyn Backend>>,
    /// Examines this host.
    pub(super) examine: fn(&Setup) -> Examination<'_>,
    /// True if `doctor` creates a sandbox as a test, which must take less than a second or so.
    pub(super) is_tried: bool,
    /// Returns the settings that a qualifier of the name stands for.
    pub(super) qualified: fn(&str) -> Setup,
    /// Returns the qualifier that stands for these settings, if there is one.
    pub(super) qualifier: fn(&Setup) -> Option<String>,
    /// Returns a one-line fingerprint of the settings that affect sandboxes.
    pub(super) fingerprint: fn(&Setup) -> Option<String>,
    /// Returns the settings that are attributes of a spec.
    pub(super) attributes: fn(&Setup) -> Vec<(String, Value)>,
    /// Adds programs for its guests, for the conformance suite.
    #[cfg(feature = "conformance")]
    pub(super) target: fn(Arc<dyn Backend>) -> Target,
}

/// The inputs of a backend's creation.
pub(super) struct Creation<'a> {
    /// True for a single sandbox: the backend prepares nothing for later ones.
    pub(super) is_single: bool,
    /// A launcher that was forked at program start.
    pub(super) launcher: Option<ForkedLauncher>,
    pub(super) setup: &'a Setup,
    /// A callback for the progress of pulling or building an image.
    pub(super) progress: ImageProgress,
}

impl Implementation {
    /// Creates an implementation without settings, whose guests are Unix programs.
    pub(super) const fn new(
        create: fn(Creation<'_>) -> Result<Arc<dyn Backend>>,
        examine: fn(&Setup) -> Examination<'_>,
    ) -> Self {
        Self {
            create,
            examine,
            is_tried: true,
            qualified: |_| Setup::default(),
            qualifier: |_| None,
            fingerprint: |_| None,
            attributes: |_| Vec::new(),
            #[cfg(feature = "conformance")]
            target: |backend| Target::new(backend, UnixPrograms::default()),
        }
    }
}

/// Returns the implementation in a module, if this build has its cargo feature.
macro_rules! built {
    ($feature:literal, $module:ident) => {{
        #[cfg(feature = $feature)]
        let implementation = Some(&super::$module::IMPLEMENTATION);
        #[cfg(not(feature = $feature))]
        let implementation = None;
        implementation
    }};
}

/// All known backends, lowest isolation level first.
pub(super) static TABLE: [Row; 8] = [
    row("simulated", Level::Simulated, "no isolation, deterministic; for tests", built!("conformance", simulated))
        .feature("conformance"),
    // Its level is that of the server's backend, which is not known yet: it is never chosen for its level.
    row("remote", Level::Simulated, "another Cofferdam server, whose backend has the level", built!("server", remote))
        .feature("server")
        .qualifiers(Qualifiers::Any)
        .external(),
    row(MODULE_BACKEND, Level::Wasm, "WebAssembly inside Cofferdam's own process", built!("wasm", wasm))
        .feature("wasm"),
    row(
        DEFAULT_BACKEND,
        Level::Process,
        "a process isolated by namespaces, filters and control groups",
        Some(&super::process::IMPLEMENTATION),
    )
    .aliases(&[("local", None)]),
    row(
        CONTAINER_BACKEND,
        Level::Container,
        "a container of the Docker or Podman engine",
        built!("container", container),
    )
    .feature("container")
    .qualifiers(Qualifiers::Any),
    row(VM_BACKEND, Level::Vm, "a VM of QEMU or Firecracker with its own kernel", built!("vm", vm))
        .feature("vm")
        .aliases(&[("qemu", Some("qemu")), ("firecracker", Some("firecracker"))])
        .qualifiers(Qualifiers::OneOf(&["qemu", "firecracker"])),
    row("apple-vz", Level::Vm, "a VM of macOS", None),
    row("e2b", Level::Vm, "a VM of the E2B cloud", built!("e2b", e2b))
        .feature("e2b")
        .qualifiers(Qualifiers::Any)
        .by_name_alone()
        .external(),
];

const fn row(
    name: &'static str,
    level: Level,
    summary: &'static str,
    implementation: Option<&'static Implementation>,
) -> Row {
    let info = BackendInfo { name, level, built_in: implementation.is_some(), summary };
    Row {
        info,
        feature: None,
        aliases: &[],
        qualifiers: Qualifiers::None,
        is_by_name: false,
        is_external: false,
        implementation,
    }
}

impl Row {
    const fn feature(mut self, feature: &'static str) -> Self {
        self.feature = Some(feature);
        self
    }

    const fn aliases(mut self, aliases: &'static [(&'static str, Option<&'static str>)]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn qualifiers(mut self, qualifiers: Qualifiers) -> Self {
        self.qualifiers = qualifiers;
        self
    }

    /// Keeps the backend from being chosen for its level: it sends code to another party.
    const fn by_name_alone(mut self) -> Self {
        self.is_by_name = true;
        self
    }

    /// Marks a backend whose sandboxes are those of another server.
    const fn external(mut self) -> Self {
        self.is_external = true;
        self
    }

    fn takes(&self, qualifier: &str) -> bool {
        match self.qualifiers {
            Qualifiers::None => false,
            Qualifiers::Any => !qualifier.is_empty(),
            Qualifiers::OneOf(all) => all.contains(&qualifier),
        }
    }

    /// Returns the row with this name or alias, and the qualifier in the name.
    fn named(name: &str) -> Result<Option<(&'static Self, Option<&str>)>> {
        let by_name = |name: &str| TABLE.iter().find(|row| row.info.name == name);
        let Some((base, qualifier)) = name.split_once(':') else {
            let alias = |row: &'static Self| {
                let found = row.aliases.iter().find(|(alias, _)| *alias == name)?;
                Some((row, found.1))
            };
            return Ok(by_name(name).map(|row| (row, None)).or_else(|| TABLE.iter().find_map(alias)));
        };
        match by_name(base).filter(|row| row.takes(qualifier)) {
            Some(row) => Ok(Some((row, Some(qualifier)))),
            None => {
                let what = format!("there is no backend '{}:{}'", base.escape_debug(), qualifier.escape_debug());
                Err(Error::invalid("select backend", what).with_remedy(format!(
                    "append a runtime to {CONTAINER_BACKEND}, such as docker:runsc, a VMM to {VM_BACKEND}: \
                     {VM_BACKEND}:qemu or {VM_BACKEND}:firecracker, the server's backend to remote, or a \
                     template to e2b"
                )))
            }
        }
    }
}

/// A backend of this build, found by a name.
pub(super) struct Named<'a> {
    pub(super) info: &'static BackendInfo,
    pub(super) implementation: &'static Implementation,
    qualifier: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// Finds a backend of this build.
    pub(super) fn find(name: &'a str) -> Result<Self> {
        let Some((row, qualifier)) = Row::named(name)? else {
            return Err(Error::invalid("select backend", format!("there is no backend '{}'", name.escape_debug()))
                .with_remedy(use_one_of()));
        };
        let Some(implementation) = row.implementation else {
            let name = row.info.name;
            return Err(match row.feature {
                Some(feature) => Error::unsupported("select backend", format!("this build has no backend '{name}'"))
                    .with_remedy(build_with(feature)),
                None => Error::unsupported("select backend", format!("the backend '{name}' is not in this version"))
                    .with_remedy(use_one_of()),
            });
        };
        Ok(Self { info: &row.info, implementation, qualifier })
    }

    /// Returns the settings that the name selects.
    pub(super) fn setup(&self) -> Setup {
        self.qualifier.map(self.implementation.qualified).unwrap_or_default()
    }
}

/// Returns the remedy for a feature that this build does not have.
pub fn build_with(feature: &str) -> String {
    format!("in the sources of Cofferdam: cargo install --path crates/cofferdam --features {feature} (or full for all)")
}

/// Returns the remedy that lists the backends of this build.
pub(super) fn use_one_of() -> String {
    let built_in = TABLE.iter().filter(|row| row.info.built_in).map(|row| row.info.name);
    format!("use one of: {}", built_in.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_backends_are_sorted_by_level_and_named_once() {
        let infos = TABLE.each_ref().map(|row| row.info);
        assert!(infos.windows(2).all(|pair| pair[0].level <= pair[1].level && pair[0].name != pair[1].name));
    }

    /// Checks the names that the registry needs even without a backend's feature.
    #[cfg(all(
        feature = "conformance",
        feature = "container",
        feature = "e2b",
        feature = "server",
        feature = "vm",
        feature = "wasm"
    ))]
    #[test]
    fn names_are_those_of_the_backends() {
        let backends = [
            cofferdam_simulated::NAME,
            cofferdam_server::remote::NAME,
            cofferdam_wasm::NAME,
            cofferdam_process::NAME,
            cofferdam_container::NAME,
            cofferdam_vm::NAME,
            cofferdam_e2b::NAME,
        ];
        let known: Vec<&str> = TABLE.iter().filter(|row| row.info.built_in).map(|row| row.info.name).collect();
        assert_eq!(known, backends);
        let constants = [MODULE_BACKEND, CONTAINER_BACKEND, VM_BACKEND];
        assert_eq!(constants, [cofferdam_wasm::NAME, cofferdam_container::NAME, cofferdam_vm::NAME]);
    }

    #[test]
    fn only_a_backend_of_this_build_has_an_implementation() {
        for row in &TABLE {
            assert_eq!(row.info.built_in, row.implementation.is_some(), "{}", row.info.name);
            assert!(row.feature.is_none() || row.info.level != Level::Process, "every build has the default backend");
        }
    }
}
