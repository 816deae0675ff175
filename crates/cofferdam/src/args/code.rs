//! The arguments of `cofferdam code` and `cofferdam kernel`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::parse_duration;

use super::ClientArgs;

const CODE_HELP: &str = "\
Examples:
  cofferdam code build --code 'print(1 + 1)'
  cofferdam code build --lang javascript < script.js
  cofferdam code build --figures . --file plot.py   also save figures as ./figure-1.png, …
  cofferdam code build --kernel \"$(cofferdam kernel start build)\" --code 'x = 1'

Exit status: that of the code; 1 after an uncaught error in a kernel; 124 after the time limit; 137
after another limit; 128 and its number after a signal; 125 if the client or the server failed.";

/// `cofferdam code`.
#[derive(Debug, Args)]
#[command(after_help = CODE_HELP)]
pub struct CodeArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Run this code [default: standard input]
    #[arg(long, value_name = "CODE")]
    pub code: Option<String>,
    /// Run the code in this file
    #[arg(long, value_name = "FILE", conflicts_with = "code")]
    pub file: Option<PathBuf>,
    /// Select the language [default: python, or that of the kernel]
    #[arg(long, value_name = "LANGUAGE")]
    pub lang: Option<String>,
    /// Run the code in this kernel
    #[arg(long, value_name = "KERNEL")]
    pub kernel: Option<String>,
    /// Limit wall time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Save figures in this directory without overwriting files
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Print one JSON document, with figures in base64
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam kernel`.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// The command
    #[command(subcommand)]
    pub command: KernelCommand,
}

/// Commands for kernels.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Start a kernel and print its id
    Start {
        /// Select the sandbox by its id or name
        #[arg(add = crate::completion::sandboxes())]
        sandbox: String,
        /// Select the language
        #[arg(long, value_name = "LANGUAGE", default_value = "python")]
        lang: String,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// List the kernels of a sandbox
    Ls {
        /// Select the sandbox by its id or name
        #[arg(add = crate::completion::sandboxes())]
        sandbox: String,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Interrupt the code that a kernel runs
    Interrupt {
        /// Select the sandbox by its id or name
        #[arg(add = crate::completion::sandboxes())]
        sandbox: String,
        /// Select the kernel by its id
        kernel: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// End a kernel
    Rm {
        /// Select the sandbox by its id or name
        #[arg(add = crate::completion::sandboxes())]
        sandbox: String,
        /// Select the kernel by its id
        kernel: String,
        #[command(flatten)]
        client: ClientArgs,
    },
}
