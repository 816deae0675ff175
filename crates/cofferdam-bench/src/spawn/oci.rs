//! Bundles for OCI runtimes: a root with only links into the host's `/usr`, and a configuration.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::workload::Workload;

/// Memory limit in bytes, the default of a Cofferdam sandbox.
const MEMORY: u64 = 512 << 20;
/// Process limit, the default of a Cofferdam sandbox.
const PROCESSES: u64 = 10;
/// The user id of the command.
const USER: u32 = 65534;

/// Creates a root file system: mount points, and this host's links into `/usr`.
pub fn make_root(root: &Path) -> io::Result<()> {
    for name in ["usr", "proc", "dev", "tmp", "workspace"] {
        fs::create_dir_all(root.join(name))?;
    }
    for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
        // A host without these links has directories. Programs in them are then not found, which is reported.
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            symlink(target, root.join(name))?;
        }
    }
    Ok(())
}

/// Returns a bundle's configuration.
pub fn config(workload: Workload, root: &Path) -> Value {
    let none: [&str; 0] = [];
    let tmpfs = |path: &str, options: &[&str]| json!({ "destination": path, "type": "tmpfs", "source": "tmpfs", "options": options });
    let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": { "path": root, "readonly": true },
        "process": {
            "terminal": false,
            "user": { "uid": USER, "gid": USER },
            "args": workload.argv(),
            "env": ["PATH=/usr/bin:/bin", "HOME=/workspace"],
            "cwd": "/workspace",
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": none, "effective": none, "permitted": none, "inheritable": none, "ambient": none,
            },
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            tmpfs("/dev", &["nosuid", "mode=755", "size=64k"]),
            tmpfs("/tmp", &["nosuid", "nodev", "size=64m"]),
            tmpfs("/workspace", &["nosuid", "nodev", "size=64m"]),
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro", "nosuid", "nodev"] },
        ],
        "linux": {
            "namespaces": namespaces,
            "resources": {
                "memory": { "limit": MEMORY },
                "pids": { "limit": PROCESSES },
                "devices": [{ "allow": false, "access": "rwm" }],
            },
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/sysrq-trigger", "/proc/timer_list"],
            "readonlyPaths": ["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_mounts_programs_read_only_without_privileges() {
        let config = config(Workload::Python, Path::new("/stage/root"));
        assert_eq!(config["process"]["args"][4], "print(1)");
        assert_eq!(config["process"]["capabilities"]["bounding"], json!([]));
        assert_eq!(config["root"], json!({ "path": "/stage/root", "readonly": true }));
        let mounts = config["mounts"].as_array().unwrap();
        let binds: Vec<&Value> = mounts.iter().filter(|mount| mount["type"] == "bind").collect();
        assert_eq!(binds.len(), 1);
        assert!(binds[0]["options"].as_array().unwrap().contains(&json!("ro")));
    }

    #[test]
    fn a_root_has_the_links_of_this_host() {
        let dir = tempfile::tempdir().unwrap();
        make_root(dir.path()).unwrap();
        assert!(dir.path().join("usr").is_dir());
        assert_eq!(fs::read_link(dir.path().join("bin")).ok(), fs::read_link("/bin").ok());
    }
}
