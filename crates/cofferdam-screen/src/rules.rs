//! What is not wanted in a program, as configuration gives it.

use std::fmt;
use std::str::FromStr;

use ruff_python_ast::PythonVersion as Known;
use serde::{Deserialize, Serialize};

use crate::report::UnknownName;

/// What to look for, and how much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// For Python.
    pub python: PythonRules,
    /// For JavaScript and TypeScript.
    pub javascript: JavaScriptRules,
    /// Longer code is refused unread.
    pub max_bytes: usize,
    /// How many findings a report has at most.
    pub most_findings: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            python: PythonRules::default(),
            javascript: JavaScriptRules::default(),
            max_bytes: 1 << 20,
            most_findings: 100,
        }
    }
}

/// What is not wanted in Python. Each list that configuration names replaces the one here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PythonRules {
    /// Modules with all that is below them: `os` is `os.path`, too.
    pub imports: Vec<String>,
    /// What is wanted all the same, as `os.path`.
    pub allow_imports: Vec<String>,
    /// Built-in functions by their name, others with their module, as `pickle.loads`.
    pub calls: Vec<String>,
    /// Attributes of anything.
    pub attributes: Vec<String>,
    /// Whether to find imports of a module that only the running program knows.
    pub dynamic_imports: bool,
    /// The version whose syntax the code must keep to. Without it, code is right if it is in any version that is known, since
    /// it is the interpreter that decides.
    pub version: Option<PythonVersion>,
}

impl Default for PythonRules {
    fn default() -> Self {
        Self {
            imports: owned(&[
                "os",
                "subprocess",
                "shutil",
                "pathlib",
                "socket",
                // The same under the names that the five import themselves.
                "posix",
                "nt",
                "_posixsubprocess",
                "_socket",
            ]),
            allow_imports: Vec::new(),
            // They run text as code, or import by a name that is text: what screening cannot read. Not `open`: to read and write
            // files of the workspace is what most programs are for, and which files there are is the sandbox's.
            calls: owned(&["eval", "exec", "compile", "__import__"]),
            // Steps on the way from any object to the built-in functions and to all loaded modules. Not `__class__` and such,
            // which lead nowhere without one of these.
            attributes: owned(&[
                "__subclasses__",
                "__globals__",
                "__builtins__",
                "__loader__",
                "__code__",
                "__closure__",
                "f_back",
                "f_builtins",
                "f_globals",
                "gi_frame",
                "cr_frame",
                "ag_frame",
                "tb_frame",
            ]),
            dynamic_imports: true,
            version: None,
        }
    }
}

/// What is not wanted in JavaScript and TypeScript. Each list that configuration names replaces the one here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JavaScriptRules {
    /// Modules with all that is below them: `fs` is `node:fs` and `fs/promises`, too; with `node:`, those of Node alone.
    pub imports: Vec<String>,
    /// What is wanted all the same, as `fs/promises`.
    pub allow_imports: Vec<String>,
    /// Global functions by their name, others with their object, as `process.binding`.
    pub calls: Vec<String>,
    /// Attributes of anything.
    pub attributes: Vec<String>,
    /// Whether to find imports of a module that only the running program knows.
    pub dynamic_imports: bool,
}

impl Default for JavaScriptRules {
    fn default() -> Self {
        Self {
            // What Python's five are: processes, files, the network; and what runs code that screening does not read. Not `os`,
            // which only tells about the host, nor `path` and `process`, which every script uses.
            imports: owned(&[
                "child_process",
                "cluster",
                "worker_threads",
                "fs",
                "net",
                "dgram",
                "dns",
                "tls",
                "http",
                "https",
                "http2",
                "vm",
                "v8",
                "inspector",
                "repl",
                "wasi",
                // The same under the names that those import themselves.
                "_http_agent",
                "_http_client",
                "_http_common",
                "_http_incoming",
                "_http_outgoing",
                "_http_server",
                "_stream_wrap",
                "_tls_common",
                "_tls_wrap",
                // Of Node alone, not packages of that name: files, processes, the network, and native code.
                "node:sqlite",
                "node:test",
                "node:quic",
                "node:ffi",
            ]),
            allow_imports: Vec::new(),
            calls: owned(&[
                "eval",
                "Function",
                "process.binding",
                "process._linkedBinding",
                "process.dlopen",
                "process.execve",
                "module._compile",
            ]),
            attributes: owned(&["mainModule", "_linkedBinding"]),
            dynamic_imports: true,
        }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The lists of one language.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lists<'r> {
    pub imports: &'r [String],
    pub allow_imports: &'r [String],
    pub calls: &'r [String],
    pub attributes: &'r [String],
    pub dynamic_imports: bool,
    /// What stands between a module and what is below it.
    pub separator: char,
}

impl<'r> Lists<'r> {
    pub fn python(rules: &'r PythonRules) -> Self {
        let PythonRules { imports, allow_imports, calls, attributes, dynamic_imports, version: _ } = rules;
        Self { imports, allow_imports, calls, attributes, dynamic_imports: *dynamic_imports, separator: '.' }
    }

    pub fn javascript(rules: &'r JavaScriptRules) -> Self {
        let JavaScriptRules { imports, allow_imports, calls, attributes, dynamic_imports } = rules;
        Self { imports, allow_imports, calls, attributes, dynamic_imports: *dynamic_imports, separator: '/' }
    }

    /// The entry of the list that does not want this module.
    pub fn unwanted_import(&self, module: &str) -> Option<&'r str> {
        let entry = self.imports.iter().find(|entry| self.covers(entry, module))?;
        let allowed = self.allow_imports.iter().any(|allowed| self.covers(allowed, module));
        (!allowed).then_some(entry)
    }

    fn covers(&self, entry: &str, module: &str) -> bool {
        module.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with(self.separator))
    }

    pub fn unwanted_attribute(&self, name: &str) -> Option<&'r str> {
        self.attributes.iter().map(String::as_str).find(|attribute| *attribute == name)
    }

    pub fn unwanted_call(&self, path: &str) -> Option<&'r str> {
        self.calls.iter().map(String::as_str).find(|call| *call == path)
    }
}

/// A version of Python, as `3.11`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PythonVersion(pub(crate) Known);

impl PythonVersion {
    /// The newest whose syntax is known.
    pub fn newest() -> Self {
        Self(Known::latest_preview())
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.major, self.0.minor)
    }
}

impl FromStr for PythonVersion {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = Known::iter().map(Self).find(|version| version.to_string() == text);
        known.ok_or_else(|| UnknownName { what: "version of Python", name: text.to_owned(), known: "3.7 to 3.15" })
    }
}

impl Serialize for PythonVersion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PythonVersion {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_covers_what_is_below_and_an_exception_takes_out() {
        let rules = PythonRules { allow_imports: owned(&["os.path"]), ..PythonRules::default() };
        let lists = Lists::python(&rules);
        for (module, unwanted) in [
            ("os", Some("os")),
            ("os.path", None),
            ("os.path.join", None),
            ("os.pathx", Some("os")),
            ("osx", None),
            ("xos", None),
            ("socket.x.y", Some("socket")),
        ] {
            assert_eq!(lists.unwanted_import(module), unwanted, "{module}");
        }
    }

    #[test]
    fn versions_are_known_or_refused() {
        for version in Known::iter().map(PythonVersion) {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        assert_eq!(PythonVersion::newest().to_string(), "3.15");
        for wrong in ["3", "2.7", "3.6", "3.16", "3.11.7", ""] {
            assert!(wrong.parse::<PythonVersion>().is_err(), "{wrong}");
        }
    }
}
