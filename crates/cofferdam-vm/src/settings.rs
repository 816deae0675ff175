//! Settings of the VM backend as one source has them: the table `[vms]`, the environment, or options.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use cofferdam_contract::configuration::{Human, Variables, from_text};
use cofferdam_contract::{ByteSize, Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer};

use crate::config::{MakePolicy, RootChoice, VmConfig};
use crate::firecracker::{self, Jailer};
use crate::vmm::{Acceleration, Driver};

/// The name of the default image of VMs.
pub const DEFAULT_IMAGE: &str = "default";

/// The settings that one source has; `None` leaves a setting to the next source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VmSettings {
    /// Directory of the images. Default: `vm` in the cache directory.
    pub images: Option<PathBuf>,
    /// The image of specs that name none. Default: the image [`DEFAULT_IMAGE`], if it exists.
    pub image: Option<String>,
    /// The policy for a missing image.
    pub build: Option<MakePolicy>,
    /// Memory of a VM whose spec has no memory limit.
    pub memory: Option<Human<ByteSize>>,
    /// CPUs of a VM whose spec has no CPU limit.
    pub processors: Option<u32>,
    /// The VMM.
    pub driver: Option<Driver>,
    /// Path of Firecracker's program. Default: the one in PATH, if it exists.
    pub firecracker: Option<PathBuf>,
    /// The use of Firecracker's jailer.
    pub jailer: Option<Jailer>,
    /// Path of QEMU's program.
    pub qemu: Option<PathBuf>,
    /// The accelerator.
    pub accelerator: Option<Acceleration>,
    /// QEMU's name of the CPU model.
    pub processor: Option<String>,
}

/// The facts about a user that defaults depend on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostPaths {
    /// The directory for caches of this program. Without one, everything is stored below the image directory.
    pub cache: Option<PathBuf>,
    /// The directory of the user's store of container images.
    pub container_images: Option<PathBuf>,
    /// The user's PATH.
    pub search_path: Option<OsString>,
}

impl VmSettings {
    /// Reads the settings in the environment: `COFFERDAM_VM_` and the key in capital letters.
    ///
    /// # Errors
    ///
    /// Returns an error that names a variable with an invalid value.
    pub fn from_environment(variables: Variables<'_>) -> Result<Self> {
        Ok(Self {
            images: variables.text("COFFERDAM_VM_IMAGES").map(PathBuf::from),
            image: variables.text("COFFERDAM_VM_IMAGE"),
            build: variables.parsed("COFFERDAM_VM_BUILD")?,
            memory: variables.parsed("COFFERDAM_VM_MEMORY")?.map(Human),
            processors: variables.parsed("COFFERDAM_VM_PROCESSORS")?,
            driver: variables.parsed("COFFERDAM_VM_DRIVER")?,
            firecracker: variables.text("COFFERDAM_VM_FIRECRACKER").map(PathBuf::from),
            jailer: variables.parsed("COFFERDAM_VM_JAILER")?,
            qemu: variables.text("COFFERDAM_VM_QEMU").map(PathBuf::from),
            accelerator: variables.parsed("COFFERDAM_VM_ACCELERATOR")?,
            processor: variables.text("COFFERDAM_VM_PROCESSOR"),
        })
    }

    /// Returns these settings, and those of the next source where this one has none.
    pub fn or(self, next: Self) -> Self {
        Self {
            images: self.images.or(next.images),
            image: self.image.or(next.image),
            build: self.build.or(next.build),
            memory: self.memory.or(next.memory),
            processors: self.processors.or(next.processors),
            driver: self.driver.or(next.driver),
            firecracker: self.firecracker.or(next.firecracker),
            jailer: self.jailer.or(next.jailer),
            qemu: self.qemu.or(next.qemu),
            accelerator: self.accelerator.or(next.accelerator),
            processor: self.processor.or(next.processor),
        }
    }

    /// Returns the name of the default image.
    pub fn default_image(&self) -> &str {
        self.image.as_deref().unwrap_or(DEFAULT_IMAGE)
    }

    /// Returns a one-line fingerprint. Settings with different fingerprints create different VMs.
    pub fn fingerprint(&self) -> String {
        let Self {
            images,
            image,
            build,
            memory,
            processors,
            driver,
            firecracker,
            jailer,
            qemu,
            accelerator,
            processor,
        } = self.clone();
        let policies = (build.unwrap_or_default(), driver.unwrap_or_default(), jailer.unwrap_or_default());
        let memory = memory.map(|Human(size)| size);
        let sizes = format!("{images:?} {image:?} {memory:?} {processors:?} {policies:?}");
        format!("{sizes} {firecracker:?} {qemu:?} {:?} {processor:?}", accelerator.unwrap_or_default())
    }

    /// Returns the configuration of a backend, with defaults for all settings that no source has.
    ///
    /// # Errors
    ///
    /// Returns `Unavailable` if neither a setting nor a cache directory names a directory for images.
    pub fn config(&self, host: &HostPaths) -> Result<VmConfig> {
        let Self {
            images,
            image,
            build,
            memory,
            processors,
            driver,
            firecracker,
            jailer,
            qemu,
            accelerator,
            processor,
        } = self.clone();
        let cache = |name: &str| host.cache.as_ref().map(|cache| cache.join(name));
        let no_cache = || {
            Error::new(ErrorKind::Unavailable, "configure", "this user has no cache directory for VM images")
                .with_remedy("set HOME or XDG_CACHE_HOME, or `images` in [vms] of the configuration file")
        };
        let images = images.or_else(|| cache("vm")).ok_or_else(no_cache)?;
        // Without a cache directory, everything is stored below the image directory.
        let packages = cache("debian").unwrap_or_else(|| images.join("packages"));
        let mut base = VmConfig::new(cache("machines").unwrap_or_else(|| images.join("machines")));
        base.qemu.program = qemu;
        base.firecracker.program = firecracker.or_else(|| host.find(firecracker::PROGRAM));
        base.firecracker.jailer = jailer.unwrap_or_default();
        if let Some(processor) = processor {
            base.qemu.processor = processor;
        }
        Ok(VmConfig {
            images,
            packages,
            container_images: host.container_images.clone(),
            root: image.map_or_else(|| RootChoice::BuiltOrSource(DEFAULT_IMAGE.to_owned()), RootChoice::Built),
            make: build.unwrap_or(base.make),
            memory: memory.map_or(base.memory, |Human(size)| size),
            processors: processors.unwrap_or(base.processors),
            driver: driver.unwrap_or(base.driver),
            acceleration: accelerator.unwrap_or(base.acceleration),
            ..base
        })
    }
}

impl HostPaths {
    /// Finds a program in the user's PATH.
    fn find(&self, name: &str) -> Option<PathBuf> {
        let directories = self.search_path.as_ref()?;
        let mut programs = std::env::split_paths(directories).map(|path| path.join(name));
        programs.find(|path| path.is_absolute() && path.is_file())
    }
}

impl Driver {
    /// Returns the word used in options and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Qemu => "qemu",
            Self::Firecracker => "firecracker",
        }
    }
}

impl FromStr for Driver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Auto, Self::Qemu, Self::Firecracker];
        let found = all.into_iter().find(|driver| driver.as_str() == text);
        found.ok_or_else(|| format!("'{}' is not a VMM; use auto, qemu or firecracker", text.escape_debug()))
    }
}

impl FromStr for Jailer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::Beside),
            // A relative path could run a program of the current directory as root.
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            _ => Err(format!("'{}' is not a jailer; use off, on or an absolute path", text.escape_debug())),
        }
    }
}

impl FromStr for Acceleration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "tcg" => Ok(Self::Tcg),
            "kvm" => Ok(Self::Kvm),
            _ => Err(format!("'{}' is not an accelerator; use auto, tcg or kvm", text.escape_debug())),
        }
    }
}

impl FromStr for MakePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            _ => Err(format!("'{}' is not a build policy; use never or missing", text.escape_debug())),
        }
    }
}

/// Implements `Deserialize` by the parser of the type's words.
macro_rules! deserialize_by_words {
    ($($name:ty),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                from_text(deserializer)
            }
        }
    )*};
}

deserialize_by_words!(Driver, Jailer, Acceleration, MakePolicy);

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> VmSettings {
        VmSettings {
            images: Some("/i".into()),
            image: Some("mine".to_owned()),
            memory: Some(Human(ByteSize::from_mebibytes(256))),
            processors: Some(3),
            driver: Some(Driver::Firecracker),
            firecracker: Some("/f".into()),
            jailer: Some(Jailer::At("/j".into())),
            qemu: Some("/q".into()),
            accelerator: Some(Acceleration::Kvm),
            processor: Some("Haswell-v1".to_owned()),
            build: Some(MakePolicy::Missing),
        }
    }

    #[test]
    fn words_are_understood_or_refused() {
        assert_eq!("kvm".parse(), Ok(Acceleration::Kvm));
        assert_eq!("missing".parse(), Ok(MakePolicy::Missing));
        assert_eq!("firecracker".parse(), Ok(Driver::Firecracker));
        assert!("xen".parse::<Driver>().is_err());
        assert_eq!(
            ["off", "on", "/x/jailer"].map(str::parse),
            [Ok(Jailer::Off), Ok(Jailer::Beside), Ok(Jailer::At("/x/jailer".into()))]
        );
        assert!("jailer".parse::<Jailer>().is_err() && "".parse::<Jailer>().is_err());
        let jailed = VmSettings { jailer: Some(Jailer::Beside), ..VmSettings::default() };
        assert_ne!(jailed.fingerprint(), VmSettings::default().fingerprint());
        assert!("hvf".parse::<Acceleration>().is_err() && "always".parse::<MakePolicy>().is_err());
    }

    #[test]
    fn settings_reach_the_backend() {
        let config = all().config(&HostPaths::default()).unwrap();
        assert_eq!((config.images, config.root), ("/i".into(), RootChoice::Built("mine".to_owned())));
        assert_eq!(
            (config.memory, config.processors, config.make),
            (ByteSize::from_mebibytes(256), 3, MakePolicy::Missing)
        );
        assert_eq!((config.qemu.program, config.acceleration), (Some("/q".into()), Acceleration::Kvm));
        assert_eq!(config.qemu.processor, "Haswell-v1");
        assert_eq!((config.driver, config.firecracker.program), (Driver::Firecracker, Some("/f".into())));
        assert_eq!(config.firecracker.jailer, Jailer::At("/j".into()));
        let on = VmSettings { jailer: Some(Jailer::Beside), ..all() };
        assert_eq!(on.config(&HostPaths::default()).unwrap().firecracker.jailer, Jailer::Beside);
        assert_ne!(all().fingerprint(), VmSettings::default().fingerprint());
    }

    #[test]
    fn an_earlier_source_takes_precedence_in_each_setting() {
        assert_eq!(all().or(VmSettings::default()), all());
        assert_eq!(VmSettings::default().or(all()), all());
        let first = VmSettings { processors: Some(1), ..VmSettings::default() };
        assert_eq!(first.or(all()), VmSettings { processors: Some(1), ..all() });
    }

    #[test]
    fn defaults_in_words_have_the_fingerprint_of_defaults() {
        let table = serde_json::json!({"build": "never", "driver": "auto", "jailer": "off", "accelerator": "auto"});
        let settings: VmSettings = serde_json::from_value(table).unwrap();
        assert_eq!(settings.fingerprint(), VmSettings::default().fingerprint());
    }

    #[test]
    fn images_need_a_directory() {
        let error = VmSettings::default().config(&HostPaths::default()).unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.remedy().is_some(), "{error}");
        let host = HostPaths { cache: Some("/c".into()), ..HostPaths::default() };
        let config = VmSettings::default().config(&host).unwrap();
        assert_eq!((config.images, config.packages), ("/c/vm".into(), "/c/debian".into()));
    }
}
