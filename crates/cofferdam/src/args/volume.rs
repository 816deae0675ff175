//! The arguments of `cofferdam volume`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cofferdam::ByteSize;
use cofferdam::configuration::{Bound, parse_bound};
use cofferdam_volume::Name;

#[cfg(feature = "server")]
use super::ClientArgs;

const VOLUME_HELP: &str = "\
Examples:
  cofferdam volume create cache --size 2G
  cofferdam run --volume cache:/cache -- make
  cofferdam volume ls
  cofferdam volume export cache cache.tar
  cofferdam volume import copy cache.tar --size 4G
  cofferdam volume rm cache copy

A volume with a size is an ext4 file system in a file, made by mkfs.ext4. With `--size none`, it is
a directory without a limit. Volumes are in $XDG_STATE_HOME/cofferdam/volumes or
~/.local/state/cofferdam/volumes, and those of root in /var/lib/cofferdam/volumes.";

/// `cofferdam volume`.
#[derive(Debug, Args)]
#[command(after_help = VOLUME_HELP)]
pub struct VolumeArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: VolumeCommand,
}

/// The subcommands of `cofferdam volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create an empty volume
    Create(CreateVolumeArgs),
    /// List the volumes
    Ls(ListVolumesArgs),
    /// Show the properties and the users of a volume
    Inspect(InspectVolumeArgs),
    /// Delete volumes and their files
    Rm(RemoveVolumesArgs),
    /// Write the files of a volume as a tar
    Export(ExportVolumeArgs),
    /// Create a volume with the files of a tar
    Import(ImportVolumeArgs),
}

/// The server whose volumes are used instead of those of this host.
#[cfg(feature = "server")]
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct VolumeServerArgs {
    /// Use the volumes of a server, which `cofferdam create --volume` mounts, instead of those of this host; implied by the
    /// other options of this group
    #[arg(long)]
    pub on_server: bool,

    #[command(flatten)]
    pub client: ClientArgs,
}

fn parse_name(text: &str) -> Result<Name, String> {
    text.parse().map_err(|error: cofferdam_volume::VolumeError| error.to_string())
}

/// `cofferdam volume create`.
#[derive(Debug, Args)]
pub struct CreateVolumeArgs {
    /// Name the volume: letters, digits, '.', '_' and '-'
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: Name,

    /// Limit the size of its file system, or `none` for a directory [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_bound::<ByteSize>)]
    pub size: Option<Bound<ByteSize>>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    #[cfg(feature = "server")]
    #[command(flatten)]
    pub on: VolumeServerArgs,
}

/// `cofferdam volume ls`.
#[derive(Debug, Args)]
pub struct ListVolumesArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    #[cfg(feature = "server")]
    #[command(flatten)]
    pub on: VolumeServerArgs,
}

/// `cofferdam volume inspect`.
#[derive(Debug, Args)]
pub struct InspectVolumeArgs {
    /// Select the volume
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: Name,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    #[cfg(feature = "server")]
    #[command(flatten)]
    pub on: VolumeServerArgs,
}

/// `cofferdam volume rm`.
#[derive(Debug, Args)]
pub struct RemoveVolumesArgs {
    /// Delete these volumes
    #[arg(value_name = "NAME", required = true, value_parser = parse_name)]
    pub names: Vec<Name>,

    #[cfg(feature = "server")]
    #[command(flatten)]
    pub on: VolumeServerArgs,
}

/// `cofferdam volume export`.
#[derive(Debug, Args)]
pub struct ExportVolumeArgs {
    /// Select the volume
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: Name,

    /// Write to this file, which appears complete or not at all [default: standard output]
    #[arg(value_name = "FILE", default_value = "-", hide_default_value = true)]
    pub file: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,

    /// Limit the size of all files together, including holes [default: 64G]
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<ByteSize>,

    /// Print one JSON document; needs a FILE
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam volume import`.
#[derive(Debug, Args)]
pub struct ImportVolumeArgs {
    /// Name the new volume
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: Name,

    /// Read this tar, or standard input (`-`)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Limit the size of its file system, or `none` for a directory [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_bound::<ByteSize>)]
    pub size: Option<Bound<ByteSize>>,

    /// Limit the size of all files together, including holes [default: 64G]
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<ByteSize>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
