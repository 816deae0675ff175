//! The tools: their names, what is said about them, and the schemas of what they take and give.

use std::sync::LazyLock;

use rmcp::model::{Tool, ToolAnnotations};

use crate::{arguments, results, schema};

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `run_code`
    RunCode,
    /// `run_command`
    RunCommand,
    /// `read_file`
    ReadFile,
    /// `write_file`
    WriteFile,
    /// `edit_file`
    EditFile,
    /// `list_files`
    ListFiles,
    /// `create_sandbox`
    CreateSandbox,
    /// `snapshot_sandbox`
    SnapshotSandbox,
    /// `restore_sandbox`
    RestoreSandbox,
    /// `fork_sandbox`
    ForkSandbox,
    /// `close_sandbox`
    CloseSandbox,
}

impl Name {
    /// Every tool, in the order in which they are listed.
    pub const ALL: [Self; 11] = [
        Self::RunCode,
        Self::RunCommand,
        Self::ReadFile,
        Self::WriteFile,
        Self::EditFile,
        Self::ListFiles,
        Self::CreateSandbox,
        Self::SnapshotSandbox,
        Self::RestoreSandbox,
        Self::ForkSandbox,
        Self::CloseSandbox,
    ];

    /// The name that clients use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunCode => "run_code",
            Self::RunCommand => "run_command",
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::EditFile => "edit_file",
            Self::ListFiles => "list_files",
            Self::CreateSandbox => "create_sandbox",
            Self::SnapshotSandbox => "snapshot_sandbox",
            Self::RestoreSandbox => "restore_sandbox",
            Self::ForkSandbox => "fork_sandbox",
            Self::CloseSandbox => "close_sandbox",
        }
    }

    /// The tool of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }
}

/// All tools, as clients are told of them.
pub fn tools() -> &'static [Tool] {
    static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| Name::ALL.into_iter().map(tool).collect());
    &TOOLS
}

fn tool(name: Name) -> Tool {
    let (title, description) = words(name);
    let (input, output) = match name {
        Name::RunCode => (schema::input::<arguments::RunCode>(), schema::output::<results::CodeOutput>()),
        Name::RunCommand => (schema::input::<arguments::RunCommand>(), schema::output::<results::CommandResult>()),
        Name::ReadFile => (schema::input::<arguments::ReadFile>(), schema::output::<results::FileContents>()),
        Name::WriteFile => (schema::input::<arguments::WriteFile>(), schema::output::<results::Written>()),
        Name::EditFile => (schema::input::<arguments::EditFile>(), schema::output::<results::Edited>()),
        Name::ListFiles => (schema::input::<arguments::ListFiles>(), schema::output::<results::Listing>()),
        Name::CreateSandbox => (schema::input::<arguments::CreateSandbox>(), schema::output::<results::Made>()),
        Name::SnapshotSandbox => (schema::input::<arguments::OfSandbox>(), schema::output::<results::Snapped>()),
        Name::RestoreSandbox => (schema::input::<arguments::RestoreSandbox>(), schema::output::<results::Made>()),
        Name::ForkSandbox => (schema::input::<arguments::OfSandbox>(), schema::output::<results::Made>()),
        Name::CloseSandbox => (schema::input::<arguments::CloseSandbox>(), schema::output::<results::Closed>()),
    };
    Tool::new(name.as_str(), description, input)
        .with_title(title)
        .with_raw_output_schema(output)
        .with_annotations(annotations(name).read_only(is_read_only(name)))
}

fn is_read_only(name: Name) -> bool {
    matches!(name, Name::ReadFile | Name::ListFiles)
}

/// Hints for clients. Nothing here reaches further than the sandbox and the network that the server was started with.
fn annotations(name: Name) -> ToolAnnotations {
    let hints = ToolAnnotations::new();
    match name {
        Name::RunCode | Name::RunCommand => hints.destructive(true).idempotent(false).open_world(true),
        Name::WriteFile => hints.destructive(true).idempotent(true).open_world(false),
        Name::EditFile => hints.destructive(true).idempotent(false).open_world(false),
        Name::CloseSandbox => hints.destructive(true).idempotent(true).open_world(false),
        Name::ReadFile | Name::ListFiles => hints.destructive(false).idempotent(true).open_world(false),
        Name::CreateSandbox | Name::SnapshotSandbox | Name::RestoreSandbox | Name::ForkSandbox => {
            hints.destructive(false).idempotent(false).open_world(false)
        }
    }
}

/// Title and description.
fn words(name: Name) -> (&'static str, &'static str) {
    match name {
        Name::RunCode => (
            "Run code",
            "Runs a program in a sandbox, each time in a new process, or with session in a live interpreter that keeps its \
             variables. Gives its output, how it ended, the value of its last expression, figures that it drew as images, \
             and the files that it made or changed in the workspace.",
        ),
        Name::RunCommand => (
            "Run a command",
            "Runs a shell line in a sandbox and gives its output and how it ended. The directory is kept from line to \
             line; variables are not. What it leaves running ends with the sandbox.",
        ),
        Name::ReadFile => (
            "Read a file",
            "Reads a file of a sandbox's workspace: text as text, images as images, anything else as a blob.",
        ),
        Name::WriteFile => {
            ("Write a file", "Makes or replaces a file of a sandbox's workspace. It appears whole or not at all.")
        }
        Name::EditFile => (
            "Edit a file",
            "Replaces a text in a file of a sandbox's workspace. The text must stand there exactly once, unless \
             replace_all is set.",
        ),
        Name::ListFiles => ("List files", "Lists a directory of a sandbox's workspace."),
        Name::CreateSandbox => (
            "Create a sandbox",
            "Makes a sandbox with an empty workspace, or with the directory that the server was started with. Its id \
             goes into the other tools. Limits can only be tighter than the server's.",
        ),
        Name::SnapshotSandbox => (
            "Snapshot a sandbox",
            "Freezes the state of a sandbox, which goes on: its files, and at level vm its memory with the programs that run. \
             Not at level process, which refuses it.",
        ),
        Name::RestoreSandbox => (
            "Restore a snapshot",
            "Makes a new sandbox from a snapshot, with the limits and network of the one that it was taken of, or less. \
             Live interpreters (session) are not in it.",
        ),
        Name::ForkSandbox => (
            "Fork a sandbox",
            "Makes a copy of a sandbox that goes on from its state: its files, and at level vm its memory with the programs \
             that run. Live interpreters (session) are not in it. Not at level process, which refuses it.",
        ),
        Name::CloseSandbox => (
            "Close a sandbox",
            "Closes a sandbox, its files and all that runs in it, or forgets a snapshot: give one of both. With session, ends \
             a live interpreter of a sandbox, which stays.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_closed_schemas_of_objects() {
        for tool in tools() {
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            let output = tool.output_schema.as_ref().unwrap();
            assert_eq!(output["type"], "object", "{}", tool.name);
            let text = serde_json::to_string(tool).unwrap();
            assert!(!text.contains("\"uint"), "{text}");
            assert!(text.contains("\"description\"") && tool.annotations.is_some(), "{text}");
            assert_eq!(Name::parse(&tool.name).map(Name::as_str), Some(&*tool.name));
        }
        assert_eq!(Name::parse("rm"), None);
    }
}
