//! The words of `cofferdam image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const IMAGE_HELP: &str = "\
Examples:
  cofferdam image build-base           shell, Python and Node from Debian packages, without a registry
  cofferdam image import ./rootfs my/root
  cofferdam image pull python:3.13-slim
  cofferdam run --image my/root -- sh -c 'cat /etc/os-release'

The engine is the one of DOCKER_HOST, else the configuration file's, else Docker's usual socket, then
Podman's.";

/// `cofferdam image`.
#[derive(Debug, Args)]
#[command(after_help = IMAGE_HELP)]
pub struct ImageArgs {
    /// What to do
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List the images that the engine has
    List {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Make an image from a directory with a root file system, or from a tar of one
    Import {
        /// The directory or the tar
        #[arg(value_name = "DIR|TAR")]
        source: PathBuf,
        /// The new image's name
        name: String,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make the image that containers have where none is named, from Debian packages
    BuildBase {
        /// The new image's name
        #[arg(long, default_value = cofferdam::registry::images::BASE_IMAGE)]
        name: String,
        /// Only a shell and a small Python, without the usual tools and Node
        #[arg(long)]
        tiny: bool,
        /// One more package; may be given again
        #[arg(long, value_name = "NAME")]
        package: Vec<String>,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Get an image from its registry
    Pull {
        /// Its name, with a digest (name@sha256:...) to be sure of its content
        name: String,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
}

impl ImageCommand {
    /// Whether the answer is JSON.
    pub fn json(&self) -> bool {
        match self {
            Self::List { json }
            | Self::Import { json, .. }
            | Self::BuildBase { json, .. }
            | Self::Pull { json, .. } => *json,
        }
    }
}
