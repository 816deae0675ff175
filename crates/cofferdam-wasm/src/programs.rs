//! The conformance suite's programs as modules, generated as text and assembled on request.

use std::fmt::Write;

use cofferdam_conformance::{GuestProgram, Programs, READY};
use cofferdam_contract::{Command, ExecRequest, ExecRequestBuilder, Script, WORKSPACE_PATH};

use crate::INTERPRETER;

/// The functions that every program can call. Scratch memory is below 4096, text starts there, buffers start at 1 MiB.
const PRELUDE: &str = include_str!("programs.wat");
/// The address of the first text.
const TEXT: usize = 4096;

/// The conformance suite's programs as modules. Programs that need processes, signals, fifos or sockets do not exist
/// for WASI.
#[derive(Debug, Clone, Copy, Default)]
pub struct WasmPrograms;

impl Programs for WasmPrograms {
    fn request(&self, program: &GuestProgram) -> Option<ExecRequestBuilder> {
        match program {
            GuestProgram::Missing => Some(ExecRequest::argv(["/nowhere/no-such-program"])),
            GuestProgram::RunFile { path } => Some(ExecRequest::argv([format!("{WORKSPACE_PATH}/{path}")])),
            other => Some(run(assemble(&text(other)?)?)),
        }
    }
}

/// Returns a request that runs a module.
fn run(module: Vec<u8>) -> ExecRequestBuilder {
    ExecRequest::builder(Command::Script(Script {
        interpreter: vec![INTERPRETER.to_owned()],
        name: "guest.wasm".to_owned(),
        contents: module.into(),
        args: Vec::new(),
    }))
}

fn assemble(text: &str) -> Option<Vec<u8>> {
    wat::parse_str(text).ok()
}

/// Returns the program as the text of a module.
pub(crate) fn text(program: &GuestProgram) -> Option<String> {
    let mut writer = Writer::default();
    writer.step(program)?;
    let Writer { code, data, .. } = writer;
    let data: String = data.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\{byte:02x}");
        text
    });
    let start = format!("(func (export \"_start\") (local $i i32) (local $n i64)\n{code})");
    Some(format!("(module\n{PRELUDE}\n(data (i32.const {TEXT}) \"{data}\")\n{start})"))
}

#[derive(Default)]
struct Writer {
    code: String,
    data: Vec<u8>,
    labels: usize,
}

impl Writer {
    /// Adds text to the memory, and returns its address and length as two constants.
    fn text(&mut self, text: impl AsRef<[u8]>) -> String {
        let text = text.as_ref();
        let at = TEXT + self.data.len();
        self.data.extend_from_slice(text);
        format!("(i32.const {at}) (i32.const {})", text.len())
    }

    fn line(&mut self, line: impl AsRef<str>) {
        self.code.push_str(line.as_ref());
        self.code.push('\n');
    }

    fn print(&mut self, fd: u32, text: impl AsRef<[u8]>) {
        let text = self.text(text);
        self.line(format!("(call $write (i32.const {fd}) {text})"));
    }

    fn ready(&mut self) {
        self.print(1, format!("{READY}\n"));
    }

    fn exit(&mut self, code: u8) {
        self.line(format!("(call $exit (i32.const {code}))"));
    }

    /// Returns the descriptor and the text of a path. A program fails if the path is in no preopened directory.
    fn path(&mut self, path: &str) -> String {
        let preopens = [("/workspace/", 3), ("/tmp/", 4)];
        let found = preopens.into_iter().find_map(|(prefix, fd)| Some((fd, path.strip_prefix(prefix)?)));
        let (fd, rest) = match found {
            Some(found) => found,
            None if path.starts_with('/') => {
                self.exit(1);
                (5, "nowhere")
            }
            None => (5, path),
        };
        let text = self.text(rest);
        format!("(i32.const {fd}) {text}")
    }

    fn forever(&mut self, body: impl FnOnce(&mut Self)) {
        self.labels += 1;
        let label = format!("$forever{}", self.labels);
        self.line(format!("(loop {label}"));
        body(self);
        self.line(format!("(br {label}))"));
    }

    fn step(&mut self, program: &GuestProgram) -> Option<()> {
        use GuestProgram as P;
        match program {
            P::Succeed => {}
            P::Exit(code) => self.exit(*code),
            P::KillSelf(signal) => self.line(format!("(call $check (call $proc_raise (i32.const {signal})))")),
            P::Print { stdout, stderr } => {
                self.print(1, stdout);
                self.print(2, stderr);
            }
            P::PrintRepeated { line, total } => {
                let line = format!("{line}\n");
                let block = line.repeat(8192 / line.len() + 1);
                let text = self.text(block);
                self.line(format!("(call $repeat {text} (i64.const {total}))"));
            }
            P::PrintNumbered { count } => self.line(format!("(call $print_numbered (i32.const {count}))")),
            P::PrintAllBytes => self.print(1, (0..=255).collect::<Vec<u8>>()),
            P::PrintAroundInput { before, after } => {
                self.print(1, before);
                self.line("(call $read_line)");
                self.print(1, after);
            }
            P::CopyInput { code } => {
                self.line("(drop (call $copy (i32.const 0) (i32.const 1)))");
                self.exit(*code);
            }
            P::CountInput => {
                self.line("(call $print_number (call $copy (i32.const 0) (i32.const -1)))");
                self.print(1, "\n");
            }
            P::PrintEnvironment => self.line("(call $print_environment)"),
            P::PrintWorkingDir => {
                self.line("(call $print_working_dir)");
                self.print(1, "\n");
            }
            P::SleepForever => {
                self.ready();
                self.forever(|it| it.line("(call $sleep)"));
            }
            P::CloseOutputAndSleep => {
                self.ready();
                self.line("(call $check (call $fd_close (i32.const 1))) (call $check (call $fd_close (i32.const 2)))");
                self.forever(|it| it.line("(call $sleep)"));
            }
            P::WriteFile { path, contents } => {
                let path = self.path(path);
                let contents = self.text(contents);
                self.line(format!("(local.set $i (call $create {path}))"));
                self.line(format!("(call $write (local.get $i) {contents})"));
                self.line("(call $check (call $fd_close (local.get $i)))");
            }
            P::ReadFile { path } => {
                let path = self.path(path);
                self.line(format!("(local.set $i (call $open {path}))"));
                self.line("(drop (call $copy (local.get $i) (i32.const 1)))");
                self.line("(call $check (call $fd_close (local.get $i)))");
            }
            P::MakeDirectory { path } => {
                let path = self.path(path);
                self.line(format!("(call $check (call $path_create_directory {path}))"));
            }
            P::MakeSymlink { path, target } => {
                let path = self.path(path);
                let target = self.text(target);
                self.line(format!("(call $check (call $path_symlink {target} {path}))"));
            }
            P::MakeFiles { path, count } => {
                let path = self.path(&format!("{path}/f"));
                self.line(format!("(call $make_files {path} (i32.const {count}))"));
            }
            P::SwapSymlinkForever { path, inside, outside } => {
                let (name, new) = (self.path(path), self.path(&format!("{path}.new")));
                let (inside, outside) = (self.text(inside), self.text(outside));
                let point = |it: &mut Self, target: &str| {
                    it.line(format!("(call $check (call $path_symlink {target} {new}))"));
                    it.line(format!("(call $check (call $path_rename {new} {name}))"));
                };
                point(self, &inside);
                self.ready();
                self.forever(|it| {
                    point(it, &outside);
                    point(it, &inside);
                });
            }
            P::AllocateMemory { bytes, processes: 1 } => {
                let pages = bytes.div_ceil(65_536);
                let (yes, no) = (self.text("allocated\n"), self.text("refused\n"));
                self.line(format!("(if (i32.eq (memory.grow (i32.const {pages})) (i32.const -1))"));
                self.line(format!("(then (call $write (i32.const 1) {no}) (call $exit (i32.const 12))))"));
                self.line(format!("(call $touch (i32.const {pages})) (call $write (i32.const 1) {yes})"));
            }
            P::SpinCpu { processes: 1 } => self.forever(|_| {}),
            P::FillDisk { path, bytes } => {
                let path = self.path(path);
                self.line(format!("(local.set $n (call $fill {path} (i64.const {bytes})))"));
                self.print(1, "stored ");
                self.line("(call $print_number (local.get $n))");
                self.print(1, "\n");
                let short = format!("(i64.lt_u (local.get $n) (i64.const {bytes}))");
                self.line(format!("(if {short} (then (call $exit (i32.const 28))))"));
            }
            P::FillEveryDirectory { bytes } => {
                let (first, second) = (self.path("fill.1"), self.path("/tmp/fill.2"));
                self.line(format!("(local.set $n (i64.add (call $fill {first} (i64.const {bytes}))"));
                self.line(format!("(call $fill {second} (i64.const {bytes}))))"));
                self.print(1, "stored ");
                self.line("(call $print_number (local.get $n))");
                self.print(1, "\n");
            }
            P::WatchTerminal => {
                let (yes, no) = (self.text("tty\n"), self.text("no tty\n"));
                self.line(format!("(if (call $is_tty (i32.const 0)) (then (call $write (i32.const 1) {yes}))"));
                self.line(format!("(else (call $write (i32.const 1) {no})))"));
                self.forever(|it| it.line("(call $sleep)"));
            }
            P::Sequence(programs) => {
                for program in programs {
                    self.step(program)?;
                }
            }
            // WASI has no processes, signal handlers, fifos, sockets or `/proc`.
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_assembles() {
        use GuestProgram as P;
        let path = || "a".to_owned();
        for program in [
            P::Succeed,
            P::KillSelf(9),
            P::PrintRepeated { line: "x".into(), total: 10 },
            P::PrintNumbered { count: 3 },
            P::PrintAllBytes,
            P::PrintAroundInput { before: "a".into(), after: "b".into() },
            P::CopyInput { code: 3 },
            P::CountInput,
            P::PrintEnvironment,
            P::PrintWorkingDir,
            P::SleepForever,
            P::CloseOutputAndSleep,
            P::WriteFile { path: "/etc/x".into(), contents: "\"\\".into() },
            P::ReadFile { path: path() },
            P::MakeDirectory { path: path() },
            P::MakeSymlink { path: path(), target: "/".into() },
            P::MakeFiles { path: path(), count: 3 },
            P::SwapSymlinkForever { path: path(), inside: "b".into(), outside: "c".into() },
            P::AllocateMemory { bytes: 1 << 20, processes: 1 },
            P::SpinCpu { processes: 1 },
            P::FillDisk { path: path(), bytes: 5 },
            P::FillEveryDirectory { bytes: 5 },
            P::WatchTerminal,
            P::Sequence(vec![P::Exit(1), P::Print { stdout: "o".into(), stderr: "e".into() }]),
        ] {
            let text = text(&program).unwrap_or_else(|| panic!("{program:?}"));
            if let Err(error) = wat::parse_str(&text) {
                panic!("{program:?}: {error}");
            }
        }
    }
}
