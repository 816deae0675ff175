//! Tests that package the tested program, install each package into a temporary directory, and run it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::build::Built;
use super::outcome::Outcome;
use super::user::User;
use crate::command::{exists, is_root, wait_until};
use crate::dist::{self, Compression, Packages};
use crate::repository::Repository;
use crate::temporary_directory::Temporary;

/// Prefix of these tests' output lines.
const NAME: &str = "xtask installs";
/// Maximum time of one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);
/// Environment variables that would change the behaviour of an installed program.
const SETTINGS: &[&str] = &["COFFERDAM_CONFIG", "COFFERDAM_USE_SERVER", "SANDBOX_TYPE", "SANDBOX_TIMEOUT_SEC"];
/// A script that compares every file of a wheel with its row in RECORD.
const CHECK_RECORD: &str = "
import base64, csv, hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
record = next(name for name in wheel.namelist() if name.endswith('.dist-info/RECORD'))
rows = {name: row for name, *row in csv.reader(wheel.read(record).decode().splitlines())}
assert sorted(rows) == sorted(wheel.namelist()), rows
assert rows.pop(record) == ['', ''], 'RECORD has a hash of itself'
for name, row in rows.items():
    data = wheel.read(name)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
    assert row == ['sha256=' + digest, str(len(data))], name
";
const TESTS: &[(&str, Test)] = &[
    ("package_checksums_match", checksums),
    ("package_tarball_runs", tarball),
    ("package_deb_runs", deb),
    ("package_wheel_runs", wheel),
    ("package_npm_runs", npm),
    ("package_sdk_wheel_is_imported", sdk_wheel),
    ("package_sdk_npm_is_required", sdk_npm),
    ("package_sdk_crate_has_its_sources", sdk_crate),
];

type Test = fn(&Packages, &Fixture<'_>) -> Result<Verdict>;

/// The result of a test that found no error.
enum Verdict {
    Passed,
    Skipped(&'static str),
}

/// The packages under test, and the selected tests.
pub struct Installs<'a> {
    sources: &'a Repository,
    built: &'a Built,
    tests: Vec<(&'static str, Test)>,
    /// Created when the first user's tests begin, while other tests run.
    setup: OnceLock<Result<InstallSetup, Outcome>>,
}

/// Packages, and the directory that contains them.
struct InstallSetup {
    packages: Packages,
    _directory: Temporary,
}

impl<'a> Installs<'a> {
    /// Selects the tests whose name contains `filter`.
    pub fn new(sources: &'a Repository, built: &'a Built, filter: Option<&str>) -> Self {
        let wanted = |(name, _): &&(&str, Test)| filter.is_none_or(|filter| name.contains(filter));
        let tests = TESTS.iter().filter(wanted).copied().collect();
        Self { sources, built, tests, setup: OnceLock::new() }
    }

    /// Packages the tested program, if there are tests.
    fn make(&self) -> Result<InstallSetup, Outcome> {
        match dist::missing_tool() {
            _ if self.tests.is_empty() => Err(Outcome::default()),
            Some(missing) => {
                Err(Outcome { skips: vec![format!("SKIP {NAME}: no packages: {missing}")], ..Outcome::default() })
            }
            None => InstallSetup::make(self.sources, self.built).map_err(|error| {
                println!("   {NAME}: cannot create packages: {error:#}");
                Outcome { failures: vec![format!("{NAME}: packages cannot be created")], ..Outcome::default() }
            }),
        }
    }

    /// Installs and runs each package as this user.
    pub fn run(&self, user: &User) -> Result<Outcome> {
        let start = Instant::now();
        let outcome = match self.setup.get_or_init(|| self.make()) {
            Ok(setup) => self.run_tests(&setup.packages, user)?,
            Err(outcome) => outcome.clone(),
        };
        if outcome.ran() {
            println!("   {NAME}: {}, {:.0} s", outcome.line(), start.elapsed().as_secs_f64());
        }
        for (skip, _) in outcome.distinct_skips() {
            println!("      {skip}");
        }
        Ok(outcome)
    }

    fn run_tests(&self, packages: &Packages, user: &User) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for (name, test) in &self.tests {
            let fixture = Fixture { user, directory: user.directory("xtask-install-")? };
            match test(packages, &fixture) {
                Ok(Verdict::Passed) => outcome.passed += 1,
                Ok(Verdict::Skipped(reason)) => outcome.skips.push(format!("SKIP {NAME}: {name}: {reason}")),
                Err(error) => {
                    println!("{NAME}: {name}: {error:#}");
                    outcome.failures.push(format!("{NAME}: {name}"));
                }
            }
        }
        Ok(outcome)
    }
}

impl InstallSetup {
    fn make(sources: &Repository, built: &Built) -> Result<Self> {
        let found = built.binaries.iter().find(|(name, _)| name == "cofferdam");
        let (_, program) = found.context("cargo built no cofferdam")?;
        println!("== create packages of {}", program.display());
        let directory = Temporary::create(&built.target, "packages-", 0o755)?;
        Ok(Self { packages: Self::package(sources, program, directory.path())?, _directory: directory })
    }

    /// Packages the program without its debug information, which is most of a debug build.
    fn package(sources: &Repository, program: &Path, directory: &Path) -> Result<Packages> {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        let small = directory.join("cofferdam");
        let strip = Command::new("strip").arg("-o").arg(&small).arg(program).stdin(Stdio::null()).status();
        let program = if strip.is_ok_and(|status| status.success()) { &small } else { program };
        let packages = dist::package(sources, program, &directory.join("dist"), Compression::Fast)?;
        fs::set_permissions(directory.join("dist"), fs::Permissions::from_mode(0o755))?;
        for file in packages.files() {
            fs::set_permissions(file, fs::Permissions::from_mode(0o644))?;
        }
        Ok(packages)
    }
}

/// A user, and a new directory of this user for one test.
struct Fixture<'a> {
    user: &'a User,
    directory: Temporary,
}

impl Fixture<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a directory of this user.
    fn create(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        self.output(self.command("mkdir").arg(&path))?;
        Ok(path)
    }

    /// Returns a command that keeps its files in the directory.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.user.command(program.as_ref());
        command.current_dir(self.directory.path()).env("HOME", self.directory.path());
        for name in SETTINGS {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command and returns its output. The output goes to a file, because a leftover process would keep a pipe
    /// open.
    fn output(&self, command: &mut Command) -> Result<String> {
        // The first argument is an option of env.
        let words: Vec<_> = command.get_args().skip(1).map(|word| word.to_string_lossy()).collect();
        let name = words.join(" ");
        let (out, err) = (self.user.log()?, self.user.log()?);
        command.stdin(Stdio::null()).stdout(out.writer()?).stderr(err.writer()?);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let status = wait_until(&mut child, NAME, COMMAND_TIMEOUT)?.status;
        let (out, err) = (out.read()?, err.read()?);
        match status {
            Some(status) if status.success() => Ok(out),
            Some(status) => bail!("{name}: {status}\n{out}{err}"),
            None => bail!("{name}: killed after {} s\n{out}{err}", COMMAND_TIMEOUT.as_secs()),
        }
    }

    /// Checks a program's version, and that it can run a sandbox.
    fn check(&self, packages: &Packages, program: &Path) -> Result<Verdict> {
        let version = self.output(self.command(program).arg("--version"))?;
        ensure!(version == format!("cofferdam {}\n", packages.version), "the version is '{}'", version.trim_end());
        let hello = self.output(self.command(program).args(["run", "--", "echo", "hello"]))?;
        ensure!(hello == "hello\n", "the sandbox printed '{}'", hello.trim_end());
        Ok(Verdict::Passed)
    }
}

fn checksums(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    let directory = packages.checksums.parent().context("the checksums are in no directory")?;
    let mut check = fixture.command("sha256sum");
    let printed = fixture.output(check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(directory))?;
    let good = printed.lines().filter(|line| line.ends_with(": OK")).count();
    ensure!(good == packages.files().len() - 1, "not every file has a checksum:\n{printed}");
    Ok(Verdict::Passed)
}

fn tarball(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    fixture.output(fixture.command("tar").arg("--extract").arg("--file").arg(&packages.tarball))?;
    let top = packages.tarball.file_name().and_then(|name| name.to_str()?.strip_suffix(".tar.gz"));
    let top = fixture.path(top.context("the tarball has another name")?);
    for file in
        ["LICENSE", "README.md", "completions/cofferdam.bash", "completions/_cofferdam", "completions/cofferdam.fish"]
    {
        ensure!(top.join(file).metadata().is_ok_and(|meta| meta.len() > 0), "{file} is missing");
    }
    fixture.check(packages, &top.join("cofferdam"))
}

/// Installs with dpkg into a directory and a database of its own. Requires root. Other users unpack the package.
fn deb(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    let root = fixture.create("root")?;
    if fixture.user.is_current() && is_root() {
        if !exists("dpkg") {
            return Ok(Verdict::Skipped("dpkg is not installed"));
        }
        // A dependency counts as installed if the host has it.
        let control = fixture.output(fixture.command("dpkg-deb").arg("--field").arg(&packages.deb).arg("Depends"))?;
        let depends = control.trim().split(',').filter_map(|package| package.split_whitespace().next());
        let database = fixture.create("database")?;
        for directory in ["info", "updates", "triggers"] {
            fixture.create(&format!("database/{directory}"))?;
        }
        let mut status = String::new();
        for package in depends {
            status += &fixture.output(fixture.command("dpkg-query").args(["--status", package]))?;
            status += "\n";
        }
        fs::write(database.join("status"), status)?;
        let mut dpkg = fixture.command("dpkg");
        dpkg.arg("--instdir").arg(&root).arg("--admindir").arg(&database).args(["--log=/dev/null", "--install"]);
        fixture.output(dpkg.arg(&packages.deb).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))?;
        let mut query = fixture.command("dpkg-query");
        query.arg("--admindir").arg(&database).args(["--show", "--showformat=${db:Status-Status}", "cofferdam"]);
        let installed = fixture.output(&mut query)?;
        ensure!(installed == "installed", "dpkg reports '{installed}'");
    } else {
        fixture.output(fixture.command("dpkg-deb").arg("--extract").arg(&packages.deb).arg(&root))?;
    }
    check_unit(&root, fixture)?;
    fixture.check(packages, &root.join("usr/bin/cofferdam"))
}

/// Checks the systemd units of the Debian package, if this host has systemd's programs.
fn check_unit(root: &Path, fixture: &Fixture<'_>) -> Result<()> {
    let unit = root.join("usr/lib/systemd/system/cofferdam.service");
    let text = fs::read_to_string(&unit)?;
    ensure!(text.contains("ExecStart=/usr/bin/cofferdam serve"), "the unit starts another program");
    let page = text.lines().find_map(|line| line.strip_prefix("Documentation=file:///"));
    ensure!(page.is_some_and(|page| root.join(page).is_file()), "the package lacks the page that its unit names");
    if !exists("systemd-analyze") {
        return Ok(());
    }
    // It looks for the program where the package puts it.
    let program = root.join("usr/bin/cofferdam");
    let copies = fixture.create("unit")?;
    let [service, socket] = ["cofferdam.service", "cofferdam.socket"].map(|name| copies.join(name));
    fs::write(&service, text.replace("/usr/bin/cofferdam", &program.to_string_lossy()))?;
    fs::copy(root.join("usr/lib/systemd/system/cofferdam.socket"), &socket)?;
    fixture.output(fixture.command("systemd-analyze").args(["verify", "--man=no"]).arg(&service).arg(&socket)).map(drop)
}

/// Installs with pip into an environment of its own. pip does not verify the hashes in RECORD. Other installers do.
fn wheel(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    match environment(fixture, &packages.wheel)? {
        Some(environment) => fixture.check(packages, &environment.join("bin/cofferdam")),
        None => Ok(Verdict::Skipped("/usr/bin/python3 has no venv")),
    }
}

/// Creates an environment with a wheel. Returns `None` if the system's Python cannot do that.
fn environment(fixture: &Fixture<'_>, wheel: &Path) -> Result<Option<PathBuf>> {
    // The first Python in the search path may be in root's home, closed to other users.
    let python = Path::new("/usr/bin/python3");
    if fixture.output(fixture.command(python).args(["-I", "-c", "import ensurepip"])).is_err() {
        return Ok(None);
    }
    fixture.output(fixture.command(python).args(["-I", "-c", CHECK_RECORD]).arg(wheel))?;
    let environment = fixture.path("environment");
    fixture.output(fixture.command(python).args(["-I", "-m", "venv"]).arg(&environment))?;
    let mut pip = fixture.command(environment.join("bin/python"));
    pip.args([
        "-I",
        "-m",
        "pip",
        "--isolated",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "install",
        "--no-index",
    ]);
    fixture.output(pip.arg(wheel))?;
    Ok(Some(environment))
}

fn npm(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    match npm_install(fixture, &packages.npm)? {
        Some(prefix) => fixture.check(packages, &prefix.join("bin/cofferdam")),
        None => Ok(Verdict::Skipped("npm is not installed")),
    }
}

/// Installs an npm package into a directory of its own. Returns `None` without npm.
fn npm_install(fixture: &Fixture<'_>, package: &Path) -> Result<Option<PathBuf>> {
    if fixture.output(fixture.command("npm").arg("--version")).is_err() {
        return Ok(None);
    }
    let prefix = fixture.path("prefix");
    let mut npm = fixture.command("npm");
    npm.args(["install", "--global", "--offline", "--no-audit", "--no-fund", "--no-update-notifier", "--cache"])
        .arg(fixture.path("cache"))
        .arg("--prefix")
        .arg(&prefix);
    fixture.output(npm.arg(package))?;
    Ok(Some(prefix))
}

fn sdk_wheel(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    let Some(environment) = environment(fixture, &packages.sdks.wheel)? else {
        return Ok(Verdict::Skipped("/usr/bin/python3 has no venv"));
    };
    let code = "import cofferdam_plugin, cofferdam_plugin.testing; print(cofferdam_plugin.__version__)";
    let version = fixture.output(fixture.command(environment.join("bin/python")).args(["-I", "-c", code]))?;
    ensure!(version.trim_end() == packages.version, "the version is '{}'", version.trim_end());
    Ok(Verdict::Passed)
}

fn sdk_npm(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    let Some(prefix) = npm_install(fixture, &packages.sdks.npm)? else {
        return Ok(Verdict::Skipped("npm is not installed"));
    };
    let code = "new (require('@cofferdam/plugin/testing').Harness)(require('@cofferdam/plugin').run); \
                console.log(require('@cofferdam/plugin/package.json').version)";
    let mut node = fixture.command("node");
    let version = fixture.output(node.args(["-e", code]).env("NODE_PATH", prefix.join("lib/node_modules")))?;
    ensure!(version.trim_end() == packages.version, "the version is '{}'", version.trim_end());
    Ok(Verdict::Passed)
}

fn sdk_crate(packages: &Packages, fixture: &Fixture<'_>) -> Result<Verdict> {
    fixture.output(fixture.command("tar").arg("--extract").arg("--file").arg(&packages.sdks.krate))?;
    let top = fixture.path(&format!("cofferdam-plugin-sdk-{}", packages.version));
    for file in ["Cargo.toml", "LICENSE", "README.md", "src/lib.rs"] {
        ensure!(top.join(file).metadata().is_ok_and(|meta| meta.len() > 0), "{file} is missing");
    }
    Ok(Verdict::Passed)
}
