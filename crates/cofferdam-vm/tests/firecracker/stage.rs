//! A program in place of Firecracker, inside the driver's isolation. It implements the described API, opens files as
//! Firecracker does, writes states that can be restored, and acts as the agent behind its vsock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Access, ByteSize};
use cofferdam_vm::firecracker::{FirecrackerConfig, FirecrackerVmm, Jailer};
use cofferdam_vm::vmm::{Contents, Disk, Hardware, VmDescription};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::contract;
use crate::support::{Reply, Seen, http, listen};

const PAGE: usize = 4096;
/// Offset of the history in the VM's memory.
pub(crate) const HISTORY_AT: u64 = 8 * PAGE as u64;
pub(crate) const MEMORY: ByteSize = ByteSize::from_mebibytes(8);
/// The byte by which the agent confirms a connection.
const TAKEN: u8 = 6;

/// The program, the files of VMs, and their directories.
#[derive(Debug)]
pub(crate) struct Stage {
    directory: TempDir,
}

impl Stage {
    /// Creates a stage. `fault` is a fault at a request, such as `die PUT /vsock`, or another difference from Firecracker,
    /// such as `reports 1.15.0`; `version` is the version that the program prints.
    pub(crate) fn new(fault: &str, version: &str) -> Self {
        let stage = Self { directory: tempfile::tempdir().expect("a directory") };
        let path = |name: &str| stage.directory.path().join(name);
        // The VMM may run as another user.
        fs::set_permissions(path(""), fs::Permissions::from_mode(0o755)).expect("it can be opened");
        fs::create_dir(path("bin")).expect("a directory");
        fs::create_dir(path("lib")).expect("a directory");
        let own = std::env::current_exe().expect("this program");
        let fake = path("lib/fake");
        if fs::hard_link(&own, &fake).is_err() {
            fs::copy(&own, &fake).expect("a copy of this program");
        }
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).expect("it can be executed");
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'Firecracker v{version}'; exit; fi\n\
             while [ $# -gt 1 ]; do case \"$1\" in --api-sock) socket=$2;; --id) id=$2;; esac; shift 2; done\n\
             export COFFERDAM_TEST_MACHINE=\"$socket $id\" COFFERDAM_TEST_FAULT='{fault}' COFFERDAM_TEST_VERSION='{version}'\n\
             exec '{}' --exact stage::acts_as_a_firecracker_with_a_vm --nocapture --test-threads=1 --skip \"$id\"\n",
            fake.display()
        );
        executable(&stage.program(), &script);
        for (name, contents) in [("vmlinux", &b"\x7fELF kernel"[..]), ("initramfs", b"initramfs"), ("root", b"root")] {
            fs::write(path(name), contents).expect("a file");
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o444)).expect("others may read it");
        }
        stage
    }

    /// Creates a stage with a jailer; without root, prints the reason for skipping.
    pub(crate) fn jailed(test: &str, fault: &str, version: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP the jailed half of {test}: only root can jail");
            return None;
        }
        let stage = Self::new(fault, version);
        stage.write_jailer(version, ":");
        Some(stage)
    }

    /// Creates one stage of each kind that this user can run.
    pub(crate) fn each(test: &str, fault: &str, version: &str) -> Vec<Self> {
        [Some(Self::new(fault, version)), Self::jailed(test, fault, version)].into_iter().flatten().collect()
    }

    /// Writes a program in place of the jailer; `fault` is a shell command that it runs before Firecracker.
    pub(crate) fn write_jailer(&self, version: &str, fault: &str) {
        let library = self.directory.path().join("lib");
        let library = library.to_str().expect("a name").trim_start_matches('/');
        let script = include_str!("jailer.sh").replace("@LIBRARY@", library);
        executable(&self.jailer(), &script.replace("@VERSION@", version).replace("@FAULT@", fault));
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.directory.path().join("bin/firecracker")
    }

    pub(crate) fn jailer(&self) -> PathBuf {
        self.directory.path().join("bin/jailer")
    }

    pub(crate) fn is_jailed(&self) -> bool {
        self.jailer().exists()
    }

    pub(crate) fn base(&self) -> PathBuf {
        self.directory.path().join("monitors")
    }

    pub(crate) fn driver(&self, timeout: Duration) -> FirecrackerVmm {
        driver_in(self.directory.path(), timeout)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a VM, and its writable disk.
    pub(crate) fn description(&self) -> (VmDescription, File) {
        description_in(self.directory.path())
    }

    pub(crate) fn hardware(&self) -> Hardware {
        self.description().0.into_parts().0
    }

    /// Returns the files that are left of VMs after a time limit.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let begun = std::time::Instant::now();
        loop {
            let entries = fs::read_dir(self.base()).map(|all| all.flatten().map(|entry| entry.path()).collect());
            let entries: Vec<PathBuf> = entries.unwrap_or_default();
            if entries.is_empty() || begun.elapsed() > Duration::from_secs(10) {
                return entries;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Writes a program, and runs it once: a new program can be busy while another thread's new child still has it open.
fn executable(path: &Path, script: &str) {
    fs::write(path, script).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it can be executed");
    while let Err(error) = Command::new(path).arg("--version").output() {
        assert_eq!(error.kind(), std::io::ErrorKind::ExecutableFileBusy, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a driver, with the jailer if there is one beside the program.
pub(crate) fn driver_in(directory: &Path, timeout: Duration) -> FirecrackerVmm {
    let program = Some(directory.join("bin/firecracker"));
    let jailer = if directory.join("bin/jailer").exists() { Jailer::Beside } else { Jailer::Off };
    let base = FirecrackerConfig::new(directory.join("monitors"));
    FirecrackerVmm::new(FirecrackerConfig { program, jailer, timeout, ..base })
}

pub(crate) fn description_in(directory: &Path) -> (VmDescription, File) {
    let work = tempfile::tempfile_in(directory).expect("a disk");
    work.set_len(1 << 20).expect("its size");
    let own = Contents::Own(work.try_clone().expect("a descriptor"));
    let root = Contents::Shared(directory.join("root"));
    let description = VmDescription {
        kernel: directory.join("vmlinux"),
        initramfs: directory.join("initramfs"),
        command_line: "cofferdam.x=1".to_owned(),
        memory: MEMORY,
        processors: 2,
        disks: vec![
            Disk { name: "root", contents: root, access: Access::ReadOnly },
            Disk { name: "work", contents: own, access: Access::ReadWrite },
        ],
        port: "dev.x",
    };
    (description, work)
}

/// Returns the requests on a VMM's console, in order.
pub(crate) fn requests(console: &str) -> Vec<(String, Value)> {
    let lines = console.lines().filter_map(|line| line.split_once("SEEN ").map(|(_, rest)| rest));
    lines
        .map(|line| {
            let (request, body) = line.split_once(" BODY ").expect("a request and its body");
            (request.to_owned(), serde_json::from_str(body).expect("JSON"))
        })
        .collect()
}

/// Returns the text after a word on a console.
pub(crate) fn reported<'a>(console: &'a str, word: &str) -> Option<&'a str> {
    console.lines().find_map(|line| Some(line.split_once(&format!("{word} "))?.1.trim()))
}

#[derive(Debug, Default)]
struct Fake {
    state: &'static str,
    drives: BTreeMap<String, (PathBuf, bool)>,
    memory: u64,
    history: String,
}

type Shared = Arc<Mutex<Fake>>;

fn path(body: &Value, key: &str) -> PathBuf {
    body[key].as_str().expect("a path").into()
}

/// Executes a request, or returns the reason for its failure.
fn obey(fake: &Shared, seen: &Seen) -> Result<(), String> {
    let failed = |what: &str, path: &Path, error: std::io::Error| format!("{what} {}: {error}", path.display());
    let body = seen.body.clone().unwrap_or_default();
    let mut it = fake.lock();
    match (seen.method.as_str(), seen.path.as_str()) {
        ("PUT", "/machine-config") => it.memory = body["mem_size_mib"].as_u64().expect("a number") << 20,
        ("PUT", "/boot-source") => {
            for (key, begin) in [("kernel_image_path", "\u{7f}ELF"), ("initrd_path", "initramfs")] {
                let file = path(&body, key);
                let found = fs::read(&file).map_err(|error| failed("cannot open", &file, error))?;
                assert!(found.starts_with(begin.as_bytes()), "{key}: {found:?}");
            }
        }
        ("PUT", drive) if drive.starts_with("/drives/") => {
            let (temp, read_only) = (path(&body, "path_on_host"), body["is_read_only"].as_bool().expect("a word"));
            let file = File::options().read(true).write(!read_only).open(&temp);
            let file = file.map_err(|error| failed("cannot open", &temp, error))?;
            if read_only {
                assert!(File::options().write(true).open(&temp).is_err(), "{} can be written to", temp.display());
            } else {
                file.write_all_at(b"written inside", 0).expect("it can be written to");
            }
            it.drives.insert(drive.to_owned(), (temp, read_only));
        }
        ("PUT", "/vsock") => serve_vsock(fake, &path(&body, "uds_path"))?,
        ("PUT", "/actions") => {
            it.state = "Running";
            it.history = "booted".to_owned();
        }
        ("PATCH", "/vm") => it.state = if body["state"] == "Paused" { "Paused" } else { "Running" },
        ("PUT", "/snapshot/create") => {
            if it.state != "Paused" {
                return Err("it is not paused".to_owned());
            }
            let (state, memory) = (path(&body, "snapshot_path"), path(&body, "mem_file_path"));
            let open = |temp: &Path| File::options().write(true).create(true).truncate(false).open(temp);
            let mut file = open(&state).map_err(|error| failed("cannot open", &state, error))?;
            let drives: BTreeMap<_, _> = it.drives.iter().map(|(id, drive)| (id.clone(), json!(drive))).collect();
            file.write_all(json!({ "drives": drives, "memory": it.memory }).to_string().as_bytes()).expect("it writes");
            let file = open(&memory).map_err(|error| failed("cannot open", &memory, error))?;
            file.set_len(it.memory).expect("its length");
            // The complete memory, as in a full snapshot.
            for at in (0..it.memory).step_by(1 << 20) {
                file.write_all_at(&vec![0; 1 << 20], at).expect("it writes");
            }
            file.write_all_at(it.history.as_bytes(), HISTORY_AT).expect("it writes");
            file.sync_all().expect("it syncs");
        }
        ("PUT", "/snapshot/load") => {
            let state = path(&body, "snapshot_path");
            let memory = path(&body["mem_backend"], "backend_path");
            let text = fs::read(&state).map_err(|error| failed("cannot open", &state, error))?;
            let saved: Value = serde_json::from_slice(&text).map_err(|error| format!("is no state: {error}"))?;
            let drives: BTreeMap<String, (PathBuf, bool)> =
                serde_json::from_value(saved["drives"].clone()).map_err(|error| error.to_string())?;
            for (temp, read_only) in drives.values() {
                // By the name that it had in the original VM.
                let file = File::options().read(true).write(!read_only).open(temp);
                file.map_err(|error| failed("cannot open", temp, error))?;
            }
            let mut file = File::open(&memory).map_err(|error| failed("cannot open", &memory, error))?;
            let other = File::options().write(true).open(&memory);
            assert!(other.and_then(|other| other.write_at(b"x", 0)).is_err(), "the state can be changed");
            let mut all = Vec::new();
            file.read_to_end(&mut all).expect("it reads");
            it.memory = saved["memory"].as_u64().expect("a number");
            if all.len() as u64 != it.memory {
                return Err("the memory file has another size".to_owned());
            }
            let history = &all[HISTORY_AT as usize..HISTORY_AT as usize + 64];
            it.history = format!("{}, restored", String::from_utf8_lossy(history).trim_end_matches('\0'));
            (it.drives, it.state) = (drives, "Paused");
            serve_vsock(fake, &path(&body["vsock_override"], "uds_path"))?;
        }
        _ => {}
    }
    Ok(())
}

fn serve_vsock(fake: &Shared, temp: &Path) -> Result<(), String> {
    let listener = UnixListener::bind(temp).map_err(|error| format!("cannot bind {}: {error}", temp.display()))?;
    let fake = Arc::clone(fake);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(guest(Arc::clone(&fake), stream));
        }
    });
    Ok(())
}

/// Acts as the agent: echoes its input, except for `mark`, which it answers with the history in the VM's memory.
async fn guest(fake: Shared, stream: UnixStream) {
    // The connection that is lost immediately after it was confirmed.
    let lost: Option<u32> = fault_of("lose").and_then(|number| number.parse().ok());
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    if reader.read_line(&mut line).await.is_err() || line != "CONNECT 1024\n" || fake.lock().state != "Running" {
        return;
    }
    // For the first connection, no process inside listens yet.
    let number = {
        let mut connections = CONNECTIONS.lock();
        *connections += 1;
        *connections
    };
    if number == 1 {
        return;
    }
    println!("CONNECTED {number}");
    let greeting = [&b"OK 1073741824\n"[..], &[TAKEN]].concat();
    if writer.write_all(&greeting).await.is_err() || lost == Some(number) {
        return;
    }
    loop {
        let mut word = [0; 4];
        match reader.read_exact(&mut word).await {
            Ok(_) if &word == b"mark" => {
                let history = fake.lock().history.clone();
                let _ = writer.write_all(format!("{history:<64}").as_bytes()).await;
            }
            Ok(_) if &word == b"make" => {
                let sockets =
                    (0..1000).take_while(|at| std::os::unix::net::UnixListener::bind(format!("more{at}")).is_ok());
                let _ = writer.write_all(format!("{:04}", sockets.count()).as_bytes()).await;
            }
            Ok(_) if &word == b"note" => fake.lock().history.push('!'),
            Ok(_) if &word == b"exit" => std::process::exit(0),
            Ok(_) if &word == b"fail" => std::process::exit(3),
            Ok(_) => {
                let _ = writer.write_all(&word).await;
            }
            Err(_) => return,
        }
    }
}

/// The number of connections to the agent.
static CONNECTIONS: Mutex<u32> = Mutex::new(0);

/// Returns the fault if it is of this kind.
fn fault_of(kind: &str) -> Option<String> {
    let fault = std::env::var("COFFERDAM_TEST_FAULT").ok()?;
    Some(fault.strip_prefix(kind)?.trim().to_owned())
}

/// Prints what the isolation lets it see. A jail has no `/proc`.
fn report_isolation(name: &str) {
    println!("NAME {name}");
    println!("USER {}", rustix::process::getuid().as_raw());
    println!("PRIVILEGES {}", u32::from(cofferdam_linux::process::no_new_privileges()));
    println!("PASSWD {}", File::open("/etc/passwd").is_ok());
    println!("MADE {}", File::create("made").and_then(|_| fs::remove_file("made")).is_ok());
    println!("CONNECTS {}", std::net::TcpStream::connect("127.0.0.1:1").is_err_and(is_unreachable));
    let groups = rustix::process::getgroups().map_or(usize::MAX, |groups| groups.len());
    println!("GROUPS {groups}");
    if let Ok(devices) = fs::read_to_string("/proc/self/net/dev") {
        println!("DEVICES {}", devices.lines().filter(|line| line.contains(':')).count());
    }
    if let Ok(all) = fs::read_dir("/") {
        let mut all: Vec<_> = all.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        all.sort_unstable();
        println!("ROOT {}", all.join(" "));
    }
}

/// Returns true for the kernel's error without any network, rather than a refused connection.
fn is_unreachable(error: std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NetworkUnreachable
}

/// The main function of the fake, in a process of its own.
#[tokio::test(flavor = "current_thread")]
async fn acts_as_a_firecracker_with_a_vm() {
    let Ok(arguments) = std::env::var("COFFERDAM_TEST_MACHINE") else { return };
    let (socket, id) = arguments.split_once(' ').expect("a socket and a name");
    let version = std::env::var("COFFERDAM_TEST_VERSION").expect("a version");
    let version = fault_of("reports").unwrap_or(version);
    let fault = std::env::var("COFFERDAM_TEST_FAULT").unwrap_or_default();
    let (kind, at) = fault.split_once(' ').unwrap_or_default();
    let (kind, at, name) = (kind.to_owned(), at.to_owned(), fault_of("named").unwrap_or_else(|| id.to_owned()));
    report_isolation(id);
    match fault.as_str() {
        "mute" => std::future::pending().await,
        "quit" => {
            eprintln!("no memory");
            std::process::exit(3);
        }
        _ => {}
    }
    let fake: Shared = Arc::new(Mutex::new(Fake { state: "Not started", ..Fake::default() }));
    let description = contract::description();
    let listener = UnixListener::bind(socket).expect("a socket");
    listen(listener, Arc::new(Mutex::new(Vec::new())), move |seen| {
        let (request, body) = (format!("{} {}", seen.method, seen.path), seen.body.clone().unwrap_or_default());
        println!("SEEN {request} BODY {body}");
        if request == at || (at.ends_with('*') && request.starts_with(at.trim_end_matches('*'))) {
            match kind.as_str() {
                "die" => std::process::exit(9),
                "hang" => return Reply::Silence,
                "refuse" => return Reply::Respond(http(400, r#"{"fault_message":"No space left on device"}"#)),
                "rubbish" => return Reply::RespondAndClose(b"SSH-2.0-x\r\n\r\n".to_vec()),
                // It claims success without doing anything.
                "lie" => return Reply::Respond(http(204, "")),
                other => panic!("{other}"),
            }
        }
        let success = if seen.method == "GET" { 200 } else { 204 };
        let breaches = contract::breaches(&description, &seen.method, &seen.path, seen.body.as_ref(), success);
        let done = if breaches.is_empty() { obey(&fake, seen) } else { Err(breaches.join("; ")) };
        match (done, success, seen.path.as_str()) {
            (Err(why), ..) => Reply::Respond(http(400, &json!({ "fault_message": why }).to_string())),
            (Ok(()), 204, _) => Reply::Respond(b"HTTP/1.1 204 X\r\n\r\n".to_vec()),
            (Ok(()), _, "/version") => {
                Reply::Respond(http(200, &json!({ "firecracker_version": version }).to_string()))
            }
            (Ok(()), ..) => {
                let state = fake.lock().state;
                let about = json!({ "app_name": "Firecracker", "id": name, "state": state, "vmm_version": version });
                Reply::Respond(http(200, &about.to_string()))
            }
        }
    })
    .await;
}
