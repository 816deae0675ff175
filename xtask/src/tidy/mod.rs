//! Project rules that no other tool checks. Each rule inspects the sources and returns one line for each breach, with
//! the file and the remedy. It changes nothing.

mod documents;
mod language;
mod layers;
mod paths;
mod sources;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::repository::Repository;
use crate::spec;

/// A text file of the sources.
#[derive(Debug, Clone)]
pub struct Source {
    /// The path, relative to the root.
    pub path: PathBuf,
    /// The contents.
    pub text: String,
}

impl Source {
    /// Returns true if the file has this extension.
    pub fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|found| found == extension)
    }
}

/// Checks all rules.
pub fn run(repository: &Repository) -> Result<()> {
    println!("== tidy");
    let packages = repository.packages()?;
    let sources = read(repository)?;
    let mut breaches = layers::check(&packages);
    breaches.extend(sources::check(&sources, repository.root()));
    breaches.extend(sources::roots(&packages, repository)?);
    breaches.extend(spec::check(&sources));
    breaches.extend(documents::check(&sources));
    breaches.extend(paths::check(&sources));
    breaches.extend(language::check(&sources));
    breaches.extend(executable(repository, Path::new(".ci/run")));
    for breach in &breaches {
        println!("   {breach}");
    }
    match breaches.len() {
        0 => {
            println!("   tidy: ok, {} files", sources.len());
            Ok(())
        }
        count => bail!("tidy found {count} breaches"),
    }
}

/// Reads every text file of the sources and skips others.
pub fn read(repository: &Repository) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in repository.files()? {
        let bytes = std::fs::read(repository.root().join(&path))?;
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source { path, text });
        }
    }
    Ok(sources)
}

fn executable(repository: &Repository, file: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let meta = repository.root().join(file).metadata();
    let runs = meta.is_ok_and(|meta| meta.permissions().mode() & 0o100 != 0);
    (!runs).then(|| format!("{}: must exist and be executable (chmod +x)", file.display()))
}
