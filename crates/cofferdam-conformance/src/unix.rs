//! The suite's programs for guests with `/bin/sh`, coreutils, `setsid` and, for some, Python.

use bytes::Bytes;
use cofferdam_contract::{Command, ExecRequest, ExecRequestBuilder, Script, WORKSPACE_PATH};

use crate::{GuestProgram, Programs, READY};

/// Practically forever, and understood by every `sleep`.
const FOREVER: &str = "1000000";

const ALLOCATE: &str = r#"
import os, sys
size, processes = int(sys.argv[1]), int(sys.argv[2])

def hold(size):
    block = bytearray(size)
    for at in range(0, size, 4096):
        block[at] = 1
    return block

def child():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        try:
            os.close(go)
            block = hold(size // processes)
            os.write(theirs, b"k")
            os.read(stay, 1)
        finally:
            os._exit(12)
    os.close(theirs)
    return ours

try:
    if processes == 1:
        block = hold(size)
        done = True
    else:
        stay, go = os.pipe()
        done = all([os.read(pipe, 1) for pipe in [child() for _ in range(processes)]])
except (MemoryError, OSError):
    done = False
print("allocated" if done else "refused", flush=True)
os._exit(0 if done else 12)
"#;

const ALLOCATE_IN_CHILD: &str = r#"
import os, sys
pid = os.fork()
if pid == 0:
    try:
        block = bytearray(int(sys.argv[1]))
        for at in range(0, len(block), 4096):
            block[at] = 1
    except MemoryError:
        os._exit(12)
    os._exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(int(sys.argv[2]))
"#;

const FORK: &str = r#"
import os, signal, sys
children = []
for _ in range(int(sys.argv[1])):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        signal.pause()
        os._exit(0)
    children.append(pid)
print("forked", len(children), flush=True)
for pid in children:
    os.kill(pid, signal.SIGKILL)
for pid in children:
    os.waitpid(pid, 0)
"#;

const SWAP: &str = r#"
import os, sys
path, inside, outside = sys.argv[1:4]

def point(target):
    os.symlink(target, path + ".new")
    os.rename(path + ".new", path)

point(inside)
print("ready", flush=True)
while True:
    point(outside)
    point(inside)
"#;

const SWAP_DIRECTORY: &str = r#"
import os, sys
path, target = sys.argv[1:3]
os.mkdir(path)
os.symlink(target, path + ".link")
print("ready", flush=True)
while True:
    os.rename(path, path + ".directory")
    os.rename(path + ".link", path)
    os.rename(path, path + ".link")
    os.rename(path + ".directory", path)
"#;

const CONNECT: &str = r#"
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5):
        print("connected")
except OSError:
    print("refused")
"#;

const LOOK_UP: &str = r#"
import socket, sys
try:
    socket.gethostbyname(sys.argv[1])
    print("found")
except OSError:
    print("unknown")
"#;

const ECHO: &str = r#"
import socket, sys, threading

def serve(connection):
    total = 0
    try:
        while data := connection.recv(65536):
            total += len(data)
            connection.sendall(data)
        connection.sendall(b"end %d\n" % total)
    except OSError:
        pass
    connection.close()

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"#;

const WATCH_TERMINAL: &str =
    "report() { if [ -t 0 ] && [ -t 1 ]; then echo \"tty $(stty size)\"; else echo 'no tty'; fi; }
trap report WINCH
report
while :; do sleep 0.1; done";

const FILL_EVERYWHERE: &str = "number=0 total=0
for directory in . \"$HOME\" /tmp /var/tmp /dev/shm /run /mnt; do
  [ -d \"$directory\" ] && [ -w \"$directory\" ] || continue
  number=$((number + 1)) file=$directory/fill.$number
  head -c BYTES /dev/zero 2>/dev/null >\"$file\"
  [ -f \"$file\" ] && total=$((total + $(wc -c <\"$file\")))
done
echo \"stored $total\"
exit 0";

/// Programs for guests that have `/bin/sh`, coreutils and `setsid`. A few need Python 3.
#[derive(Debug, Clone)]
pub struct UnixPrograms {
    python: Option<String>,
}

impl Default for UnixPrograms {
    /// Returns programs for guests with a `python3` in their PATH.
    fn default() -> Self {
        Self { python: Some("python3".to_owned()) }
    }
}

impl UnixPrograms {
    /// Returns programs for guests without Python. The cases that need it are skipped.
    pub fn without_python() -> Self {
        Self { python: None }
    }

    fn python(&self, code: &'static str, args: Vec<String>) -> Option<ExecRequestBuilder> {
        let interpreter = vec![self.python.clone()?, "-I".to_owned(), "-S".to_owned()];
        let contents = Bytes::from_static(code.as_bytes());
        Some(ExecRequest::builder(Command::Script(Script { interpreter, name: "guest.py".to_owned(), contents, args })))
    }
}

impl Programs for UnixPrograms {
    fn request(&self, program: &GuestProgram) -> Option<ExecRequestBuilder> {
        use GuestProgram as P;
        match program {
            P::PrintEnvironment => Some(ExecRequest::argv(["env", "-0"])),
            P::PrintStatus => Some(ExecRequest::argv(["cat", "/proc/self/status"])),
            P::Missing => Some(ExecRequest::argv(["/nowhere/no-such-program"])),
            P::RunFile { path } => Some(ExecRequest::argv([format!("{WORKSPACE_PATH}/{path}")])),
            P::AllocateMemory { bytes, processes } => {
                self.python(ALLOCATE, vec![bytes.to_string(), processes.to_string()])
            }
            P::AllocateMemoryInChild { bytes, code } => {
                self.python(ALLOCATE_IN_CHILD, vec![bytes.to_string(), code.to_string()])
            }
            P::Fork { count } => self.python(FORK, vec![count.to_string()]),
            P::SwapSymlinkForever { path, inside, outside } => {
                self.python(SWAP, vec![path.clone(), inside.clone(), outside.clone()])
            }
            P::SwapDirectoryForever { path, target } => self.python(SWAP_DIRECTORY, vec![path.clone(), target.clone()]),
            P::Connect { host, port } => self.python(CONNECT, vec![host.clone(), port.to_string()]),
            P::LookUp { name } => self.python(LOOK_UP, vec![name.clone()]),
            P::EchoConnections { port } => self.python(ECHO, vec![port.to_string()]),
            other => line(other).map(ExecRequest::shell),
        }
    }
}

/// Returns the program as lines for `/bin/sh`.
fn line(program: &GuestProgram) -> Option<String> {
    use GuestProgram as P;
    Some(match program {
        P::Succeed => ":".to_owned(),
        P::Exit(code) => format!("exit {code}"),
        P::KillSelf(signal) => format!("kill -{signal} $$; sleep {FOREVER}"),
        P::Print { stdout, stderr } => format!("printf %s {}; printf %s {} >&2", quote(stdout), quote(stderr)),
        P::PrintRepeated { line, total } => format!("yes {} | head -c {total}", quote(line)),
        P::PrintNumbered { count } => {
            format!("i=1; while [ $i -le {count} ]; do echo o$i; echo e$i >&2; i=$((i + 1)); done")
        }
        P::PrintAllBytes => {
            let octal: String = (0..=255).map(|byte| format!("\\{byte:03o}")).collect();
            format!("printf '{octal}'")
        }
        P::PrintAroundInput { before, after } => {
            format!("printf %s {}; read -r line; printf %s {}", quote(before), quote(after))
        }
        P::CopyInput { code: 0 } => "exec cat".to_owned(),
        P::CopyInput { code } => format!("cat; exit {code}"),
        P::CountInput => "echo $(($(wc -c)))".to_owned(),
        P::PrintWorkingDir => "pwd -P".to_owned(),
        P::SleepForever => format!("echo {READY}; exec sleep {FOREVER}"),
        // An ignored signal stays ignored after exec.
        P::IgnoreTermAndSleep => format!("trap '' TERM; echo {READY}; exec sleep {FOREVER}"),
        P::ExitOnTerm { code } => format!("trap 'exit {code}' TERM; echo {READY}; while :; do sleep 0.05; done"),
        P::CloseOutputAndSleep => format!("echo {READY}; exec sleep {FOREVER} >&- 2>&-"),
        P::DaemoniseAndSleep { heartbeat } => {
            let beat = format!("trap '' TERM; while :; do printf x >>{}; sleep 0.05; done", quote(heartbeat));
            let daemon = format!("setsid sh -c {} </dev/null >/dev/null 2>&1 &", quote(&beat));
            format!("({daemon})\necho {READY}; exec sleep {FOREVER}")
        }
        P::DaemoniseAndSpin => {
            let daemon = "setsid sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 &";
            format!("({daemon})\necho {READY}; exec sleep {FOREVER}")
        }
        P::WriteFile { path, contents } => format!("printf %s {} >{}", quote(contents), quote(path)),
        P::ReadFile { path } => format!("cat -- {}", quote(path)),
        P::MakeDirectory { path } => format!("mkdir -- {}", quote(path)),
        P::MakeSymlink { path, target } => format!("ln -s -- {} {}", quote(target), quote(path)),
        P::MakeFifo { path } => format!("mkfifo -- {}", quote(path)),
        P::MakeFiles { path, count } => {
            format!("(cd {} && i=0 && while [ $i -lt {count} ]; do : >f$i || exit 1; i=$((i + 1)); done)", quote(path))
        }
        P::Append { path, count } => {
            let path = quote(path);
            format!("i=0; while [ $i -lt {count} ]; do printf x; i=$((i + 1)); done >>{path}")
        }
        P::Rename { from, to } => format!("mv -T -- {} {}", quote(from), quote(to)),
        P::Remove { path } => format!("rm -r -- {}", quote(path)),
        P::SpinCpu { processes } => {
            let spin = "while :; do :; done";
            format!("i=1; while [ $i -lt {processes} ]; do ({spin}) & i=$((i + 1)); done; {spin}")
        }
        P::FillDisk { path, bytes } => {
            let path = quote(path);
            format!(
                "code=0; head -c {bytes} /dev/zero >{path} || code=$?; echo stored $(($(wc -c <{path}))); [ $code = 0 ] || exit 28"
            )
        }
        P::FillEveryDirectory { bytes } => FILL_EVERYWHERE.replace("BYTES", &bytes.to_string()),
        P::WatchTerminal => WATCH_TERMINAL.to_owned(),
        P::CountProcesses => "set -- /proc/[0-9]*; echo $#".to_owned(),
        P::Sequence(programs) => {
            let lines: Option<Vec<String>> = programs.iter().map(line).collect();
            format!("set -e\n{}", lines?.join("\n"))
        }
        _ => return None,
    })
}

/// Quotes text for `/bin/sh`.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Output;

    /// Runs a program on the host, outside any sandbox.
    fn host(program: &GuestProgram, directory: &std::path::Path) -> Output {
        let request = UnixPrograms::default().request(program).expect("known").build().expect("valid");
        let mut command = match request.command() {
            Command::Shell(line) => {
                let mut command = std::process::Command::new("/bin/sh");
                command.args(["-c", line]);
                command
            }
            Command::Argv(argv) => {
                let mut command = std::process::Command::new(&argv[0]);
                command.args(&argv[1..]);
                command
            }
            Command::Script(script) => {
                let file = directory.join(&script.name);
                std::fs::write(&file, &script.contents).expect("written");
                let mut command = std::process::Command::new(&script.interpreter[0]);
                command.args(&script.interpreter[1..]).arg(file).args(&script.args);
                command
            }
        };
        command.current_dir(directory).env_clear().env("PATH", "/usr/bin:/bin").output().expect("runs")
    }

    fn check(program: GuestProgram, code: Option<i32>, stdout: &[u8]) {
        let directory = tempfile::tempdir().expect("directory");
        let output = host(&program, directory.path());
        assert_eq!(output.status.code(), code, "{program:?}: {output:?}");
        assert_eq!(output.stdout, stdout, "{program:?}: {output:?}");
    }

    #[test]
    fn programs_that_end_give_the_declared_result() {
        use GuestProgram as P;
        let all: Vec<u8> = (0..=255).collect();
        check(P::Succeed, Some(0), b"");
        check(P::Exit(255), Some(255), b"");
        check(P::KillSelf(9), None, b"");
        check(P::Print { stdout: "it's 100%\\n".into(), stderr: "e".into() }, Some(0), b"it's 100%\\n");
        check(P::PrintRepeated { line: "ab".into(), total: 7 }, Some(0), b"ab\nab\na");
        check(P::PrintNumbered { count: 2 }, Some(0), b"o1\no2\n");
        check(P::PrintAllBytes, Some(0), &all);
        check(P::CountInput, Some(0), b"0\n");
        check(P::AllocateMemory { bytes: 1 << 20, processes: 1 }, Some(0), b"allocated\n");
        check(P::AllocateMemory { bytes: 1 << 20, processes: 3 }, Some(0), b"allocated\n");
        check(P::AllocateMemoryInChild { bytes: 1 << 20, code: 3 }, Some(3), b"child 0\n");
        check(P::Fork { count: 3 }, Some(0), b"forked 3\n");
        check(P::FillDisk { path: "f".into(), bytes: 100 }, Some(0), b"stored 100\n");
        check(P::Connect { host: "127.0.0.1".into(), port: 1 }, Some(0), b"refused\n");
        check(P::LookUp { name: "127.0.0.1".into() }, Some(0), b"found\n");
        check(P::LookUp { name: "not a name".into() }, Some(0), b"unknown\n");
        let sequence = vec![
            P::MakeDirectory { path: "d".into() },
            P::MakeFiles { path: "d".into(), count: 3 },
            P::WriteFile { path: "f3".into(), contents: "x'y".into() },
            P::MakeSymlink { path: "l".into(), target: "f3".into() },
            P::MakeFifo { path: "p".into() },
            P::Append { path: "f3".into(), count: 2 },
            P::Rename { from: "l".into(), to: "m".into() },
            P::Remove { path: "d".into() },
            P::ReadFile { path: "m".into() },
        ];
        check(P::Sequence(sequence), Some(0), b"x'yxx");
        check(P::Sequence(vec![P::Exit(4), P::Print { stdout: "x".into(), stderr: String::new() }]), Some(4), b"");
    }

    #[test]
    fn the_environment_is_printed_as_it_is() {
        check(GuestProgram::PrintEnvironment, Some(0), b"PATH=/usr/bin:/bin\0");
    }
}
