//! The tools: names, descriptions, and schemas of arguments and results.

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
    /// `show_changes`
    ShowChanges,
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
    /// All tools, in the order of `tools/list`.
    pub const ALL: [Self; 12] = [
        Self::RunCode,
        Self::RunCommand,
        Self::ReadFile,
        Self::WriteFile,
        Self::EditFile,
        Self::ListFiles,
        Self::ShowChanges,
        Self::CreateSandbox,
        Self::SnapshotSandbox,
        Self::RestoreSandbox,
        Self::ForkSandbox,
        Self::CloseSandbox,
    ];

    /// Returns the name that clients use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunCode => "run_code",
            Self::RunCommand => "run_command",
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::EditFile => "edit_file",
            Self::ListFiles => "list_files",
            Self::ShowChanges => "show_changes",
            Self::CreateSandbox => "create_sandbox",
            Self::SnapshotSandbox => "snapshot_sandbox",
            Self::RestoreSandbox => "restore_sandbox",
            Self::ForkSandbox => "fork_sandbox",
            Self::CloseSandbox => "close_sandbox",
        }
    }

    /// Finds the tool of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }
}

/// Returns all tools in the form of `tools/list`.
pub fn tools() -> &'static [Tool] {
    static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| Name::ALL.into_iter().map(tool).collect());
    &TOOLS
}

fn tool(name: Name) -> Tool {
    let (title, description) = texts(name);
    let (input, output) = match name {
        Name::RunCode => (schema::input::<arguments::RunCode>(), schema::output::<results::CodeOutput>()),
        Name::RunCommand => (schema::input::<arguments::RunCommand>(), schema::output::<results::CommandResult>()),
        Name::ReadFile => (schema::input::<arguments::ReadFile>(), schema::output::<results::FileContents>()),
        Name::WriteFile => (schema::input::<arguments::WriteFile>(), schema::output::<results::Written>()),
        Name::EditFile => (schema::input::<arguments::EditFile>(), schema::output::<results::Edited>()),
        Name::ListFiles => (schema::input::<arguments::ListFiles>(), schema::output::<results::Listing>()),
        Name::ShowChanges => (schema::input::<arguments::ShowChanges>(), schema::output::<results::Changes>()),
        Name::CreateSandbox => {
            (schema::input::<arguments::CreateSandbox>(), schema::output::<results::CreatedSandbox>())
        }
        Name::SnapshotSandbox => (schema::input::<arguments::OfSandbox>(), schema::output::<results::Snapped>()),
        Name::RestoreSandbox => {
            (schema::input::<arguments::RestoreSandbox>(), schema::output::<results::CreatedSandbox>())
        }
        Name::ForkSandbox => (schema::input::<arguments::OfSandbox>(), schema::output::<results::CreatedSandbox>()),
        Name::CloseSandbox => (schema::input::<arguments::CloseSandbox>(), schema::output::<results::Closed>()),
    };
    Tool::new(name.as_str(), description, input)
        .with_title(title)
        .with_raw_output_schema(output)
        .with_annotations(annotations(name).read_only(is_read_only(name)))
}

fn is_read_only(name: Name) -> bool {
    matches!(name, Name::ReadFile | Name::ListFiles | Name::ShowChanges)
}

/// Returns hints for clients. No tool reaches beyond the sandbox and the network of the server's settings.
fn annotations(name: Name) -> ToolAnnotations {
    let hints = ToolAnnotations::new();
    match name {
        Name::RunCode | Name::RunCommand => hints.destructive(true).idempotent(false).open_world(true),
        Name::WriteFile => hints.destructive(true).idempotent(true).open_world(false),
        Name::EditFile => hints.destructive(true).idempotent(false).open_world(false),
        Name::CloseSandbox => hints.destructive(true).idempotent(true).open_world(false),
        Name::ReadFile | Name::ListFiles | Name::ShowChanges => {
            hints.destructive(false).idempotent(true).open_world(false)
        }
        Name::CreateSandbox | Name::SnapshotSandbox | Name::RestoreSandbox | Name::ForkSandbox => {
            hints.destructive(false).idempotent(false).open_world(false)
        }
    }
}

/// Returns the title and description of a tool.
fn texts(name: Name) -> (&'static str, &'static str) {
    match name {
        Name::RunCode => (
            "Run code",
            "Run code in a sandbox, in a new process, or with session in a live interpreter that keeps its variables. \
             Returns the output, the exit code, the value of the last expression, figures as images, and the files \
             that the code created or changed in the workspace.",
        ),
        Name::RunCommand => (
            "Run a command",
            "Run a shell line in a sandbox. Returns the output and the exit code. The next line starts in the \
             directory where this line ends; variables are not kept. Background processes run until the sandbox is \
             closed.",
        ),
        Name::ReadFile => (
            "Read a file",
            "Read a file from a sandbox's workspace. Returns text as text, images as images and other contents as a \
             blob.",
        ),
        Name::WriteFile => (
            "Write a file",
            "Create or replace a file in a sandbox's workspace. The file appears complete or not at all.",
        ),
        Name::EditFile => (
            "Edit a file",
            "Replace a text in a file of a sandbox's workspace. The text must occur exactly once, unless replace_all \
             is set.",
        ),
        Name::ListFiles => ("List files", "List a directory of a sandbox's workspace."),
        Name::ShowChanges => (
            "Show changes",
            "Show how a sandbox's workspace differs from the host directory that it is a copy of, as a unified diff. \
             The host directory itself is unchanged: when the sandbox ends, its changes are kept for the person at \
             the host, who decides whether to apply them.",
        ),
        Name::CreateSandbox => (
            "Create a sandbox",
            "Create a sandbox with an empty workspace, or with the host directory that the server mounts or copies. Returns an \
             id for the other tools. Limits can only be tighter than the server's.",
        ),
        Name::SnapshotSandbox => (
            "Snapshot a sandbox",
            "Save the state of a running sandbox as a snapshot: its files, and at level vm its memory with the running \
             programs. Not supported at level process.",
        ),
        Name::RestoreSandbox => (
            "Restore a snapshot",
            "Create a sandbox from a snapshot. Its limits and network are those of the original sandbox, or tighter. \
             Live interpreters (session) are not included.",
        ),
        Name::ForkSandbox => (
            "Fork a sandbox",
            "Create a copy of a sandbox with its state: its files, and at level vm its memory with the running \
             programs. Live interpreters (session) are not included. Not supported at level process.",
        ),
        Name::CloseSandbox => (
            "Close a sandbox",
            "Close a sandbox with its files and processes, or delete a snapshot: pass one of both. With session, end \
             only a live interpreter of a sandbox.",
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
