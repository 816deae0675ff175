//! The repository's own tasks: building, testing and checking the workspace. They are not part of the product, and no
//! crate of the product depends on this one.
//!
//! # Where to look
//!
//! - Tests: `test/mod.rs`. Objects that they left behind: `census.rs`.
//! - Project rules, one file each: `tidy/mod.rs`. Dependencies between crates: `tidy/layers.rs`.
//! - SPECIFICATION.md: `spec.rs`. Links and the book: `docs.rs`.
//! - Pages of the server: `dashboard.rs`. Packages: `dist/mod.rs`. Benchmarks: `bench.rs`. Fuzzing: `fuzz.rs`.
#![forbid(unsafe_code)]

mod bench;
mod build_time;
mod census;
mod check;
mod command;
mod dashboard;
mod dist;
mod docs;
mod engines;
mod fuzz;
mod nodes;
mod packages;
mod repository;
mod spec;
mod temporary_directory;
mod test;
mod tidy;
mod tools;
mod wasi;

use std::process::ExitCode;

use anyhow::{Result, bail};

use repository::Repository;

const USAGE: &str = "\
cargo xtask test [FILTER]                     run all tests; as root also as an ordinary user
cargo xtask test --fast                       run unit tests, process sandboxes and the command line, as this user
cargo xtask build-time [--default]            measure a first build and its slowest crates
cargo xtask engines COMMAND [ARGS]...         start container engines, run a command that uses them, stop them
cargo xtask tools                             install the clients, libraries and checkers of the tests, for manual tests
cargo xtask check                             run fmt, clippy, tidy, docs, test, doc and deny
cargo xtask dist [--binary PATH] [--out DIR]  build the program and its packages, or package an existing program
cargo xtask tidy                              check project rules that no other tool checks
cargo xtask spec [--check]                    write SPECIFICATION.md from the tests, or compare it
cargo xtask dashboard [--check]               build the pages of the server's dashboard, or compare them
cargo xtask docs                              check links and the table of contents, and build the book
cargo xtask bench spawn [--quick] [--n N]     compare with an unsandboxed start and with other sandboxes
cargo xtask bench memory | leak | neighbours  measure idle sandboxes, leaks and noisy neighbours
cargo xtask bench wasm [--quick]              compare WebAssembly runs with other runtimes
cargo xtask bench container [--quick]         compare containers with the engine's own command line
cargo xtask bench vm [--quick] [--docker]     compare VMs with plain QEMU and docker run
cargo xtask bench code [--quick] [--docker] [--vm]  compare each isolation level with the bare interpreter
cargo xtask bench net [--quick]               compare the network of sandboxes with a direct one
cargo xtask bench plugins [--quick]           compare plugins with bare pipes and gRPC
cargo xtask bench server [--quick]            compare a server under load with the library
cargo xtask bench workspace [--quick]         compare copy-on-write workspaces with empty ones and with bare programs
cargo xtask bench NAME --help                 print the options of a benchmark
cargo xtask fuzz TARGET [--seconds N] [--seed S] [--cases N]
                                              run untrusted input and check the invariants; the targets are module,
                                              screen, snapshot, archive, network, plugin, package, changes and layer
cargo xtask wasi-testsuite DIR [--json]       run a checkout of the public WASI test suite on level wasm";

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
        ["tools"] => tools::run(&repository),
        ["test", filter] if !filter.starts_with('-') => test::run(&repository, Some(filter)),
        ["engines", program, arguments @ ..] => engines::run(program, arguments),
        ["check"] => check::run(&repository),
        ["dist", options @ ..] => dist::run(&repository, options),
        ["tidy"] => tidy::run(&repository),
        ["spec"] => spec::run(&repository, false),
        ["spec", "--check"] => spec::run(&repository, true),
        ["dashboard"] => dashboard::run(&repository, false),
        ["dashboard", "--check"] => dashboard::run(&repository, true),
        ["docs"] => docs::run(&repository),
        [
            "bench",
            name @ ("spawn" | "memory" | "leak" | "neighbours" | "wasm" | "container" | "vm" | "code" | "net"
            | "plugins" | "server" | "workspace"),
            options @ ..,
        ] => bench::run(&repository, name, options),
        [
            "fuzz",
            target @ ("module" | "screen" | "snapshot" | "archive" | "network" | "plugin" | "package" | "changes"
            | "layer"),
            options @ ..,
        ] => fuzz::run(&repository, target, options),
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
