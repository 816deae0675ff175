//! Real package managers in sandboxes of each level, against package indexes that are served locally under the names of
//! the presets.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Fixture, USERS, outcome};
#[cfg(all(feature = "container", feature = "vm"))]
use crate::cli::{containers, vms};

/// The text that is in each package.
const TEXT: &str = "the package came through the gateway";

/// A package manager.
struct Client {
    name: &'static str,
    /// A command that fails where the client is not installed.
    present: &'static str,
    preset: &'static str,
    /// The name that the client looks up first.
    host: &'static str,
    /// Lines of shell that fetch the package and print its text last.
    script: &'static str,
}

const PIP: Client = Client {
    name: "pip",
    present: "python3 -c 'import pip'",
    preset: "@python-packages",
    host: "pypi.org",
    script: "export PIP_CERT=/workspace/certificate.pem PIP_DISABLE_PIP_VERSION_CHECK=1\n\
             python3 -m pip install --quiet --retries 0 --root-user-action ignore --target out cofferdam-demo && \
             PYTHONPATH=out python3 -c 'import cofferdam_demo; print(cofferdam_demo.TEXT)'",
};
const NPM: Client = Client {
    name: "npm",
    present: "command -v npm",
    preset: "@node-packages",
    host: "registry.npmjs.org",
    script: "export NODE_EXTRA_CA_CERTS=/workspace/certificate.pem\n\
             npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 --prefix out cofferdam-demo && \
             NODE_PATH=out/node_modules node -p 'require(\"cofferdam-demo\")'",
};
const CARGO: Client = Client {
    name: "cargo",
    present: "cargo --version && rustc -vV",
    preset: "@rust-packages",
    host: "index.crates.io",
    script: "export CARGO_HTTP_CAINFO=/workspace/certificate.pem CARGO_HOME=/tmp/cargo CARGO_NET_RETRY=0\n\
             mkdir -p demo/src; cd demo; : > src/lib.rs\n\
             printf '[package]\\nname = \"x\"\\nedition = \"2021\"\\n[dependencies]\\ncofferdam-demo = \"1\"\\n' \
             > Cargo.toml\n\
             cargo fetch && cat /tmp/cargo/registry/src/*/cofferdam-demo-1.0.0/src/lib.rs",
};
const APT: Client = Client {
    name: "apt-get",
    present: "command -v apt-get",
    preset: "@debian-packages",
    host: "deb.debian.org",
    script: "mkdir -p apt/etc apt/state/lists/partial apt/cache/archives/partial; : > apt/status\n\
             echo 'deb [trusted=yes] http://deb.debian.org/debian ./' > apt/sources.list\n\
             cat > apt/apt.conf << 'CONF'\n\
             Dir::Etc \"/tmp/apt/etc\"; Dir::Etc::sourcelist \"/tmp/apt/sources.list\";\n\
             Dir::State \"/tmp/apt/state\";\n\
             Dir::State::status \"/tmp/apt/status\"; Dir::Cache \"/tmp/apt/cache\"; Dir::Log \"/tmp/apt\";\n\
             APT::Sandbox::User \"\"; Acquire::Retries \"0\"; Acquire::Languages \"none\";\n\
             APT::Update::Error-Mode \"any\";\n\
             CONF\n\
             export APT_CONFIG=/tmp/apt/apt.conf\n\
             apt-get update -q && apt-get download -q cofferdam-demo && \
             dpkg-deb --fsys-tarfile cofferdam-demo_1.0_all.deb | tar -xO ./usr/share/cofferdam-demo",
};
#[cfg(all(feature = "container", feature = "vm"))]
const CLIENTS: [Client; 4] = [PIP, NPM, CARGO, APT];

/// A network whose servers have a package of each kind.
fn fixture(test: &str) -> Option<Fixture> {
    let fixture = Fixture::new(test)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/net/packages.py");
    let (status, _, stderr) = outcome(Command::new("python3").arg(script).arg(fixture.directory.path().join("served")));
    assert_eq!(status, 0, "{stderr}");
    Some(fixture)
}

/// Returns lines of shell that run clients. For each, a line `NAME: STATUS TEXT` with the last line of its output is
/// printed, or `NAME: missing`. The whole output is printed on standard error.
fn script(clients: &[Client]) -> String {
    let mut lines = "export HOME=/tmp PATH=/workspace/bin:$PATH; cd /tmp\n".to_owned();
    for Client { name, present, script, .. } in clients {
        write!(
            lines,
            "if ({present}) > /dev/null; then\n\
             (\n{script}\n) > printed 2>&1; echo \"{name}: $? $(tail -n 1 printed)\"; cat printed >&2\n\
             else echo '{name}: missing'; fi\n"
        )
        .expect("a string grows");
    }
    lines
}

/// Checks that clients get their package with their presets, and not without them. `run` runs lines of shell in a sandbox
/// with a policy. Skips a client that the sandbox does not have.
fn check(test: &str, clients: &[Client], run: impl Fn(&str, &str) -> (i32, String, String)) {
    let script = script(clients);
    let result = |output: &(i32, String, String), client: &Client| {
        let found = output.1.lines().find_map(|line| line.strip_prefix(client.name)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("{test} {}: {output:?}", client.name)).to_owned()
    };
    let presets: Vec<_> = clients.iter().map(|client| client.preset).collect();
    let allowed = run(&presets.join(","), &script);
    let (missing, present): (Vec<_>, Vec<_>) = clients.iter().partition(|client| result(&allowed, client) == "missing");
    for client in missing {
        println!("SKIP {test}: the sandbox has no {}", client.name);
    }
    for client in &present {
        let result = result(&allowed, client);
        assert!(result.starts_with("0 ") && result.ends_with(TEXT), "{test} {}: {allowed:?}", client.name);
    }
    assert!(!allowed.2.contains("cofferdam: network: refused"), "{test}: {allowed:?}");
    if present.is_empty() {
        return;
    }
    let denied = run("web.example:443", &script);
    for client in present {
        let result = result(&denied, client);
        assert!(!result.starts_with("0 ") && !result.contains(TEXT), "{test} {} without: {denied:?}", client.name);
        let denial = format!("cofferdam: network: refused the look-up of {}: ", client.host);
        assert!(denied.2.contains(&denial), "{test} {} without: {denied:?}", client.name);
    }
}

/// Checks a client in process sandboxes.
fn check_in_processes(test: &str, fixture: &Fixture, client: Client) {
    let clients = [client];
    for user in USERS {
        check(test, &clients, |policy, script| {
            outcome(fixture.command(user, &["--net", policy]).args(["--", "sh", "-c", script]))
        });
    }
}

/// Returns the directory of the host's toolchain of Rust. One in a home directory is not visible in a sandbox, so its
/// programs go to the workspace.
fn toolchain() -> Option<PathBuf> {
    let (status, sysroot, _) = outcome(Command::new("rustc").args(["--print", "sysroot"]));
    let sysroot = PathBuf::from(sysroot.trim());
    (status == 0 && sysroot.join("bin/cargo").is_file()).then_some(sysroot)
}

/// Adds a file of the toolchain to the workspace.
fn add(fixture: &Fixture, sysroot: &Path, name: &Path) {
    let (from, to) = (sysroot.join(name), fixture.files().join(name));
    std::fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
    let linked = std::fs::hard_link(&from, &to).or_else(|_| std::fs::copy(&from, &to).map(drop));
    linked.expect("a file of the toolchain");
}

/// Adds Cargo and the compiler to the workspace.
fn add_toolchain(fixture: &Fixture, sysroot: &Path) {
    let libraries = std::fs::read_dir(sysroot.join("lib")).expect("libraries").flatten().map(|entry| entry.path());
    for library in libraries.filter(|path| path.is_file()) {
        add(fixture, sysroot, library.strip_prefix(sysroot).expect("below the root"));
    }
    add(fixture, sysroot, Path::new("bin/cargo"));
    add(fixture, sysroot, Path::new("bin/rustc"));
}

/// Promise (Network): `pip install` works with the preset, and not without it.
#[test]
fn pip_installs_with_the_preset() {
    let test = "pip_installs_with_the_preset";
    let Some(fixture) = fixture(test) else { return };
    check_in_processes(test, &fixture, PIP);
}

/// Promise (Network): `npm install` works with the preset, and not without it.
#[test]
fn npm_installs_with_the_preset() {
    let test = "npm_installs_with_the_preset";
    let Some(fixture) = fixture(test) else { return };
    check_in_processes(test, &fixture, NPM);
}

/// Promise (Network): `cargo fetch` works with the preset, and not without it.
#[test]
fn cargo_fetches_with_the_preset() {
    let test = "cargo_fetches_with_the_preset";
    let Some(fixture) = fixture(test) else { return };
    let Some(sysroot) = toolchain() else { return println!("SKIP {test}: this host has no toolchain of Rust") };
    add_toolchain(&fixture, &sysroot);
    check_in_processes(test, &fixture, CARGO);
}

/// Promise (Network): `apt-get download` works with the preset, and not without it.
#[test]
fn apt_downloads_with_the_preset() {
    let test = "apt_downloads_with_the_preset";
    let Some(fixture) = fixture(test) else { return };
    if !fixture.directory.path().join("served/deb.debian.org").exists() {
        return println!("SKIP {test}: this host has no dpkg-deb");
    }
    check_in_processes(test, &fixture, APT);
}

/// Containers and VMs, whose image has the clients. Cargo is that of the host: Debian's may be too old for the index.
#[cfg(all(feature = "container", feature = "vm"))]
mod images {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The name of the images.
    const IMAGE: &str = "package-tests";
    /// The packages of the images besides the usual ones.
    const PACKAGES: [&str; 3] = ["apt", "npm", "python3-pip"];

    /// Builds an image.
    fn build(mut command: Command, words: &[&str]) {
        command.args(words).args(["--name", IMAGE]).args(PACKAGES.iter().flat_map(|name| ["--package", name]));
        let (status, stdout, stderr) = outcome(&mut command);
        assert_eq!(status, 0, "{words:?}: {stdout} {stderr}");
    }

    fn cofferdam() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Adds Cargo to the workspace without the compiler, whose 350 MB take minutes to write into an emulated VM. A script
    /// answers Cargo's questions about the target. It recorded the compiler's answers on this host.
    fn add_cargo(fixture: &Fixture, sysroot: &Path) {
        add(fixture, sysroot, Path::new("bin/cargo"));
        let rustc = fixture.files().join("bin/rustc");
        let script = format!(
            "#!/bin/sh\nanswer=$0-$(printf %s \"$*\" | cksum | cut -d ' ' -f 1)\n\
             [ -e \"$answer\" ] || '{}' \"$@\" > \"$answer\" || exit\ncat \"$answer\"\n",
            sysroot.join("bin/rustc").display()
        );
        std::fs::write(&rustc, script).expect("a script");
        std::fs::set_permissions(&rustc, Permissions::from_mode(0o755)).expect("the mode is set");
        let project = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(project.path().join("src")).expect("a directory");
        std::fs::write(project.path().join("src/lib.rs"), "").expect("a file");
        std::fs::write(project.path().join("Cargo.toml"), "[package]\nname = \"x\"\nedition = \"2021\"\n")
            .expect("a file");
        for words in [&["rustc", "-vV"][..], &["cargo", "fetch"]] {
            let mut command = Command::new(fixture.files().join("bin").join(words[0]));
            command.args(&words[1..]).current_dir(project.path()).env_clear();
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.env("RUSTC", &rustc).env("CARGO_HOME", project.path().join("home"));
            let (status, _, stderr) = outcome(&mut command);
            assert_eq!(status, 0, "{words:?}: {stderr}");
        }
    }

    /// Promise (Network): In a container, `pip install`, `npm install`, `cargo fetch` and `apt-get download` work with
    /// their preset, and not without it.
    #[test]
    fn packages_install_in_a_container() {
        let test = "packages_install_in_a_container";
        let Some(fixture) = fixture(test) else { return };
        let Some(command) = containers::with_engine(vms::with_cache(cofferdam())) else { return };
        build(command, &["image", "build", "--engine"]);
        if let Some(sysroot) = toolchain() {
            add_toolchain(&fixture, &sysroot);
        }
        let workspace = format!("{}:ro", fixture.files().display());
        for client in CLIENTS {
            check(test, &[client], |policy, script| {
                let options = ["--net", policy, "--image", IMAGE, "--workspace", &workspace, "--disk", "none"];
                let mut command = fixture.command_under("docker", &options);
                command.args(["--timeout", "120s", "--", "sh", "-c", script]);
                outcome(&mut containers::with_engine(command).expect("an engine"))
            });
        }
    }

    /// Promise (Network): In a VM, `pip install`, `npm install`, `cargo fetch` and `apt-get download` work with their
    /// presets, and not without them.
    #[test]
    fn packages_install_in_a_vm() {
        let test = "packages_install_in_a_vm";
        let Some(fixture) = fixture(test) else { return };
        let Some(command) = vms::with_vms(cofferdam(), test) else { return };
        build(command, &["vm", "build-image"]);
        if let Some(sysroot) = toolchain() {
            add_cargo(&fixture, &sysroot);
        }
        // A VM has no mounted directory, so the files of the workspace come as an archive on standard input.
        let archive = fixture.directory.path().join("archive.tar");
        let (status, _, stderr) =
            outcome(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(fixture.files()).arg("."));
        assert_eq!(status, 0, "{stderr}");
        // One VM runs all clients, because emulated VMs boot slowly.
        check(test, &CLIENTS, |policy, script| {
            let options = ["--net", policy, "--stdin", "--cpu-time", "300s", "--timeout", "300s"];
            let mut command = fixture.command_under("vm", &options);
            command.args(["--", "sh", "-c", &format!("tar -x --no-same-owner -C /workspace || exit\n{script}")]);
            let mut command = vms::with_vms(command, test).expect("VMs are available");
            outcome(command.env("COFFERDAM_VM_IMAGE", IMAGE).stdin(File::open(&archive).expect("the archive")))
        });
    }
}
