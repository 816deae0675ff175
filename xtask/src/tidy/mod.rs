//! The rules of the house that no other tool checks. Each rule looks at the sources and returns what breaks it, one line
//! a breach, with the file and the remedy; nothing is changed.

mod documents;
mod layers;
mod paths;
mod sources;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::repository::Repository;

/// A source file that is text.
#[derive(Debug, Clone)]
pub struct Source {
    /// Relative to the root.
    pub path: PathBuf,
    /// The contents.
    pub text: String,
}

impl Source {
    /// Whether the name ends like this.
    pub fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|found| found == extension)
    }
}

/// Checks everything.
pub fn run(repository: &Repository) -> Result<()> {
    println!("== tidy");
    let packages = repository.packages()?;
    let sources = read(repository)?;
    let mut breaches = layers::check(&packages);
    breaches.extend(sources::check(&sources, repository.root()));
    breaches.extend(sources::roots(&packages, repository)?);
    breaches.extend(documents::check(&sources));
    breaches.extend(paths::check(&sources));
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

/// Every source that is text; others are none of tidy's business.
fn read(repository: &Repository) -> Result<Vec<Source>> {
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
