//! Namespaces with the agent as their process 1, created by util-linux as an ordinary user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cofferdam_contract::Result;
use cofferdam_guest::{AGENT, Evidence, Guest, Settings};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A generous timeout for a busy machine.
pub const LONG: Duration = Duration::from_secs(60);
/// The size of an enclosure's disk.
pub const DISK: u64 = 400 << 20;
/// The user of the tests if they start as root.
const ORDINARY: &str = "61234";

/// A shell script that creates a root for the agent: the programs of this machine, and a few small file systems.
const SCRIPT: &str = r#"
set -e
root=$1 agent=$2 workspace=$3 tmp=$4
mount -t tmpfs -o size=1m,mode=0755 root "$root"
cd "$root"
for name in usr bin sbin lib lib32 lib64 etc; do
    if [ -L "/$name" ]; then cp -P "/$name" "$name"
    elif [ -d "/$name" ]; then mkdir "$name"; mount --rbind "/$name" "$name"; fi
done
mkdir proc tmp workspace dev dev/pts dev/shm sys .cofferdam
mount -t proc proc proc
/usr/sbin/ip link set lo up
echo 0 > proc/sys/net/ipv4/ip_unprivileged_port_start
mount -t tmpfs -o size=$workspace,nr_inodes=20000,mode=0700 workspace workspace
mount -t tmpfs -o size=$tmp,nr_inodes=20000,mode=1777 tmp tmp
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
for name in null zero full random urandom tty; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
touch .cofferdam/init
mount --bind "$agent" .cofferdam/init
mkdir old
cd "$root"
/usr/sbin/pivot_root . old
cd /
umount -l old
rmdir old
mount -o remount,ro,bind /
exec /usr/bin/python3 -c "$5" /usr/bin/unshare --user --map-user=1000 --map-group=1000 --keep-caps \
    /usr/bin/setpriv --bounding-set=-all --ambient-caps=-all --inh-caps=-all /.cofferdam/init
"#;

/// A program that executes its arguments with a raw socket as descriptor 5, as the init of a VM does, and leads all
/// addresses to the loopback interface.
const REQUESTS: &str = r"
import ctypes, os, signal, socket, struct, subprocess, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
subprocess.run(['/usr/sbin/ip', 'route', 'add', 'local', 'default', 'dev', 'lo', 'table', 'local'], check=True)
code = ((0xb1, 0, 0, 0), (0x50, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 2), (6, 0, 0, 80), (6, 0, 0, 0))
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *each) for each in code))
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
raw.setsockopt(socket.SOL_SOCKET, 26, struct.pack('HL', 6, ctypes.addressof(code)))
os.dup2(raw.fileno(), 5)
os.execv(sys.argv[1], sys.argv[1:])
";

/// One enclosure. Dropping it ends it.
pub struct Enclosure {
    pub child: Child,
    _dir: tempfile::TempDir,
}

/// The two streams of an agent.
pub struct Streams {
    pub reader: ChildStdout,
    pub writer: ChildStdin,
}

impl Enclosure {
    /// Starts an agent with a disk of this many bytes.
    pub fn start(disk: u64) -> (Self, Streams) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let agent = dir.path().join("agent");
        std::fs::write(&agent, AGENT).unwrap();
        for path in [dir.path(), &agent] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut command = ordinary();
        command.args(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--uts"]);
        command.args(["--fork", "--kill-child", "sh", "-c", SCRIPT, "sh"]).arg(&root).arg(&agent);
        command.args([disk, disk / 8].map(|size| size.to_string())).arg(REQUESTS);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let streams = Streams { reader: child.stdout.take().unwrap(), writer: child.stdin.take().unwrap() };
        (Self { child, _dir: dir }, streams)
    }

    /// Returns the pid of the agent in the host's namespace.
    pub fn agent(&self) -> i32 {
        let pid = self.child.id().unwrap();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Waits until all processes have ended.
    pub async fn ended(mut self) {
        tokio::time::timeout(LONG, self.child.wait()).await.expect("the enclosure ends").unwrap();
    }
}

/// Returns a command that runs its arguments as an ordinary user.
fn ordinary() -> Command {
    if !Path::new("/proc/self").exists() || !rustix::process::geteuid().is_root() {
        return Command::new("env");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", ORDINARY, "--regid", ORDINARY, "--clear-groups"]);
    command
}

/// Starts a guest in an enclosure with these settings.
pub async fn connect(settings: Settings) -> Result<(Enclosure, Guest, Evidence)> {
    let (enclosure, Streams { reader, writer }) = Enclosure::start(DISK);
    let (guest, evidence) = Guest::connect(reader, writer, settings, Instant::now() + LONG).await?;
    Ok((enclosure, guest, evidence))
}

/// Starts a guest with the default settings.
pub async fn guest() -> (Enclosure, Guest) {
    let (enclosure, guest, _) = connect(Settings::default()).await.unwrap();
    (enclosure, guest)
}
