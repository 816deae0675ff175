//! Settings of all backends.

use std::num::NonZeroU64;

use cofferdam_contract::configuration::{Bound, Human, Variables};
use cofferdam_contract::{ByteSize, Result};
use serde::Deserialize;

#[cfg(feature = "container")]
use super::container::settings as containers;
#[cfg(not(feature = "container"))]
use super::unavailable::ignored as containers;
#[cfg(not(feature = "vm"))]
use super::unavailable::ignored as vms;
#[cfg(not(feature = "wasm"))]
use super::unavailable::ignored as wasm;
#[cfg(feature = "vm")]
use super::vm::settings as vms;
#[cfg(feature = "wasm")]
use super::wasm::settings as wasm;
use super::{ContainerSettings, E2bSettings, MakePolicy, PullPolicy, RemoteSettings, VmSettings, WasmSettings};

/// The settings of all backends that are not in a spec, as one source or several sources have them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setup {
    /// Settings of the image store.
    pub images: ImageSettings,
    /// Settings of the container backend.
    pub containers: ContainerSettings,
    /// Settings of the VM backend.
    pub vms: VmSettings,
    /// Settings of the WebAssembly backend, which become attributes of a spec.
    pub wasm: WasmSettings,
    /// Settings of the remote backend.
    pub remote: RemoteSettings,
    /// Settings of the E2B backend.
    pub e2b: E2bSettings,
}

/// The settings of the image store that one source has: the table `[images]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageSettings {
    /// Maximum size of the store.
    pub max_size: Option<Human<ByteSize>>,
    /// Registries that may be used without TLS.
    pub insecure_registries: Option<Vec<String>>,
}

impl ImageSettings {
    fn or(self, next: Self) -> Self {
        Self {
            max_size: self.max_size.or(next.max_size),
            insecure_registries: self.insecure_registries.or(next.insecure_registries),
        }
    }
}

/// The values of command-line options of single backends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackendOptions {
    /// The policy for a missing image of containers.
    pub pull: Option<PullPolicy>,
    /// The policy for a missing image of VMs.
    pub build: Option<MakePolicy>,
    /// Seed of deterministic clocks and random bytes of WebAssembly.
    pub deterministic: Option<String>,
    /// Maximum number of steps of each WebAssembly exec.
    pub fuel: Option<Bound<NonZeroU64>>,
}

impl Setup {
    /// Reads the environment variables that other programs use too.
    ///
    /// # Errors
    ///
    /// Returns an error that names a variable with an invalid value.
    pub fn from_environment() -> Result<Self> {
        let lookup = |name: &str| std::env::var_os(name);
        let variables = Variables::new(&lookup);
        Ok(Self {
            containers: ContainerSettings::from_environment(variables)?,
            remote: RemoteSettings::from_environment(variables)?,
            e2b: E2bSettings::from_environment(variables)?,
            ..Self::default()
        })
    }

    /// Reads all environment variables with settings of backends.
    ///
    /// # Errors
    ///
    /// Returns an error that names a variable with an invalid value.
    pub fn from_variables(variables: Variables<'_>) -> Result<Self> {
        Ok(Self {
            containers: ContainerSettings::from_environment(variables)?,
            vms: VmSettings::from_environment(variables)?,
            wasm: WasmSettings::from_environment(variables)?,
            remote: RemoteSettings::from_environment(variables)?,
            e2b: E2bSettings::from_environment(variables)?,
            ..Self::default()
        })
    }

    /// Returns these settings, and those of the next source where this one has none.
    pub fn or(self, next: Self) -> Self {
        let Self { images, containers, vms, wasm, remote, e2b } = self;
        Self {
            images: images.or(next.images),
            containers: containers.or(next.containers),
            vms: vms.or(next.vms),
            wasm: wasm.or(next.wasm),
            remote: remote.or(next.remote),
            e2b: e2b.or(next.e2b),
        }
    }
}

impl From<BackendOptions> for Setup {
    fn from(options: BackendOptions) -> Self {
        let BackendOptions { pull, build, deterministic, fuel } = options;
        Self { containers: containers(pull), vms: vms(build), wasm: wasm((deterministic, fuel)), ..Self::default() }
    }
}

impl From<ContainerSettings> for Setup {
    fn from(containers: ContainerSettings) -> Self {
        Self { containers, ..Self::default() }
    }
}
