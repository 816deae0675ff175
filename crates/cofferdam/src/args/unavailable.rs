//! Commands that this build does not have.

use clap::Args;

/// Arguments of a command that this build does not have.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct UnavailableArgs {
    /// Any arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<std::ffi::OsString>,
}
