//! Arguments for mounts besides the workspace.

use clap::Args;
use cofferdam::volumes::VolumeMount;

/// Mounts besides the workspace.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct MountArgs {
    /// Show a host directory or file at another path; writes are refused (`:ro`, the default), go to the host (`:rw`), or
    /// to a layer that ends with the sandbox (`:cow`)
    #[arg(long, value_name = "HOST:GUEST[:rw]")]
    pub mount: Vec<String>,

    /// Mount an empty directory in memory with a size of its own, such as /scratch:64M
    #[arg(long, value_name = "GUEST:SIZE")]
    pub tmpfs: Vec<String>,
}

/// Volumes of one run.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct VolumeMountArgs {
    /// Mount a volume of `cofferdam volume`; as its only writer, or with `:ro` as one of its readers
    #[arg(long, value_name = "NAME:GUEST[:ro]")]
    pub volume: Vec<VolumeMount>,
}
