//! The arguments of copies into and out of the sandbox of a run.

use std::path::PathBuf;

use clap::Args;
use cofferdam::{ByteSize, CopyOut, SandboxPath};

/// Copies of files before and after the command of a run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Files")]
pub struct CopyArgs {
    /// Copy a file or directory into the workspace, or its directory DST, before the command starts; may have wildcards
    #[arg(long, value_name = "SRC[:DST]", value_parser = parse_in)]
    pub copy_in: Vec<CopyInArg>,

    /// Copy a file or directory of the workspace to this directory, or the directory DST, when the command has ended; may
    /// have wildcards
    #[arg(long, value_name = "PATH[:DST]", value_parser = parse_out)]
    pub copy_out: Vec<CopyOutArg>,

    /// Limit the size of the files of each --copy-out [default: 1G]
    #[arg(long, value_name = "SIZE", requires = "copy_out")]
    pub max_copy: Option<ByteSize>,
}

impl CopyArgs {
    /// Returns true if nothing is copied.
    pub fn is_empty(&self) -> bool {
        self.copy_in.is_empty() && self.copy_out.is_empty()
    }
}

/// A copy into the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyInArg {
    /// The file or directory of the host.
    pub source: PathBuf,
    /// The directory of the workspace.
    pub to: SandboxPath,
}

/// A copy out of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOutArg {
    /// The path in the workspace, as it was written.
    pub path: String,
    /// The files.
    pub wanted: CopyOut,
    /// The directory of the host.
    pub to: PathBuf,
}

fn parse_in(text: &str) -> Result<CopyInArg, String> {
    let (source, to) = text.rsplit_once(':').unwrap_or((text, ""));
    if source.is_empty() {
        return Err("write SRC, or SRC:DST".to_owned());
    }
    let to = SandboxPath::new(to).map_err(|error| error.message().to_owned())?;
    Ok(CopyInArg { source: source.into(), to })
}

fn parse_out(text: &str) -> Result<CopyOutArg, String> {
    let (path, to) = text.rsplit_once(':').unwrap_or((text, "."));
    if path.is_empty() || to.is_empty() {
        return Err("write PATH, or PATH:DST".to_owned());
    }
    let wanted = CopyOut::named(path).map_err(|error| error.message().to_owned())?;
    Ok(CopyOutArg { path: path.to_owned(), wanted, to: to.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_colon_separates_the_destination() {
        let copy = parse_in("a:b:/workspace/c").unwrap();
        assert_eq!((copy.source.to_str(), copy.to.as_str()), (Some("a:b"), "c"));
        assert!(parse_in("a").unwrap().to.is_workspace());
        let copy = parse_out("/workspace/out/*.png:there").unwrap();
        assert_eq!((copy.wanted.from.as_str(), copy.wanted.patterns[0].as_str()), ("out", "*.png"));
        assert_eq!(copy.to.to_str(), Some("there"));
        for text in ["", ":a", "a:/etc", "a:../b"] {
            assert!(parse_in(text).is_err(), "{text}");
        }
        for text in ["", ":a", "a:", "/etc/passwd", "../a", "a["] {
            assert!(parse_out(text).is_err(), "{text}");
        }
    }
}
