//! VMs: settings, images and the requirements of this host.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cofferdam_contract::ByteSize;

#[cfg(feature = "vm")]
mod archives;
#[cfg(feature = "vm")]
mod carried;
#[cfg(feature = "vm")]
mod made;

#[cfg(feature = "vm")]
pub use archives::*;
#[cfg(feature = "vm")]
pub use carried::*;
#[cfg(feature = "vm")]
pub use made::*;

/// The name of the default image of VMs.
pub const DEFAULT_IMAGE: &str = "default";
/// Default time after which unused images are removed.
pub const KEEP_IMAGES: Duration = Duration::from_secs(30 * 24 * 3600);

/// The choice of a VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// Firecracker if it is installed and a test shows that hardware virtualisation works with it, else QEMU.
    #[default]
    Auto,
    /// QEMU.
    Qemu,
    /// Firecracker, without a fallback.
    Firecracker,
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

/// The use of Firecracker's jailer, which needs root and replaces the isolation that is also used for QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Jailer {
    /// No jailer.
    #[default]
    Off,
    /// The program `jailer` in Firecracker's directory.
    On,
    /// This program.
    At(PathBuf),
}

impl FromStr for Jailer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            // A relative path could run a program of the current directory as root.
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            _ => Err(format!("'{}' is not a jailer; use off, on or an absolute path", text.escape_debug())),
        }
    }
}

/// The choice of an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acceleration {
    /// KVM if a test shows that it works, else emulation.
    #[default]
    Auto,
    /// Emulation (TCG).
    Tcg,
    /// KVM, without a fallback.
    Kvm,
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

/// The policy for a missing VM image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Build {
    /// Fail, and report how to build it.
    #[default]
    Never,
    /// Build it, which takes network access and minutes.
    Missing,
}

impl FromStr for Build {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            _ => Err(format!("'{}' is not a build policy; use never or missing", text.escape_debug())),
        }
    }
}

/// Settings of the VM backend that are not in a spec. `None` selects the backend's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machines {
    /// Directory of the images. Default: `cofferdam/vm` in the user's cache directory.
    pub images: Option<PathBuf>,
    /// The image of specs that name none. Default: the image [`DEFAULT_IMAGE`], if it exists.
    pub image: Option<String>,
    /// The policy for a missing image.
    pub build: Build,
    /// Memory of a VM whose spec has no memory limit.
    pub memory: Option<ByteSize>,
    /// CPUs of a VM whose spec has no CPU limit.
    pub processors: Option<u32>,
    /// The VMM.
    pub driver: Driver,
    /// Path of Firecracker's program. Default: the one in PATH, if it exists.
    pub firecracker: Option<PathBuf>,
    /// The use of Firecracker's jailer.
    pub jailer: Jailer,
    /// Path of QEMU's program.
    pub qemu: Option<PathBuf>,
    /// The accelerator.
    pub accelerator: Acceleration,
    /// QEMU's name of the CPU model.
    pub processor: Option<String>,
}

impl Machines {
    /// Returns a one-line fingerprint. Settings with different fingerprints create different VMs.
    pub fn fingerprint(&self) -> String {
        let Self { images, image, build, memory, processors, driver, firecracker, jailer, .. } = self;
        let Self { qemu, accelerator, processor, .. } = self;
        let sizes = format!("{images:?} {image:?} {build:?} {memory:?} {processors:?}");
        format!("{sizes} {driver:?} {firecracker:?} {jailer:?} {qemu:?} {accelerator:?} {processor:?}")
    }

    /// Returns the current key of the default image. Only looks up its name, because each run that may use a daemon
    /// does this.
    pub(super) fn image_key(&self) -> Option<String> {
        #[cfg(feature = "vm")]
        return Images::usual_key(self);
        #[cfg(not(feature = "vm"))]
        return None;
    }

    /// Returns these settings with another VMM, if one is named.
    pub(super) fn with_driver(&self, driver: Option<Driver>) -> Self {
        Self { driver: driver.unwrap_or(self.driver), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        assert_eq!("kvm".parse(), Ok(Acceleration::Kvm));
        assert_eq!("missing".parse(), Ok(Build::Missing));
        assert_eq!("firecracker".parse(), Ok(Driver::Firecracker));
        assert!("xen".parse::<Driver>().is_err());
        assert_eq!(
            ["off", "on", "/x/jailer"].map(str::parse),
            [Ok(Jailer::Off), Ok(Jailer::On), Ok(Jailer::At("/x/jailer".into()))]
        );
        assert!("jailer".parse::<Jailer>().is_err() && "".parse::<Jailer>().is_err());
        let jailed = Machines { jailer: Jailer::On, ..Machines::default() };
        assert_ne!(jailed.fingerprint(), Machines::default().fingerprint());
        assert!("hvf".parse::<Acceleration>().is_err() && "always".parse::<Build>().is_err());
    }
}
