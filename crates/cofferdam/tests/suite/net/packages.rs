//! Real package managers in process sandboxes, against package indexes that are served locally under the names of the
//! presets.

use std::path::Path;
use std::process::Command;

use super::{Place, USERS, outcome};

/// The text that is in each package.
const TEXT: &str = "the package came through the gateway";

/// A place whose servers have a package of each kind.
fn place(test: &str) -> Option<Place> {
    let place = Place::new(test)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/net/packages.py");
    let (status, _, stderr) = outcome(Command::new("python3").arg(script).arg(place.directory.path().join("served")));
    assert_eq!(status, 0, "{stderr}");
    Some(place)
}

/// Checks that lines of shell get the package with the preset, and not without it. Skips a client that the sandbox does
/// not have.
fn check(place: &Place, test: &str, client: &str, preset: &str, script: &str) {
    let run = |user: &str, policy: &str, script: &str| {
        let script = format!("export HOME=/tmp PATH=/workspace/bin:$PATH; cd /tmp; {script}");
        outcome(place.command(user, &["--net", policy]).args(["--", "sh", "-c", &script]))
    };
    let (status, _, stderr) = run("0", "web.example:80", client);
    if status != 0 {
        println!("SKIP {test}: the sandbox has no such client: {stderr}");
        return;
    }
    for user in USERS {
        let (status, stdout, stderr) = run(user, preset, script);
        assert!(status == 0 && stdout.contains(TEXT), "{user} {test}: {status} {stdout} {stderr}");
        assert!(!stderr.contains("cofferdam: network: refused"), "{test}: {stderr}");
    }
    let (status, stdout, stderr) = run("0", "web.example:443", script);
    assert!(status != 0 && !stdout.contains(TEXT), "{test} without the preset: {status} {stdout} {stderr}");
    assert!(stderr.contains("cofferdam: network: refused the look-up of "), "{test}: {stderr}");
}

/// Promise (Network): `pip install` works with the preset, and not without it.
#[test]
fn pip_installs_with_the_preset() {
    let test = "pip_installs_with_the_preset";
    let Some(place) = place(test) else { return };
    let script = "export PIP_CERT=/workspace/certificate.pem PIP_DISABLE_PIP_VERSION_CHECK=1\n\
                  python3 -m pip install --quiet --retries 0 --root-user-action ignore --target out cofferdam-demo && \
                  PYTHONPATH=out python3 -c 'import cofferdam_demo; print(cofferdam_demo.TEXT)'";
    check(&place, test, "python3 -m pip --version", "@python-packages", script);
}

/// Promise (Network): `npm install` works with the preset, and not without it.
#[test]
fn npm_installs_with_the_preset() {
    let test = "npm_installs_with_the_preset";
    let Some(place) = place(test) else { return };
    let script = "export NODE_EXTRA_CA_CERTS=/workspace/certificate.pem\n\
                  npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 --prefix out cofferdam-demo \
                  && \
                  NODE_PATH=out/node_modules node -p 'require(\"cofferdam-demo\")'";
    check(&place, test, "npm --version", "@node-packages", script);
}

/// Promise (Network): `cargo fetch` works with the preset, and not without it.
#[test]
fn cargo_fetches_with_the_preset() {
    let test = "cargo_fetches_with_the_preset";
    let Some(place) = place(test) else { return };
    // A toolchain in a home directory is not visible in a sandbox, so its programs go to the workspace.
    let (status, sysroot, _) = outcome(Command::new("rustc").args(["--print", "sysroot"]));
    let sysroot = Path::new(sysroot.trim());
    if status != 0 || !sysroot.join("bin/cargo").is_file() {
        return println!("SKIP {test}: this host has no toolchain of Rust");
    }
    for directory in ["bin", "lib"] {
        std::fs::create_dir(place.files().join(directory)).expect("a directory");
    }
    let libraries = std::fs::read_dir(sysroot.join("lib")).expect("libraries").flatten().map(|entry| entry.path());
    let programs = ["bin/cargo", "bin/rustc"].map(|name| sysroot.join(name));
    for from in libraries.filter(|path| path.is_file()).chain(programs) {
        let to = place.files().join(from.strip_prefix(sysroot).expect("below the root"));
        let linked = std::fs::hard_link(&from, &to).or_else(|_| std::fs::copy(&from, &to).map(drop));
        linked.expect("a file of the toolchain");
    }
    let script = "export CARGO_HTTP_CAINFO=/workspace/certificate.pem CARGO_HOME=/tmp/cargo CARGO_NET_RETRY=0\n\
                  mkdir -p demo/src; cd demo; : > src/lib.rs\n\
                  printf '[package]\\nname = \"x\"\\nedition = \"2021\"\\n[dependencies]\\ncofferdam-demo = \"1\"\\n' \
                  > Cargo.toml\n\
                  cargo fetch && cat /tmp/cargo/registry/src/*/cofferdam-demo-1.0.0/src/lib.rs";
    check(&place, test, "cargo --version && rustc --version", "@rust-packages", script);
}

/// Promise (Network): `apt-get download` works with the preset, and not without it.
#[test]
fn apt_downloads_with_the_preset() {
    let test = "apt_downloads_with_the_preset";
    let Some(place) = place(test) else { return };
    if !place.directory.path().join("served/deb.debian.org").exists() {
        return println!("SKIP {test}: this host has no dpkg-deb");
    }
    let script = "mkdir -p apt/etc apt/state/lists/partial apt/cache/archives/partial; : > apt/status\n\
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
                  dpkg-deb --fsys-tarfile cofferdam-demo_1.0_all.deb | tar -xO ./usr/share/cofferdam-demo";
    check(&place, test, "apt-get --version", "@debian-packages", script);
}
