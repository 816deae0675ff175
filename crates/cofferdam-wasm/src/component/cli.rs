//! Arguments, environment, standard streams, and exit.

use cofferdam_contract::OutputStream as Stream;
use wasmtime::component::Resource;

use super::bindings::cli::{
    environment, exit, stderr, stdin, stdout, terminal_input, terminal_output, terminal_stderr, terminal_stdin,
    terminal_stdout,
};
use super::resources::{InputStream, Nothing, OutputStream};
use crate::termination::Termination;
use crate::wasi::Host;

impl environment::Host for Host {
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(self.env.iter().filter_map(pair).collect())
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.args.clone())
    }

    /// Returns nothing: paths are relative to the preopened `.`, as in preview 1.
    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(None)
    }
}

impl exit::Host for Host {
    fn exit(&mut self, status: Result<(), ()>) -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(Termination::Exit(status.is_err().into())))
    }

    fn exit_with_code(&mut self, code: u8) -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(Termination::Exit(code)))
    }
}

impl stdin::Host for Host {
    fn get_stdin(&mut self) -> wasmtime::Result<Resource<InputStream>> {
        self.push_resource(InputStream::Stdin)
    }
}

impl stdout::Host for Host {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<OutputStream>> {
        self.push_resource(OutputStream::Printed(Stream::Stdout))
    }
}

impl stderr::Host for Host {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<OutputStream>> {
        self.push_resource(OutputStream::Printed(Stream::Stderr))
    }
}

impl terminal_input::Host for Host {}

impl terminal_input::HostTerminalInput for Host {
    fn drop(&mut self, terminal: Resource<Nothing>) -> wasmtime::Result<()> {
        self.delete_resource(terminal).map(|never| match never {})
    }
}

impl terminal_output::Host for Host {}

impl terminal_output::HostTerminalOutput for Host {
    fn drop(&mut self, terminal: Resource<Nothing>) -> wasmtime::Result<()> {
        self.delete_resource(terminal).map(|never| match never {})
    }
}

impl terminal_stdin::Host for Host {
    fn get_terminal_stdin(&mut self) -> wasmtime::Result<Option<Resource<Nothing>>> {
        Ok(None)
    }
}

impl terminal_stdout::Host for Host {
    fn get_terminal_stdout(&mut self) -> wasmtime::Result<Option<Resource<Nothing>>> {
        Ok(None)
    }
}

impl terminal_stderr::Host for Host {
    fn get_terminal_stderr(&mut self) -> wasmtime::Result<Option<Resource<Nothing>>> {
        Ok(None)
    }
}
