//! The repository's own tasks. It knows how to build, test and check the workspace; it is no part of the product, and no
//! crate of the product depends on it.
#![forbid(unsafe_code)]

mod bench;
mod build_time;
mod census;
mod check;
mod clients;
mod command;
mod dist;
mod docs;
mod engines;
mod fuzz;
mod nodes;
mod packages;
mod place;
mod repository;
mod test;
mod tidy;
mod wasi;

use std::process::ExitCode;

use anyhow::{Result, bail};

use repository::Repository;

const USAGE: &str = "\
cargo xtask test [FILTER]                     set up what the tests need, run them all, as root also as an ordinary user
cargo xtask test --fast                       unit tests, process sandboxes and the command line, as this user
cargo xtask build-time [--default]            what a first build costs, and which crates
cargo xtask engines COMMAND [ARGS]...         start container engines, run a command that is told of them, stop them
cargo xtask clients                           install what `cofferdam mcp` and TypeScript are tested with, for tests by hand
cargo xtask check                             fmt, clippy, tidy, docs, test, doc and deny: what a change must pass
cargo xtask dist [--binary PATH] [--out DIR]  build the program and make its packages; or package a program that is built
cargo xtask tidy                              the rules of the house that no other tool checks
cargo xtask docs                              check links and the table of contents, and build the book
cargo xtask bench spawn [--quick] [--n N]     compare with no wall and with other sandboxes, in one run
cargo xtask bench memory | churn | hogs       what idle sandboxes cost, what is left behind, what busy neighbours do
cargo xtask bench wasm [--quick]              compare runs of WebAssembly with programs of their own
cargo xtask bench container [--quick]         compare containers with the engine's own command line
cargo xtask bench vm [--quick] [--docker]     compare machines with plain QEMU, and with docker run
cargo xtask bench code [--quick] [--docker] [--vm]  compare code behind each wall with the bare interpreter
cargo xtask bench NAME --help                 more options of a benchmark
cargo xtask fuzz module | screen | snapshot | archive [--seconds N] [--seed S] [--cases N]
                                              run what strangers wrote, and check what must hold for each
cargo xtask wasi-testsuite DIR [--json]       run a checkout of the public WASI test-suite on level wasm";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    let repository = Repository::this();
    match words {
        ["test"] => test::run(&repository, None),
        ["test", "--fast"] => test::run_fast(&repository),
        ["build-time", options @ ..] => build_time::run(&repository, options),
        ["clients"] => clients::run(&repository),
        ["test", filter] if !filter.starts_with('-') => test::run(&repository, Some(filter)),
        ["engines", program, arguments @ ..] => engines::run(program, arguments),
        ["check"] => check::run(&repository),
        ["dist", options @ ..] => dist::run(&repository, options),
        ["tidy"] => tidy::run(&repository),
        ["docs"] => docs::run(&repository),
        [
            "bench",
            name @ ("spawn" | "memory" | "churn" | "hogs" | "wasm" | "container" | "vm" | "code"),
            options @ ..,
        ] => bench::run(&repository, name, options),
        ["fuzz", target @ ("module" | "screen" | "snapshot" | "archive"), options @ ..] => {
            fuzz::run(&repository, target, options)
        }
        ["wasi-testsuite", directory, options @ ..] if options.iter().all(|option| *option == "--json") => {
            wasi::run(&repository, directory, options)
        }
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("unknown task '{}'; the tasks are\n{USAGE}", words.join(" ")),
    }
}
