//! Builds the program for installation and creates the packages that users install.
//!
//! The whole program is optimised. If the toolchain supports it, the program is linked statically: it starts faster and
//! runs on any Linux of its architecture.

mod elf;
mod formats;
mod sbom;
mod sdk;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::repository::Repository;
use crate::temporary_directory::Temporary;
use crate::test::build::build_binary;
use elf::{Libc, Program};
use formats::Contents;
use sdk::Sdks;
use tree::run_tool;

pub use formats::Compression;
pub use tree::missing_tool;

/// The program's name.
const PROGRAM: &str = "cofferdam";
/// The default time of all files in packages, without `SOURCE_DATE_EPOCH`: 1980, the first year that a wheel can store.
const EPOCH: u64 = 315_532_800;

/// The packages of one program.
#[derive(Debug)]
pub struct Packages {
    /// The version of the program.
    pub version: String,
    /// The tarball.
    pub tarball: PathBuf,
    /// The Debian package.
    pub deb: PathBuf,
    /// The Python wheel.
    pub wheel: PathBuf,
    /// The npm package.
    pub npm: PathBuf,
    /// The packages of the SDKs for plugins.
    pub sdks: Sdks,
    /// The bill of materials.
    pub sbom: PathBuf,
    /// The checksums of all others.
    pub checksums: PathBuf,
}

impl Packages {
    /// Returns every file.
    pub fn files(&self) -> [&Path; 9] {
        let Sdks { wheel, npm, krate } = &self.sdks;
        [&self.tarball, &self.deb, &self.wheel, &self.npm, wheel, npm, krate, &self.sbom, &self.checksums]
    }
}

/// Runs `cargo xtask dist [--binary PATH] [--out DIR]`.
pub fn run(repository: &Repository, options: &[&str]) -> Result<()> {
    let (mut binary, mut out) = (None, repository.root().join("target/dist"));
    for option in options.chunks(2) {
        match *option {
            ["--binary", path] => binary = Some(std::path::absolute(path)?),
            ["--out", path] => out = std::path::absolute(path)?,
            _ => bail!("unknown option '{}'; the options are --binary PATH and --out DIR", option.join(" ")),
        }
    }
    // Report a missing tool before the build, which takes minutes.
    if let Some(missing) = missing_tool() {
        bail!("cannot create packages: {missing}");
    }
    let binary = match binary {
        Some(binary) => binary,
        None => build(repository)?,
    };
    println!("== package {}", binary.display());
    let packages = package(repository, &binary, &out, Compression::Best)?;
    for file in packages.files() {
        println!("{}", file.display());
    }
    Ok(())
}

/// Creates all packages of a program in a directory.
pub fn package(repository: &Repository, binary: &Path, out: &Path, compression: Compression) -> Result<Packages> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let contents = contents(repository, binary, compression)?;
    let stage = Temporary::create(out, ".stage-", 0o755)?;
    let tarball = formats::tarball(&contents, stage.path(), out)?;
    let deb = formats::deb(&contents, stage.path(), out)?;
    let wheel = formats::wheel(&contents, stage.path(), out)?;
    let npm = formats::npm(&contents, stage.path(), out)?;
    let sdks = sdk::pack(repository, &contents, stage.path(), out)?;
    let Contents { name, version, license, program, .. } = contents;
    let libc = if program.libc == Libc::Static { "musl" } else { "gnu" };
    let target = format!("{}-unknown-linux-{libc}", program.architecture.name);
    let sbom = out.join(format!("{name}-{version}.cdx.json"));
    let document = sbom::make(repository, &name, &target, &sdk::components(&version, &license))?;
    std::fs::write(&sbom, format!("{document:#}\n"))?;
    let Sdks { wheel: sdk_wheel, npm: sdk_npm, krate } = &sdks;
    let checksums = formats::checksums(out, &[&tarball, &deb, &wheel, &npm, sdk_wheel, sdk_npm, krate, &sbom])?;
    Ok(Packages { version, tarball, deb, wheel, npm, sdks, sbom, checksums })
}

fn contents(repository: &Repository, binary: &Path, compression: Compression) -> Result<Contents> {
    let program = Program::read(binary)?;
    let package = repository.packages()?.into_iter().find(|package| package["name"] == PROGRAM);
    let package = package.with_context(|| format!("the workspace has no package '{PROGRAM}'"))?;
    let field = |name: &str| {
        let field = package[name].as_str().map(str::to_owned);
        field.with_context(|| format!("the package '{PROGRAM}' has no {name}"))
    };
    let version = field("version")?;
    // Debian and Python have their own forms of pre-release versions.
    let is_release = version.split('.').all(|part| part.parse::<u64>().is_ok());
    ensure!(is_release, "cannot package the pre-release {version}: packages have plain versions such as 1.2.3");
    let ask = |arguments: &[&str]| {
        let mut program = Command::new(binary);
        // The user's configuration must not affect the answer.
        run_tool(&binary.display().to_string(), program.args(arguments).env_clear())
    };
    let own = ask(&["--version"])?;
    ensure!(
        own.trim_end() == format!("{PROGRAM} {version}"),
        "{} is '{}', the sources are version {version}; build it again",
        binary.display(),
        own.trim_end()
    );
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch.parse().context("SOURCE_DATE_EPOCH is not a number of seconds")?,
        Err(_) => EPOCH,
    };
    let completions = |shell| ask(&["completions", shell]);
    Ok(Contents {
        name: PROGRAM.to_owned(),
        version,
        description: field("description")?,
        license: field("license")?,
        binary: binary.to_owned(),
        program,
        completions: [completions("bash")?, completions("zsh")?, completions("fish")?],
        license_text: repository.read("LICENSE")?,
        readme: repository.read("README.md")?,
        pages: pages(repository)?,
        epoch,
        compression,
    })
}

/// Returns the names and texts of the pages below `docs`, without the decision records.
fn pages(repository: &Repository) -> Result<Vec<(String, String)>> {
    let files = repository.files()?.into_iter();
    let pages =
        files.filter(|file| file.parent() == Some(Path::new("docs")) && file.extension() == Some("md".as_ref()));
    let read = |file: PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, repository.read(&file)?))
    };
    pages.map(read).collect()
}

/// Builds the program and returns its path.
pub fn build(repository: &Repository) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut cargo = repository.cargo();
    cargo.args(["build", "--quiet", "--profile", "dist", "--package", PROGRAM, "--features", "full"]);
    if can_build_for(&target) {
        println!("== build the command line for {target}");
        cargo.args(["--target", &target]);
    } else {
        println!(
            "== build the command line for this system; `rustup target add {target}` enables a build that starts faster"
        );
    }
    as_installed(&build_binary(cargo, PROGRAM)?)
}

/// Copies a program, as an installation does. Linkers write a file in random order, and the kernel caches it in small
/// pages. Until the file is read from the disk again, the program starts up to a third slower.
fn as_installed(program: &Path) -> Result<PathBuf> {
    let directory = program.with_file_name("installed");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let (copy, new) = (directory.join(PROGRAM), directory.join("new"));
    // A running program cannot be overwritten.
    std::fs::copy(program, &new).with_context(|| format!("cannot copy to {}", new.display()))?;
    std::fs::rename(&new, &copy).with_context(|| format!("cannot rename to {}", copy.display()))?;
    Ok(copy)
}

/// Returns true if the toolchain has the standard library for a target.
pub fn can_build_for(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    let directory = output.ok().filter(|output| output.status.success());
    let directory = directory.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    directory.is_some_and(|path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()))
}
