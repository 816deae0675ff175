//! The words of `cofferdam vm`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::{ByteSize, parse_duration};

const MACHINE_HELP: &str = "\
Examples:
  cofferdam vm build-image             shell, Python and Node from Debian packages, and Debian's kernel
  cofferdam vm build-image --name small --tiny --package jq
  cofferdam vm build-image --name mine --from ./rootfs
  cofferdam vm build-image --name mine --from image.tar      of `docker save`, or an OCI image layout
  cofferdam run --level vm --image mine -- cat /etc/os-release
  cofferdam vm export-image mine --out mine.image
  cofferdam vm import-image mine.image --name mine           on another machine

Images are kept in $XDG_CACHE_HOME/cofferdam/vm or ~/.cache/cofferdam/vm. Making one needs neither
root nor a container engine: apt and dpkg for packages, and mkfs.ext4.";

/// `cofferdam vm`.
#[derive(Debug, Args)]
#[command(after_help = MACHINE_HELP)]
pub struct MachineArgs {
    /// What to do
    #[command(subcommand)]
    pub command: MachineCommand,
}

/// What to do with the images of virtual machines.
#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// Make an image: a kernel, and a disk with a root file system
    BuildImage(Box<BuildImageArgs>),
    /// Write an image to a file, for another machine
    ExportImage(ExportImageArgs),
    /// Read an image from a file that `export-image` wrote
    ImportImage(ImportImageArgs),
    /// List the images
    Images {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Remove what has no name and was not used for long; machines that run go on
    Prune {
        /// An image to be removed as well; may be given again
        #[arg(long, value_name = "NAME")]
        name: Vec<String>,
        /// How long something without a name must not have been used [default: 720h]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        unused: Option<Duration>,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
}

/// `cofferdam vm build-image`.
#[derive(Debug, Args)]
pub struct BuildImageArgs {
    /// The image's name [default: `default`]
    #[arg(long)]
    pub name: Option<String>,
    /// Replace an image of this name that was made from something else
    #[arg(long)]
    pub force: bool,
    /// Root file system: a directory, a tar of one, an OCI image layout (directory or tar) or a file of `docker save`,
    /// instead of Debian packages
    #[arg(long, value_name = "DIR|TAR", conflicts_with_all = ["tiny", "package"])]
    pub from: Option<PathBuf>,
    /// Only a shell and a small Python, without the usual tools and Node
    #[arg(long)]
    pub tiny: bool,
    /// One more package; may be given again
    #[arg(long, value_name = "NAME")]
    pub package: Vec<String>,
    /// Debian package with the kernel, instead of the one for clouds
    #[arg(long, value_name = "NAME", conflicts_with = "kernel")]
    pub kernel_package: Option<String>,
    /// Kernel of this machine's files
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Module that this kernel needs for virtio and ext4; may be given again, in the order of loading
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub module: Vec<PathBuf>,
    /// The largest disk that may come of it [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<ByteSize>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam vm export-image`.
#[derive(Debug, Args)]
pub struct ExportImageArgs {
    /// The image's name, or its whole key as `vm images --json` prints it [default: the image that runs use]
    #[arg(value_name = "NAME|KEY")]
    pub image: Option<String>,
    /// The file to write; it is there whole or not at all
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,
    /// Encrypt with the key in this file: 32 bytes or 64 hexadecimal digits, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// How hard to compress, from 1 (fast) to 19 (small) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub compression: Option<i32>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam vm import-image`.
#[derive(Debug, Args)]
pub struct ImportImageArgs {
    /// What `cofferdam vm export-image` wrote
    pub file: PathBuf,
    /// The image's name here [default: one that the same image has, else `imported-` and the beginning of its key]
    #[arg(long)]
    pub name: Option<String>,
    /// Take the name from another image
    #[arg(long)]
    pub force: bool,
    /// The key that it was encrypted with
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The largest disk that is taken [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<ByteSize>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

impl MachineCommand {
    /// Whether the answer is JSON.
    pub fn json(&self) -> bool {
        match self {
            Self::BuildImage(args) => args.json,
            Self::ExportImage(args) => args.json,
            Self::ImportImage(args) => args.json,
            Self::Images { json } | Self::Prune { json, .. } => *json,
        }
    }
}
