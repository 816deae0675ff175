//! Boot of the guest, once for all tests of this module, and the output of its script.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use cofferdam_contract::{Access, ByteSize};
use cofferdam_image::{Cache, Image, Images, Recipe, RootSource, Source};
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::vmm::{Contents, Disk, Started, VmDescription, Vmm};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::cli::vms;
use crate::hostile::guests::Guests;

/// Timeout after which the guest counts as hung. It is emulated, and shares the CPUs.
const DEADLINE: Duration = Duration::from_secs(1100);
/// Directory of its files, in its initramfs and in its root file system.
const DIRECTORY: &str = "v2";
const PORT: &str = "cofferdam.test";
const MAX_OUTPUT: u64 = 64 << 20;
/// The hostile programs that the script runs.
const PROGRAMS: [&str; 5] = ["cpu_bomb", "disk_bomb", "fork_bomb", "kernel_memory", "memory_bomb"];

/// The output of the script for one case.
#[derive(Debug, Clone, Default)]
pub struct Case {
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
    /// The groups afterwards, with their delegated controllers and their contents.
    pub groups: Vec<String>,
    /// The exit status.
    pub status: i32,
}

/// Returns all cases by name, or `None` if no VMs are tested, which is printed.
pub fn cases(test: &str) -> Option<&'static BTreeMap<String, Case>> {
    static CASES: OnceLock<BTreeMap<String, Case>> = OnceLock::new();
    vms::with_vms(Command::new("true"), test)?;
    Some(CASES.get_or_init(|| {
        let printed = boot();
        let cases = parse(&printed);
        assert!(printed.contains("@@end 0"), "the script did not end as it must:\n{}", tail(&printed));
        cases
    }))
}

fn tail(text: &str) -> &str {
    let at = text.len().saturating_sub(4000);
    text.get(text.ceil_char_boundary(at)..).unwrap_or_default()
}

fn image() -> Image {
    let cache = vms::cache();
    let images = Images::new(cache.join("vm"), Cache::new(cache.join("debian")));
    let source = Source { root: RootSource::Debian(Recipe::tiny()), ..Source::default() };
    images.find_or_make(&source, &mut |_| ()).expect("an image")
}

fn boot() -> String {
    let image = image();
    let temp = tempfile::Builder::new().prefix("v2-").tempdir().expect("a temporary directory");
    let initramfs = temp.path().join("initramfs");
    fs::write(&initramfs, [fs::read(&image.initramfs).expect("an initramfs"), archive(temp.path())].concat())
        .expect("a file");
    let description = VmDescription {
        kernel: image.kernel.clone(),
        initramfs,
        command_line: format!("rdinit=/{DIRECTORY}/init"),
        memory: ByteSize::from_mebibytes(1536),
        processors: 2,
        disks: vec![Disk { name: "root", contents: Contents::Shared(image.root), access: Access::ReadOnly }],
        port: PORT,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let qemu = Qemu::new(QemuConfig::default()).expect("a usual processor");
        let Started { vm, reader, writer: _writer } = qemu.start(description).await.expect("a VM");
        let printed = tokio::time::timeout(DEADLINE, read(reader)).await;
        let console = vm.console();
        vm.kill().await.expect("it can be killed");
        match printed {
            Ok(printed) if !printed.is_empty() => printed,
            Ok(_) => panic!("the guest printed nothing:\n{console}"),
            Err(_) => panic!("the guest takes longer than {DEADLINE:?}:\n{console}"),
        }
    })
}

async fn read(reader: impl AsyncRead + Unpin) -> String {
    let mut bytes = Vec::new();
    // A VM that has ended closed the connection.
    let _ = reader.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Creates the archive that the kernel unpacks in addition to the image's initramfs, which has the modules.
fn archive(temp: &Path) -> Vec<u8> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/cgroup_v2");
    let built = |name: &str| {
        let output = temp.join(name);
        let source = sources.join(format!("{name}.c"));
        let status =
            Command::new("gcc").args(["-O1", "-static", "-Wall", "-Wextra", "-o"]).arg(&output).arg(source).status();
        assert!(status.is_ok_and(|status| status.success()), "{name}.c does not compile");
        output
    };
    let stripped = temp.join("cofferdam");
    let status = Command::new("strip").arg("-o").arg(&stripped).arg(env!("CARGO_BIN_EXE_cofferdam")).status();
    assert!(status.is_ok_and(|status| status.success()), "the binary cannot be stripped");
    let guests = Guests::compile(&PROGRAMS.into());
    let mut files: Vec<(String, PathBuf)> = vec![
        ("init".to_owned(), built("init")),
        ("measure".to_owned(), built("measure")),
        ("cofferdam".to_owned(), stripped),
        ("script.sh".to_owned(), sources.join("script.sh")),
    ];
    files.extend(PROGRAMS.map(|name| (format!("guests/{name}"), guests.path(name))));
    let mut archive = Vec::new();
    for directory in [DIRECTORY.to_owned(), format!("{DIRECTORY}/guests")] {
        entry(&mut archive, &directory, 0o040_755, &[]);
    }
    for (name, path) in files {
        entry(&mut archive, &format!("{DIRECTORY}/{name}"), 0o100_755, &fs::read(path).expect("a file"));
    }
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    archive
}

/// Appends an entry of an archive in the kernel's format ("newc").
fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, data: &[u8]) {
    let length = |bytes: usize| u32::try_from(bytes).expect("a small file");
    let mut head = b"070701".to_vec();
    let inode = length(archive.len()) + 1;
    for number in [inode, mode, 0, 0, 1, 0, length(data.len()), 0, 0, 0, 0, length(name.len()) + 1, 0] {
        head.extend(format!("{number:08X}").bytes());
    }
    head.extend(name.bytes().chain([0]));
    for bytes in [&head[..], data] {
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
}

fn parse(printed: &str) -> BTreeMap<String, Case> {
    let mut cases = BTreeMap::new();
    for text in printed.split("@@case ").skip(1) {
        let (name, rest) = text.split_once('\n').unwrap_or((text, ""));
        let (output, rest) = rest.split_once("@@errors\n").unwrap_or((rest, ""));
        let (errors, rest) = rest.split_once("@@groups\n").unwrap_or((rest, ""));
        let (groups, rest) = rest.split_once("@@exit ").unwrap_or((rest, ""));
        let case = Case {
            output: output.to_owned(),
            errors: errors.to_owned(),
            groups: groups.lines().map(str::to_owned).collect(),
            status: rest.lines().next().and_then(|line| line.trim().parse().ok()).unwrap_or(-1),
        };
        cases.insert(name.to_owned(), case);
    }
    cases
}
