//! What one fork tries against another, its guard, the zygote and the relay.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contract::{ExecHandle, OutputEvent};
use cofferdam_interpreter::{Zygote, ZygoteConfig};

use super::{run, started, started_with, told, zygote};
use crate::support::{backend, block_on, code_with_args, printed, python, stdout};

const ATTACK: &str = include_str!("attack.py");
/// Prints itself, its guard, the zygote and the relay, then each line that it reads.
const VICTIM: &str = "import os, sys\n\
    def parent(pid):\n    return next(int(line.split()[1]) for line in open(f'/proc/{pid}/status') if line.startswith('PPid'))\n\
    guard = os.getppid()\nzygote = parent(guard)\nprint(os.getpid(), guard, zygote, parent(zygote), flush=True)\n\
    sys.stdin.read()\nprint('alive', flush=True)";
/// What the kernel lets every process of one user do to another: said in the documentation.
const NOT_STOPPED: &[&str] = &["affinity", "priority", "status", "cmdline", "comm"];
/// What the sandbox refuses everybody, so that there is no control.
const REFUSED_TO_ALL: &[&str] =
    &["ptrace", "seize", "process_vm_readv", "pidfd_getfd", "prlimit", "kcmp", "write-comm", "write-oom"];

/// Tries everything against these processes; gives what came of it by try and target.
async fn attacked(zygote: &Zygote, targets: &[&str]) -> BTreeMap<(String, String), String> {
    let config = ZygoteConfig::python();
    let request = code_with_args(&config.interpreter, "main.py", ATTACK, targets).build().expect("valid");
    let completed = run(zygote, request).await.expect("it runs");
    assert!(completed.exit.success(), "{}", printed(&completed));
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        ((words[0].to_owned(), words[1].to_owned()), words[2].to_owned())
    };
    stdout(&completed).lines().map(line).collect()
}

/// Whether a victim lives, and answers.
async fn answers(handle: ExecHandle) -> bool {
    let mut output = handle.output();
    drop(handle.stdin());
    let mut said = String::new();
    while let Some(OutputEvent::Chunk(chunk)) = output.next().await {
        said.push_str(&String::from_utf8_lossy(&chunk.data));
    }
    said == "alive\n" && handle.exit().await.is_ok_and(|exit| exit.success())
}

async fn victim(zygote: &Zygote) -> (ExecHandle, Vec<String>) {
    let request = python(VICTIM).to_builder().stdin(cofferdam_contract::Stdin::Stream).build().expect("valid");
    let (handle, line) = started_with(zygote, request).await;
    (handle, line.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_fork_reaches_no_sibling_no_guard_and_neither_zygote_nor_relay() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let (handle, pids) = victim(&zygote).await;
        let roles: BTreeMap<&str, &str> =
            pids.iter().map(String::as_str).zip(["sibling", "guard", "zygote", "relay"]).collect();
        assert_eq!(roles.len(), 4, "{pids:?}");
        let targets: Vec<&str> = roles.keys().copied().collect();
        let came = attacked(&zygote, &targets).await;
        let tries: BTreeSet<&String> = came.keys().map(|(name, _)| name).collect();
        assert!(tries.len() > 30, "{tries:?}");
        let mut wrong = Vec::new();
        for ((name, target), result) in &came {
            let role = roles.get(target.as_str()).copied().unwrap_or("own");
            // The control: what the wall stops is done to a process of one's own.
            let own = came.get(&(name.clone(), "own".to_owned())).is_some_and(|result| result == "done");
            let done = match role {
                "own" if REFUSED_TO_ALL.contains(&name.as_str()) => false,
                // Some hosts' sandboxes refuse even that to everybody.
                _ if NOT_STOPPED.contains(&name.as_str()) => own,
                // Those that are not to be looked into at all hide that, too.
                _ => role == "own" || (name == "numbers" && role == "sibling"),
            };
            if done != (result == "done") {
                wrong.push(format!("{name} on {role}: {result}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(answers(handle).await, "it was harmed");
        assert_eq!(told(&zygote, "print(1)", &[]).await, "1\n", "the zygote was harmed");
        zygote.close().await.expect("it closes");
    });
}

/// A fork that waits for its request is as far away as one that runs.
#[test]
fn a_fork_reaches_none_that_waits() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig { ready: 3, ..ZygoteConfig::python() }).await;
        let text = "import os, signal, time\ntime.sleep(0.3)\ntried = 0\nfor pid in map(int, filter(str.isdigit, os.listdir('/proc'))):\n    \
                    if pid == os.getpid():\n        continue\n    tried += 1\n    \
                    for what in (lambda: os.kill(pid, signal.SIGKILL), lambda: open(f'/proc/{pid}/mem', 'rb'), lambda: os.readlink(f'/proc/{pid}/fd/0'), lambda: open(f'/proc/{pid}/environ').read()):\n        \
                    try:\n            what()\n            print('reached', pid)\n        except PermissionError:\n            pass\n        except FileNotFoundError:\n            pass\n\
                    print('tried', tried > 5)";
        for _ in 0..3 {
            assert_eq!(told(&zygote, text, &[]).await, "tried True\n");
        }
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn abstract_sockets_are_each_forks_own() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let listen = "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0of-one')\ns.listen()\nprint(1, flush=True)\ntime.sleep(100)";
        let (handle, _) = started(&zygote, listen).await;
        let connect = "import socket, sys\n\
            def connect(name):\n    try:\n        socket.socket(socket.AF_UNIX).connect(name)\n        return 'connected'\n    except PermissionError:\n        return 'refused'\n\
            own = socket.socket(socket.AF_UNIX)\nown.bind('\\0own')\nown.listen()\nprint(connect('\\0of-one'), connect('\\0own'))";
        assert_eq!(told(&zygote, connect, &[]).await, "refused connected\n");
        handle.close().await.expect("it ends");
        zygote.close().await.expect("it closes");
    });
}
