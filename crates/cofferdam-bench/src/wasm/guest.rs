//! The WebAssembly guests, and native programs that do the same.

use bytes::Bytes;
use clap::ValueEnum;
use cofferdam_contract::{Command, ExecRequest, Script};
use cofferdam_wasm::{Call, INTERPRETER, Language};

/// A module that does nothing and has no memory.
const NULL: &str = r#"(module (func (export "_start")))"#;
/// A module that writes one line. Its data begins at one MiB, above a stack, as compilers lay it out.
const HELLO: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 17)
  (data (i32.const 1048576) "\08\00\10\00\06\00\00\00hello\n")
  (func (export "_start")
    (drop (call $fd_write (i32.const 1) (i32.const 1048576) (i32.const 1) (i32.const 1048592)))))"#;

/// A guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Guest {
    /// A module that does nothing.
    Null,
    /// A module that writes one line.
    Hello,
    /// `console.log(1)`.
    #[value(name = "javascript")]
    JavaScript,
    /// `print(1)`.
    Python,
}

/// The source of a guest.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// A module, as text.
    Module(&'static str),
    /// A script of this language.
    Script(Language, &'static str),
}

impl Guest {
    /// All guests, in the order of execution.
    pub const ALL: [Self; 4] = [Self::Null, Self::Hello, Self::JavaScript, Self::Python];

    /// Returns the name for options and file names.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Hello => "hello",
            Self::JavaScript => "javascript",
            Self::Python => "python",
        }
    }

    /// Returns the display name.
    pub fn title(self) -> &'static str {
        match self {
            Self::Null => "null module",
            Self::Hello => "WASI hello",
            Self::JavaScript => "JavaScript, console.log(1)",
            Self::Python => "Python, print(1)",
        }
    }

    /// Returns the source.
    pub fn source(self) -> Source {
        match self {
            Self::Null => Source::Module(NULL),
            Self::Hello => Source::Module(HELLO),
            Self::JavaScript => Source::Script(Language::JavaScript, "console.log(1)"),
            Self::Python => Source::Script(Language::Python, "print(1)"),
        }
    }

    /// Returns true if an interpreter runs it.
    pub fn is_script(self) -> bool {
        matches!(self.source(), Source::Script(..))
    }

    /// Returns the expected output.
    pub fn output(self) -> &'static str {
        match self {
            Self::Null => "",
            Self::Hello => "hello\n",
            Self::JavaScript | Self::Python => "1\n",
        }
    }

    /// Returns a native program that does the same. Python is the system's, because a version manager's `python3` is a
    /// script.
    pub fn native(self) -> &'static [&'static str] {
        match self {
            Self::Null => &["/bin/true"],
            Self::Hello => &["/bin/echo", "hello"],
            Self::JavaScript => &["node", "-e", "console.log(1)"],
            Self::Python => &["/usr/bin/python3", "-I", "-S", "-c", "print(1)"],
        }
    }

    /// Returns the module's bytes, or `None` for a script.
    pub fn module(self) -> anyhow::Result<Option<Bytes>> {
        match self.source() {
            Source::Module(text) => Ok(Some(wat::parse_str(text)?.into())),
            Source::Script(..) => Ok(None),
        }
    }

    /// Returns the call of a run without a sandbox.
    pub fn call(self) -> Call {
        match self.source() {
            Source::Module(_) => Call::default(),
            Source::Script(_, code) => Call { source: code.into(), ..Call::default() },
        }
    }

    /// Returns the request to a sandbox.
    pub fn request(self) -> anyhow::Result<ExecRequest> {
        let (interpreter, name, contents) = match self.source() {
            Source::Module(text) => (INTERPRETER, "main.wasm", wat::parse_str(text)?.into()),
            Source::Script(Language::Python, code) => ("python3", "main.py", code.into()),
            Source::Script(Language::JavaScript, code) => ("javascript", "main.js", code.into()),
        };
        let (interpreter, name) = (vec![interpreter.to_owned()], name.to_owned());
        let script = Script { interpreter, name, contents, args: Vec::new() };
        Ok(ExecRequest::builder(Command::Script(script)).build()?)
    }
}
