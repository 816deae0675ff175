//! The rules and their configuration.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::report::UnknownName;

/// Modules for processes, files and the network of Python.
#[rustfmt::skip]
const PYTHON_IMPORTS: &[&str] = &[
    "os", "subprocess", "shutil", "pathlib", "socket",
    // Submodules and parts of the modules above.
    "posix", "nt", "_posixsubprocess", "_socket",
];

/// Attributes that lead from any object of Python to the built-in functions and to all loaded modules. `__class__` and
/// similar ones are not listed, because they lead nowhere without one of these.
#[rustfmt::skip]
const PYTHON_ATTRIBUTES: &[&str] = &[
    "__subclasses__", "__globals__", "__builtins__", "__loader__", "__code__", "__closure__", "f_back",
    "f_builtins", "f_globals", "gi_frame", "cr_frame", "ag_frame", "tb_frame",
];

/// Modules for processes, files and the network of Node.js, and modules that run code. `os`, which only describes the
/// host, and `path` and `process`, which every script uses, are not listed.
#[rustfmt::skip]
const JAVASCRIPT_IMPORTS: &[&str] = &[
    "child_process", "cluster", "worker_threads", "fs", "net", "dgram", "dns", "tls", "http", "https",
    "http2", "vm", "v8", "inspector", "repl", "wasi",
    // Parts of the modules above.
    "_http_agent", "_http_client", "_http_common", "_http_incoming", "_http_outgoing", "_http_server",
    "_stream_wrap", "_tls_common", "_tls_wrap",
    // Modules of Node.js that share their names with packages.
    "node:sqlite", "node:test", "node:quic", "node:ffi",
];

/// Functions that run text as code, load native code or replace the process.
#[rustfmt::skip]
const JAVASCRIPT_CALLS: &[&str] = &[
    "eval", "Function", "process.binding", "process._linkedBinding", "process.dlopen", "process.execve",
    "module._compile",
];

/// The rules of all languages, and the limits of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// The rules for Python.
    pub python: PythonRules,
    /// The rules for JavaScript and TypeScript.
    pub javascript: JavaScriptRules,
    /// The maximum size of code in bytes. Larger code is rejected.
    pub max_bytes: usize,
    /// The maximum number of findings of a report.
    pub max_findings: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            python: PythonRules::default(),
            javascript: JavaScriptRules::default(),
            max_bytes: 1 << 20,
            max_findings: 100,
        }
    }
}

/// The rules for Python. A list in the configuration replaces the default list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PythonRules {
    /// Forbidden modules with all submodules: `os` covers `os.path`.
    pub imports: Vec<String>,
    /// Exceptions from `imports`, such as `os.path`.
    pub allow_imports: Vec<String>,
    /// Forbidden functions: built-in ones by name, others with their module, such as `pickle.loads`.
    pub calls: Vec<String>,
    /// Forbidden attributes of any object.
    pub attributes: Vec<String>,
    /// True if imports of a module whose name is not a literal are findings.
    pub dynamic_imports: bool,
    /// The version of Python that must accept the syntax. Without it, the syntax of any known version is accepted.
    pub version: Option<PythonVersion>,
}

impl Default for PythonRules {
    fn default() -> Self {
        Self {
            imports: owned(PYTHON_IMPORTS),
            allow_imports: Vec::new(),
            // These run text as code, or import a module by name. `open` is not listed: most programs access files of
            // the workspace, and the sandbox decides which files exist.
            calls: owned(&["eval", "exec", "compile", "__import__"]),
            attributes: owned(PYTHON_ATTRIBUTES),
            dynamic_imports: true,
            version: None,
        }
    }
}

/// The rules for JavaScript and TypeScript. A list in the configuration replaces the default list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JavaScriptRules {
    /// Forbidden modules with all submodules: `fs` covers `node:fs` and `fs/promises`. An entry with `node:` covers
    /// only the module of Node.js.
    pub imports: Vec<String>,
    /// Exceptions from `imports`, such as `fs/promises`.
    pub allow_imports: Vec<String>,
    /// Forbidden functions: global ones by name, others with their object or module, such as `process.binding`.
    pub calls: Vec<String>,
    /// Forbidden attributes of any object.
    pub attributes: Vec<String>,
    /// True if imports of a module whose name is not a literal are findings.
    pub dynamic_imports: bool,
}

impl Default for JavaScriptRules {
    fn default() -> Self {
        Self {
            imports: owned(JAVASCRIPT_IMPORTS),
            allow_imports: Vec::new(),
            calls: owned(JAVASCRIPT_CALLS),
            attributes: owned(&["mainModule", "_linkedBinding"]),
            dynamic_imports: true,
        }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The rules of one language.
#[cfg(feature = "parsers")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lists<'r> {
    pub imports: &'r [String],
    pub allow_imports: &'r [String],
    pub calls: &'r [String],
    pub attributes: &'r [String],
    pub dynamic_imports: bool,
    /// The character between a module and a submodule.
    pub separator: char,
}

#[cfg(feature = "parsers")]
impl<'r> Lists<'r> {
    pub fn python(rules: &'r PythonRules) -> Self {
        let PythonRules { imports, allow_imports, calls, attributes, dynamic_imports, version: _ } = rules;
        Self { imports, allow_imports, calls, attributes, dynamic_imports: *dynamic_imports, separator: '.' }
    }

    pub fn javascript(rules: &'r JavaScriptRules) -> Self {
        let JavaScriptRules { imports, allow_imports, calls, attributes, dynamic_imports } = rules;
        Self { imports, allow_imports, calls, attributes, dynamic_imports: *dynamic_imports, separator: '/' }
    }

    /// Returns the entry that forbids this module.
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
pub struct PythonVersion(u8);

impl PythonVersion {
    const MIN_MINOR: u8 = 7;
    const MAX_MINOR: u8 = 15;

    /// Returns the newest version whose syntax is known.
    pub fn newest() -> Self {
        Self(Self::MAX_MINOR)
    }

    #[cfg(feature = "parsers")]
    pub(crate) fn minor(self) -> u8 {
        self.0
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "3.{}", self.0)
    }
}

impl FromStr for PythonVersion {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = (Self::MIN_MINOR..=Self::MAX_MINOR).map(Self).find(|version| version.to_string() == text);
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

    #[cfg(feature = "parsers")]
    #[test]
    fn list_covers_submodules_except_exceptions() {
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
        for version in ["3.7", "3.9", "3.10", "3.15"] {
            assert_eq!(version.parse::<PythonVersion>().unwrap().to_string(), version);
        }
        assert_eq!(PythonVersion::newest().to_string(), "3.15");
        for wrong in ["3", "2.7", "3.6", "3.16", "3.07", "3.11.7", ""] {
            assert!(wrong.parse::<PythonVersion>().is_err(), "{wrong}");
        }
    }
}
