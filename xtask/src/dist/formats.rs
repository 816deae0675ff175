//! The formats of packages. Each function packs one file and returns its path.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;

use super::elf::{Architecture, Libc, Program};
use super::tree::{Tree, run_tool};

/// Packs a directory into a wheel.
const WHEEL_SCRIPT: &str = include_str!("wheel.py");
/// The oldest glibc that has the symbols of manylinux2014.
const MANYLINUX_2014: u32 = 17;
/// A second line about the program, after its description.
const LONGER: &str = "Sandboxes for commands and code: WebAssembly, processes, containers and virtual machines.";
/// The holder of the copyright.
const AUTHORS: &str = "The Cofferdam authors";

/// The effort for small packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Maximum compression, for packages that users download.
    Best,
    /// Minimum compression, for packages that tests discard.
    Fast,
}

impl Compression {
    fn level(self) -> &'static str {
        match self {
            Self::Best => "9",
            Self::Fast => "1",
        }
    }
}

/// The contents of all packages.
#[derive(Debug)]
pub struct Contents {
    /// The name of the program and of its packages.
    pub name: String,
    /// The version.
    pub version: String,
    /// One line about the program.
    pub description: String,
    /// The SPDX expression of its licence.
    pub license: String,
    /// The program's file.
    pub binary: PathBuf,
    /// The systems that run it.
    pub program: Program,
    /// The completion scripts for bash, zsh and fish.
    pub completions: [String; 3],
    /// The text of the licence.
    pub license_text: String,
    /// The text of README.md.
    pub readme: String,
    /// The names and texts of the pages of the documentation.
    pub pages: Vec<(String, String)>,
    /// The time of all files, in seconds since 1970.
    pub epoch: u64,
    /// The compression of all packages.
    pub compression: Compression,
}

/// Packs the tarball: the program, its completion scripts, LICENSE and README.md.
pub fn tarball(contents: &Contents, stage: &Path, out: &Path) -> Result<PathBuf> {
    let Contents { name, version, .. } = contents;
    let top = format!("{name}-{version}-{}-linux", contents.program.architecture.name);
    let tree = Tree::create(stage.join("tarball"))?;
    let [bash, zsh, fish] = &contents.completions;
    tree.program(&format!("{top}/{name}"), &contents.binary)?;
    tree.file(&format!("{top}/LICENSE"), &contents.license_text)?;
    tree.file(&format!("{top}/README.md"), &contents.readme)?;
    tree.file(&format!("{top}/completions/{name}.bash"), bash)?;
    tree.file(&format!("{top}/completions/_{name}"), zsh)?;
    tree.file(&format!("{top}/completions/{name}.fish"), fish)?;
    let file = out.join(format!("{top}.tar.gz"));
    tar(contents, &tree, &top, &file)?;
    Ok(file)
}

/// Packs the npm package, whose command is the program itself.
pub fn npm(contents: &Contents, stage: &Path, out: &Path) -> Result<PathBuf> {
    let Contents { name, version, .. } = contents;
    let tree = Tree::create(stage.join("npm"))?;
    let program = format!("bin/{name}");
    let mut manifest = json!({
        "name": name,
        "version": version,
        "description": contents.description,
        "license": contents.license,
        "bin": { name: program },
        "files": ["bin"],
        "os": ["linux"],
        "cpu": [contents.program.architecture.node],
    });
    if contents.program.libc != Libc::Static {
        manifest["libc"] = json!(["glibc"]);
    }
    tree.file("package/package.json", &format!("{manifest:#}\n"))?;
    tree.file("package/LICENSE", &contents.license_text)?;
    tree.file("package/README.md", &contents.readme)?;
    tree.program(&format!("package/{program}"), &contents.binary)?;
    let file = out.join(format!("{name}-{version}.tgz"));
    tar(contents, &tree, "package", &file)?;
    Ok(file)
}

/// Packs one directory of a tree with tar and gzip, reproducibly.
pub fn tar(contents: &Contents, tree: &Tree, directory: &str, file: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--sort=name", "--owner=root:0", "--group=root:0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", contents.epoch))
        .arg(format!("--use-compress-program=gzip -n -{}", contents.compression.level()))
        .arg("--directory")
        .arg(tree.root())
        .arg("--file")
        .arg(file)
        .arg(directory);
    run_tool("tar", &mut tar).map(drop)
}

/// Packs the Debian package.
pub fn deb(contents: &Contents, stage: &Path, out: &Path) -> Result<PathBuf> {
    let Contents { name, version, description, .. } = contents;
    let architecture = contents.program.architecture.debian;
    let tree = Tree::create(stage.join("deb"))?;
    let [bash, zsh, fish] = &contents.completions;
    tree.program(&format!("usr/bin/{name}"), &contents.binary)?;
    tree.file(&format!("usr/share/bash-completion/completions/{name}"), bash)?;
    tree.file(&format!("usr/share/zsh/vendor-completions/_{name}"), zsh)?;
    tree.file(&format!("usr/share/fish/vendor_completions.d/{name}.fish"), fish)?;
    tree.file(&format!("usr/share/doc/{name}/copyright"), &copyright(contents))?;
    for (page, text) in &contents.pages {
        tree.file(&format!("usr/share/doc/{name}/{page}"), text)?;
    }
    // Not enabled: a package has no installation script.
    tree.file(&format!("usr/lib/systemd/system/{name}.service"), include_str!("../../../packaging/cofferdam.service"))?;
    tree.file(&format!("usr/lib/systemd/system/{name}.socket"), include_str!("../../../packaging/cofferdam.socket"))?;
    let depends = match &contents.program.libc {
        Libc::Static => String::new(),
        Libc::Glibc { minor, others } => {
            let others: String = others.iter().map(|package| format!(", {package}")).collect();
            format!("Depends: libc6 (>= 2.{minor}){others}\n")
        }
    };
    let size = tree.kibibytes()?;
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {AUTHORS}\nInstalled-Size: {size}\n\
         {depends}Section: utils\nPriority: optional\nDescription: {description}\n {LONGER}\n"
    );
    tree.file("DEBIAN/control", &control)?;
    let file = out.join(format!("{name}_{version}_{architecture}.deb"));
    let mut dpkg = Command::new("dpkg-deb");
    match contents.compression {
        Compression::Best => dpkg.arg("-Zxz"),
        Compression::Fast => dpkg.args(["-Zgzip", "-z1"]),
    };
    dpkg.args(["--root-owner-group", "--build"]).arg(tree.root()).arg(&file);
    run_tool("dpkg-deb", dpkg.env("SOURCE_DATE_EPOCH", contents.epoch.to_string()))?;
    Ok(file)
}

/// Returns Debian's file about the copyright. Debian itself has the text of this licence.
fn copyright(contents: &Contents) -> String {
    let (name, license) = (&contents.name, &contents.license);
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: {name}\n\n\
         Files: *\nCopyright: {AUTHORS}\nLicense: {license}\n\n\
         License: {license}\n On Debian systems, the text of this licence is in /usr/share/common-licenses/{license}.\n"
    )
}

/// Packs the Python wheel, which pip unpacks such that the program is a script of the environment.
pub fn wheel(contents: &Contents, stage: &Path, out: &Path) -> Result<PathBuf> {
    let Contents { name, version, description, license, .. } = contents;
    let tree = Tree::create(stage.join("wheel"))?;
    let (base, platforms) = (format!("{name}-{version}"), platforms(&contents.program));
    let info = format!("{base}.dist-info");
    let tags: String = platforms.iter().map(|platform| format!("Tag: py3-none-{platform}\n")).collect();
    tree.program(&format!("{base}.data/scripts/{name}"), &contents.binary)?;
    tree.file(
        &format!("{info}/WHEEL"),
        &format!("Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\n{tags}"),
    )?;
    tree.file(
        &format!("{info}/METADATA"),
        &format!(
            "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {description}\nLicense: {license}\n\
             License-File: LICENSE\nRequires-Python: >=3.7\nDescription-Content-Type: text/markdown\n\n{}",
            contents.readme
        ),
    )?;
    tree.file(&format!("{info}/LICENSE"), &contents.license_text)?;
    let file = out.join(format!("{base}-py3-none-{}.whl", platforms.join(".")));
    pack_wheel(contents, &tree, &file)?;
    Ok(file)
}

/// Packs a tree into a wheel, reproducibly.
pub fn pack_wheel(contents: &Contents, tree: &Tree, file: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    python.args(["-I", "-c", WHEEL_SCRIPT]).arg(tree.root()).arg(file);
    python.args([&contents.epoch.to_string(), contents.compression.level()]);
    run_tool("python3 wheel.py", &mut python).map(drop)
}

/// Returns the platforms that Python knows and that run a program. A static one runs with every C library.
fn platforms(program: &Program) -> Vec<String> {
    let Architecture { name, .. } = program.architecture;
    match program.libc {
        Libc::Static => vec![format!("manylinux2014_{name}"), format!("musllinux_1_1_{name}")],
        Libc::Glibc { minor, .. } if minor <= MANYLINUX_2014 => vec![format!("manylinux2014_{name}")],
        Libc::Glibc { minor, .. } => vec![format!("manylinux_2_{minor}_{name}")],
    }
}

/// Writes `SHA256SUMS` for these files of a directory.
pub fn checksums(out: &Path, files: &[&Path]) -> Result<PathBuf> {
    let mut names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    names.sort_unstable();
    let sums = run_tool("sha256sum", Command::new("sha256sum").arg("--").args(&names).current_dir(out))?;
    ensure!(sums.lines().count() == files.len(), "sha256sum printed no line for each file");
    let file = out.join("SHA256SUMS");
    std::fs::write(&file, sums)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_wheel_serves_every_c_library() {
        let architecture = Architecture { name: "x86_64", debian: "amd64", node: "x64" };
        let platforms = |libc| platforms(&Program { architecture, libc }).join(".");
        let glibc = |minor| Libc::Glibc { minor, others: Vec::new() };
        assert_eq!(platforms(Libc::Static), "manylinux2014_x86_64.musllinux_1_1_x86_64");
        assert_eq!(platforms(glibc(17)), "manylinux2014_x86_64");
        assert_eq!(platforms(glibc(35)), "manylinux_2_35_x86_64");
    }
}
