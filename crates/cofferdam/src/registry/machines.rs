//! Virtual machines: how they are made, their images, and what this host offers for them.

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

/// The name of the image that machines start from where none is named.
pub const DEFAULT_IMAGE: &str = "default";
/// How long an image is kept that nobody asked for, unless told otherwise.
pub const KEEP_IMAGES: Duration = Duration::from_secs(30 * 24 * 3600);

/// Which monitor makes machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// Firecracker where it is there and hardware virtualisation was tried with it and works, else QEMU.
    #[default]
    Auto,
    /// QEMU.
    Qemu,
    /// Firecracker, or no machine.
    Firecracker,
}

impl Driver {
    /// The word used in options and messages.
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
        found.ok_or_else(|| format!("'{}' is no driver; write auto, qemu or firecracker", text.escape_debug()))
    }
}

/// Whether Firecracker is started by its own jailer, which needs root, in place of the walls that QEMU has, too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Jailer {
    /// It is not.
    #[default]
    Off,
    /// By the program `jailer` beside Firecracker's.
    On,
    /// By this program.
    At(PathBuf),
}

impl FromStr for Jailer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            // One of the directory in which somebody happens to be would be run as root.
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            _ => Err(format!("'{}' is no jailer; write off, on, or its whole path", text.escape_debug())),
        }
    }
}

/// What runs the instructions of machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acceleration {
    /// The processor where that was tried and works, else a translator.
    #[default]
    Auto,
    /// A translator.
    Tcg,
    /// The processor, or no machine.
    Kvm,
}

impl FromStr for Acceleration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "tcg" => Ok(Self::Tcg),
            "kvm" => Ok(Self::Kvm),
            _ => Err(format!("'{}' is no accelerator; write auto, tcg or kvm", text.escape_debug())),
        }
    }
}

/// What is done about the image of machines when there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Build {
    /// The run fails, and says how to get it.
    #[default]
    Never,
    /// It is made, which takes a network and minutes.
    Missing,
}

impl FromStr for Build {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            _ => Err(format!("'{}' says nothing about building; write never or missing", text.escape_debug())),
        }
    }
}

/// How machines are made, beyond what a spec says. What is `None` is as the backend has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machines {
    /// Where images are kept. Default: `cofferdam/vm` in the user's cache directory.
    pub images: Option<PathBuf>,
    /// The image where a spec names none. Default: the one called [`DEFAULT_IMAGE`], if there is one.
    pub image: Option<String>,
    /// What is done where there is none.
    pub build: Build,
    /// Memory of a machine whose spec has no limit on it.
    pub memory: Option<ByteSize>,
    /// Processors of a machine whose spec asks for no share of them.
    pub processors: Option<u32>,
    /// Which monitor makes them.
    pub driver: Driver,
    /// Firecracker's program. Default: the one of PATH, if there is one.
    pub firecracker: Option<PathBuf>,
    /// Whether its own jailer starts it.
    pub jailer: Jailer,
    /// QEMU's program.
    pub qemu: Option<PathBuf>,
    /// How the accelerator is chosen.
    pub accelerator: Acceleration,
    /// The processor that machines have, by QEMU's name for it.
    pub processor: Option<String>,
}

impl Machines {
    /// Says in one line what differs from the defaults: two that differ make different machines.
    pub fn fingerprint(&self) -> String {
        let Self { images, image, build, memory, processors, driver, firecracker, jailer, .. } = self;
        let Self { qemu, accelerator, processor, .. } = self;
        let sizes = format!("{images:?} {image:?} {build:?} {memory:?} {processors:?}");
        format!("{sizes} {driver:?} {firecracker:?} {jailer:?} {qemu:?} {accelerator:?} {processor:?}")
    }

    /// The key of the image that machines start from where none is named, as it is now. Only its name is looked up, as each run
    /// does that a daemon may make.
    pub(super) fn image_key(&self) -> Option<String> {
        #[cfg(feature = "vm")]
        return Images::usual_key(self);
        #[cfg(not(feature = "vm"))]
        return None;
    }

    /// The same with a driver, if one is named.
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
