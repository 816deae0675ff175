//! The execution of a request on an interpreter that has already started. Pure. A difference to a cold start is a
//! [`Mismatch`].

use bytes::Bytes;
use cofferdam_contract::{Command, ExecRequest, WORKSPACE_PATH};

use crate::config::{InterpreterConfig, Runtime};
use crate::error::Mismatch;

/// Variables that the C library, the interpreters or common libraries read once at start: names, or prefixes followed
/// by `*`.
const STARTUP_VARIABLES: &[&str] = &[
    "PATH",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LD_*",
    "GCONV_PATH",
    "GLIBC_*",
    "MALLOC_*",
    "PYTHON*",
    "NODE_*",
    "UV_*",
    "OPENSSL_*",
    "SSL_*",
    "OMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "GOTO_*",
    "BLIS_*",
    "NUMEXPR_*",
];

/// The location of the code.
#[derive(Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// In the request, to be stored in a file with this name.
    Code { name: &'a str, contents: &'a Bytes },
    /// In an existing file in the sandbox, named as in the request.
    File(&'a str),
}

/// A request in the form that the prepared interpreter understands.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan<'a> {
    pub source: Source<'a>,
    pub args: &'a [String],
    /// The working directory; `None` for the workspace itself.
    pub directory: Option<String>,
    /// Variables to set, or to unset with `None`.
    pub env: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Plan<'a> {
    /// Creates a plan for a validated request.
    pub fn new(config: &InterpreterConfig, request: &'a ExecRequest) -> Result<Self, Mismatch> {
        if request.terminal().is_some() {
            return Err(Mismatch::Terminal);
        }
        if request.max_output() > config.max_output {
            return Err(Mismatch::Output { max: config.max_output });
        }
        let (source, args) = source(config, request.command())?;
        let env: Vec<_> = request.env().iter().collect();
        if let Some((name, _)) = env.iter().find(|(name, _)| counts_at_start(config, name)) {
            return Err(Mismatch::StartupVariable { name: (*name).to_owned() });
        }
        let directory = request.working_dir().inside();
        Ok(Self { source, args, directory: (directory != WORKSPACE_PATH).then_some(directory), env })
    }
}

fn source<'a>(config: &InterpreterConfig, command: &'a Command) -> Result<(Source<'a>, &'a [String]), Mismatch> {
    let (source, args) = match command {
        Command::Script(script) if script.interpreter == config.command => {
            (Source::Code { name: &script.name, contents: &script.contents }, script.args.as_slice())
        }
        Command::Argv(words) => {
            let rest = words.strip_prefix(config.command.as_slice()).ok_or(Mismatch::OtherCommand)?;
            let (file, args) = rest.split_first().ok_or(Mismatch::Options)?;
            if file.is_empty() || file.starts_with('-') {
                return Err(Mismatch::Options);
            }
            (Source::File(file), args)
        }
        Command::Script(_) | Command::Shell(_) => return Err(Mismatch::OtherCommand),
    };
    let name = match source {
        Source::Code { name, .. } | Source::File(name) => name,
    };
    // A name that looks like an option would be parsed as one after the interpreter.
    let cold_only = match config.runtime {
        Runtime::Python => name.ends_with(".pyc"),
        Runtime::Node => ![".js", ".cjs", ".mjs"].iter().any(|extension| name.ends_with(extension)),
    };
    if cold_only { Err(Mismatch::FileKind) } else { Ok((source, args)) }
}

fn counts_at_start(config: &InterpreterConfig, name: &str) -> bool {
    let own = config.startup_variables.iter().map(String::as_str);
    STARTUP_VARIABLES.iter().copied().chain(own).any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{ByteSize, SandboxPath, Script, TerminalSize};

    fn script(interpreter: &[&str], name: &str) -> Command {
        Command::Script(Script {
            interpreter: interpreter.iter().map(|&word| word.to_owned()).collect(),
            name: name.to_owned(),
            contents: Bytes::from_static(b"1"),
            args: vec!["a".to_owned()],
        })
    }

    /// Promise (Warm interpreters): A warm interpreter serves only requests that run as in a cold one.
    #[test]
    fn warm_interpreter_serves_only_equivalent_requests() {
        let python = InterpreterConfig::python();
        let node = InterpreterConfig::node();
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|&word| word.to_owned()).collect());
        for (config, command, served) in [
            (&python, script(&["python3", "-u"], "main.py"), true),
            (&python, script(&["python3", "-u"], "main"), true),
            (&python, script(&["python3"], "main.py"), false),
            (&python, script(&["python3", "-u", "-O"], "main.py"), false),
            (&python, script(&["node", "--v8-pool-size=2"], "main.js"), false),
            (&python, argv(&["python3", "-u", "dir/x.py", "-v"]), true),
            (&python, argv(&["python3", "-u", "-c", "1"]), false),
            (&python, argv(&["python3", "-u", "-"]), false),
            (&python, argv(&["python3", "-u"]), false),
            (&python, argv(&["python3", "x.py"]), false),
            (&python, argv(&["python3", "-u", "x.pyc"]), false),
            (&python, Command::Shell("python3 -u x.py".to_owned()), false),
            (&node, script(&["node", "--v8-pool-size=2"], "main.mjs"), true),
            (&node, script(&["node", "--v8-pool-size=2"], "main.ts"), false),
            (&node, script(&["node", "--v8-pool-size=2"], "main"), false),
        ] {
            let request = ExecRequest::builder(command).build().unwrap();
            assert_eq!(config.accepts(&request).is_ok(), served, "{:?}", request.command());
        }
    }

    /// Promise (Warm interpreters): Settings that a started interpreter cannot apply are refused.
    #[test]
    fn settings_that_a_started_interpreter_cannot_take_over_are_refused() {
        let config = InterpreterConfig { startup_variables: vec!["MPL*".to_owned()], ..InterpreterConfig::python() };
        let request = || ExecRequest::builder(script(&["python3", "-u"], "main.py"));
        assert!(config.accepts(&request().env("X", "1").unset_env("TZ").build().unwrap()).is_ok());
        for name in ["PATH", "HOME", "LC_ALL", "PYTHONHASHSEED", "LD_PRELOAD", "MPLBACKEND"] {
            assert!(config.accepts(&request().env(name, "1").build().unwrap()).is_err(), "{name}");
            assert!(config.accepts(&request().unset_env(name).build().unwrap()).is_err(), "{name}");
        }
        let terminal = TerminalSize { rows: 1, columns: 1 };
        assert!(config.accepts(&request().terminal(terminal).build().unwrap()).is_err());
        assert!(config.accepts(&request().max_output(ByteSize::from_mebibytes(9)).build().unwrap()).is_err());
    }

    #[test]
    fn a_plan_takes_everything_over() {
        let request = ExecRequest::builder(script(&["python3", "-u"], "m.py"))
            .env("A", "b")
            .unset_env("C")
            .working_dir(SandboxPath::new("d").unwrap())
            .build()
            .unwrap();
        let config = InterpreterConfig::python();
        let plan = Plan::new(&config, &request).unwrap();
        assert_eq!(plan.source, Source::Code { name: "m.py", contents: &Bytes::from_static(b"1") });
        assert_eq!(plan.args, ["a"]);
        assert_eq!(plan.directory.as_deref(), Some("/workspace/d"));
        assert_eq!(plan.env, [("A", Some("b")), ("C", None)]);
    }
}
