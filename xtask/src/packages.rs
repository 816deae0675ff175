//! System packages that tests and benchmarks need, and their installation.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command;

/// A system dependency of tests or benchmarks.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// Its name.
    pub name: &'static str,
    /// Debian's package.
    pub package: &'static str,
    /// The consequence of its absence.
    pub without: &'static str,
    present: fn() -> bool,
}

const QEMU: Need = Need {
    name: "QEMU",
    package: "qemu-system-x86",
    without: "level vm (cofferdam-vm, suite) is tested only up to the VMM, and not measured; version 2 of control groups \
              (cofferdam, suite cgroup_v2::) is tested only if the host uses it",
    present: || command::exists("qemu-system-x86_64"),
};
const MKFS: Need = Need {
    name: "mkfs.ext4",
    package: "e2fsprogs",
    without: "no disk is created for VMs",
    present: || ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().any(|path| Path::new(path).exists()),
};

/// Dependencies of `cargo xtask test`.
pub const FOR_TESTS: &[Need] = &[
    Need {
        name: "gcc",
        package: "gcc",
        without: "the hostile programs (cofferdam, suite hostile::) fail to compile",
        present: || command::exists("gcc"),
    },
    Need {
        name: "a static C library",
        package: "libc6-dev",
        without: "the hostile programs (cofferdam, suite hostile::) fail to link",
        present: static_libc,
    },
    Need {
        name: "python3 in /usr/bin",
        package: "python3",
        without: "conformance cases whose guest is a Python program are skipped, examples/primes.py does not run",
        present: || Path::new("/usr/bin/python3").exists(),
    },
    Need {
        name: "numpy for /usr/bin/python3",
        package: "python3-numpy",
        without: "numpy's random state is not tested to be unique (no_two_forks_share_the_random_state_of_numpy)",
        present: || python_has("numpy"),
    },
    Need {
        name: "matplotlib for /usr/bin/python3",
        package: "python3-matplotlib",
        without: "figures are not tested as results (cofferdam-code, suite execute::)",
        present: || python_has("matplotlib"),
    },
    Need {
        name: "pandas for /usr/bin/python3",
        package: "python3-pandas",
        without: "data frames are not tested as results (cofferdam-code, suite execute::)",
        present: || python_has("pandas"),
    },
    Need {
        name: "debugpy for /usr/bin/python3",
        package: "python3-debugpy",
        without: "a debugger is not attached to plugins in Python (cofferdam, suite plugins::debugging)",
        present: || python_has("debugpy"),
    },
    Need {
        name: "venv for /usr/bin/python3",
        package: "python3-venv",
        without: "cofferdam mcp is not tested with the official Python SDK (cofferdam, mcp), nor the Python wheel",
        present: || python_has("ensurepip"),
    },
    Need {
        name: "Node",
        package: "nodejs",
        without: "JavaScript is not tested outside of WebAssembly",
        present: || command::exists("node"),
    },
    Need {
        name: "Chromium",
        package: "chromium",
        without: "the dashboard is not tested in a browser (cofferdam-server, suite dashboard::)",
        present: || command::exists("chromium"),
    },
    Need {
        name: "the Docker engine",
        package: "docker.io",
        without: "level container (cofferdam-container, suite) is tested only up to the engine",
        present: || command::exists("dockerd"),
    },
    Need {
        name: "ip",
        package: "iproute2",
        without: "no container engine is started for tests",
        present: || command::exists("ip"),
    },
    Need {
        name: "openssl",
        package: "openssl",
        without: "network policies are not tested",
        present: || command::exists("openssl"),
    },
    Need {
        name: "Podman",
        package: "podman",
        without: "level container is not tested with Podman",
        present: || command::exists("podman"),
    },
    Need {
        name: "crun",
        package: "crun",
        without: "level container is not tested with the runtime crun",
        present: || command::exists("crun"),
    },
    Need {
        name: "gVisor's runsc",
        package: "runsc",
        without: "level container is not tested with the runtime runsc",
        present: || command::exists("runsc"),
    },
    Need {
        name: "an image registry",
        package: "docker-registry",
        without: "pulling images is not tested",
        present: || command::exists("docker-registry"),
    },
    QEMU,
    MKFS,
];

/// Dependencies of `cargo xtask bench`. Other peers are measured if they are installed.
pub const FOR_BENCHMARKS: &[Need] = &[
    Need {
        name: "bubblewrap",
        package: "bubblewrap",
        without: "the comparison with bwrap is left out",
        present: || command::exists("bwrap"),
    },
    Need {
        name: "busybox",
        package: "busybox-static",
        without: "the comparison of images with docker run is left out",
        present: || command::exists("busybox"),
    },
];

/// Dependencies of `cargo xtask bench vm`.
pub const FOR_VMS: &[Need] = &[QEMU, MKFS];

fn python_has(module: &str) -> bool {
    let status =
        Command::new("/usr/bin/python3").args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn static_libc() -> bool {
    let Ok(output) = Command::new("gcc").arg("-print-file-name=libc.a").output() else { return false };
    Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_absolute()
}

/// Installs missing packages if possible. Otherwise prints the command that installs them, and the tests that are
/// affected.
pub fn ensure(needs: &[Need]) {
    let missing: Vec<Need> = needs.iter().copied().filter(|need| !(need.present)()).collect();
    if missing.is_empty() {
        return;
    }
    if command::is_root() && command::exists("apt-get") {
        install(&missing);
    }
    let missing: Vec<Need> = missing.into_iter().filter(|need| !(need.present)()).collect();
    if missing.is_empty() {
        return;
    }
    let names: Vec<&str> = missing.iter().map(|need| need.package).collect();
    println!("missing; on Debian and Ubuntu, install them with:\n\n    sudo apt-get install -y {}\n", names.join(" "));
    for need in missing {
        println!("SKIP without {}: {}", need.name, need.without);
    }
}

/// Installs packages. A failure is not fatal: the caller reports what is still missing.
fn install(missing: &[Need]) {
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").arg("-q");
        apt
    };
    let packages = missing.iter().map(|need| need.package);
    let _ = command::step("apt-get update", apt().arg("update"));
    let install = || {
        let mut apt = apt();
        apt.args(["install", "-y", "--no-install-recommends"]);
        apt
    };
    if command::step("apt-get install", install().args(packages.clone())).is_err() {
        // A package that this system lacks must not prevent the others.
        for package in packages {
            let _ = command::step(&format!("apt-get install {package}"), install().arg(package));
        }
    }
}
