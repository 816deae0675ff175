//! Arguments of `cofferdam vm`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::{ByteSize, parse_duration};

const VM_HELP: &str = "\
Examples:
  cofferdam vm build-image             shell, Python, Node and kernel from Debian packages
  cofferdam vm build-image --name small --tiny --package jq
  cofferdam vm build-image --name mine --from ./rootfs
  cofferdam vm build-image --name mine --from image.tar      a `docker save` or OCI image layout
  cofferdam run --level vm --image mine -- cat /etc/os-release
  cofferdam vm export-image mine --out mine.image
  cofferdam vm import-image mine.image --name mine           on another host

Images are stored in $XDG_CACHE_HOME/cofferdam/vm or ~/.cache/cofferdam/vm. Builds need neither root
nor a container engine, but apt and dpkg for packages, and mkfs.ext4.";

/// `cofferdam vm`.
#[derive(Debug, Args)]
#[command(after_help = VM_HELP)]
pub struct VmArgs {
    /// The command
    #[command(subcommand)]
    pub command: VmCommand,
}

/// Commands for VM images.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Build a VM image: a kernel, and a disk with a root file system
    BuildImage(Box<BuildImageArgs>),
    /// Export a VM image to a file for another host
    ExportImage(ExportImageArgs),
    /// Import a VM image from a file that `export-image` wrote
    ImportImage(ImportImageArgs),
    /// List the VM images
    Images {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Remove unnamed images that were not used for a long time; running VMs continue
    Prune {
        /// Remove this named image too; may be repeated
        #[arg(long, value_name = "NAME")]
        name: Vec<String>,
        /// Remove unnamed images that were not used for this time [default: 720h]
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        unused: Option<Duration>,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
}

/// `cofferdam vm build-image`.
#[derive(Debug, Args)]
pub struct BuildImageArgs {
    /// Name the image [default: `default`]
    #[arg(long)]
    pub name: Option<String>,
    /// Replace an image of this name that was built from another source
    #[arg(long)]
    pub force: bool,
    /// Take the root file system from a directory, a tar of one, an OCI image layout (directory or tar) or a file of
    /// `docker save` instead of Debian packages
    #[arg(long, value_name = "DIR|TAR", conflicts_with_all = ["tiny", "package"])]
    pub from: Option<PathBuf>,
    /// Include only a shell and a small Python, without the usual tools and Node
    #[arg(long)]
    pub tiny: bool,
    /// Add a package; may be repeated
    #[arg(long, value_name = "NAME")]
    pub package: Vec<String>,
    /// Take the kernel from this Debian package instead of the one for clouds
    #[arg(long, value_name = "NAME", conflicts_with = "kernel")]
    pub kernel_package: Option<String>,
    /// Take the kernel from a file of this host
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Add a module that this kernel needs for virtio and ext4; may be repeated, in load order
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub module: Vec<PathBuf>,
    /// Limit the size of the disk [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<ByteSize>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam vm export-image`.
#[derive(Debug, Args)]
pub struct ExportImageArgs {
    /// Export the image of this name, or with this full key of `vm images --json` [default: the image that runs use]
    #[arg(value_name = "NAME|KEY")]
    pub image: Option<String>,
    /// Write to this file; it appears complete or not at all
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Encrypt with the key in this file: 32 bytes or 64 hexadecimal digits, readable only by its owner
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Set the compression level, from 1 (fast) to 19 (small) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub compression: Option<i32>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam vm import-image`.
#[derive(Debug, Args)]
pub struct ImportImageArgs {
    /// Import this file of `cofferdam vm export-image`
    pub file: PathBuf,
    /// Name the image [default: a name that the same image has, else `imported-` and the beginning of its key]
    #[arg(long)]
    pub name: Option<String>,
    /// Take the name from another image
    #[arg(long)]
    pub force: bool,
    /// Decrypt with the key in this file
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Limit the size of the disk [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<ByteSize>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

impl VmCommand {
    /// Returns true if the result is printed as JSON.
    pub fn json(&self) -> bool {
        match self {
            Self::BuildImage(args) => args.json,
            Self::ExportImage(args) => args.json,
            Self::ImportImage(args) => args.json,
            Self::Images { json } | Self::Prune { json, .. } => *json,
        }
    }
}
