//! The contestants: plugins through the host, programs without a host over pipes, and gRPC over a Unix socket.

use std::time::Duration;

use anyhow::Result;

use super::grpc::Grpc;
use super::host::Plugin;
use super::pipe::Pipe;

/// A language, with its interpreter and the programs that are measured.
#[derive(Debug, Clone, Copy)]
pub struct Language {
    /// The name in tables, which is also the name of the plugin.
    pub name: &'static str,
    /// The interpreter.
    pub interpreter: &'static str,
    /// The runtime and the entry of the plugin's manifest.
    pub manifest: &'static str,
    /// The plugin's file and its text.
    pub plugin: (&'static str, &'static str),
    /// The file and the text of the program that echoes frames without an SDK.
    pub pipe: (&'static str, &'static str),
}

/// All languages.
pub const LANGUAGES: [Language; 2] = [
    Language {
        name: "python",
        interpreter: "python3",
        manifest: "runtime = \"python\"\nentry = \"plugin:activate\"",
        plugin: ("plugin.py", include_str!("programs/plugin.py")),
        pipe: ("pipe.py", include_str!("programs/pipe.py")),
    },
    Language {
        name: "node",
        interpreter: "node",
        manifest: "runtime = \"node\"\nentry = \"plugin.cjs:activate\"",
        plugin: ("plugin.cjs", include_str!("programs/plugin.cjs")),
        pipe: ("pipe.cjs", include_str!("programs/pipe.cjs")),
    },
];

/// A way to call a method in another process.
pub enum Contestant {
    /// A plugin in a process sandbox.
    Plugin(Plugin),
    /// A program that echoes frames.
    Pipe(Pipe),
    /// A server of gRPC.
    Grpc(Grpc),
}

impl Contestant {
    /// Makes one call, and checks its result.
    pub async fn call(&mut self) -> Result<()> {
        match self {
            Self::Plugin(plugin) => plugin.call().await,
            Self::Pipe(pipe) => pipe.call().await,
            Self::Grpc(grpc) => grpc.call().await,
        }
    }

    /// Makes `calls` calls, `at_once` of them at a time. Returns their time.
    pub async fn calls(&mut self, calls: usize, at_once: usize) -> Result<Duration> {
        match self {
            Self::Plugin(plugin) => plugin.calls(calls, at_once).await,
            Self::Pipe(pipe) => pipe.calls(calls, at_once).await,
            Self::Grpc(grpc) => grpc.calls(calls, at_once).await,
        }
    }

    /// Receives a stream of `items` items with `size` bytes. Returns its time.
    pub async fn stream(&mut self, items: usize, size: usize) -> Result<Duration> {
        match self {
            Self::Plugin(plugin) => plugin.stream(items, size).await,
            Self::Pipe(pipe) => pipe.stream(items, size).await,
            Self::Grpc(grpc) => grpc.stream(items, size).await,
        }
    }
}
