//! Benchmarks that compare Cofferdam with alternatives in one run, because absolute times vary by hour and by host.
//!
//! `cargo xtask bench` builds and starts the program. It asserts nothing about time or size. `docs/performance.md` has the
//! results.
//!
//! # Where to look
//!
//! - One directory or file for each benchmark, such as `spawn/mod.rs`, `memory.rs`, `vm/mod.rs`.
//! - Rounds and their order: `rounds.rs`. Targets: `target.rs`.
#![forbid(unsafe_code)]

mod census;
mod code;
mod container;
mod host;
mod leak;
mod memory;
mod neighbours;
mod net;
mod options;
mod plot;
mod plugins;
mod process_backend;
mod program;
mod results;
mod rounds;
mod sample;
mod server;
mod spawn;
mod target;
mod trend;
mod vm;
mod wasm;
mod workspace;

use anyhow::Result;
use clap::Parser;

use options::{Benchmark, Options};

fn main() -> Result<()> {
    let options = Options::parse();
    host::raise_descriptor_limit();
    match options.benchmark {
        Benchmark::Spawn(spawn) => spawn::run(&spawn, &options.out),
        Benchmark::Memory(memory) => memory::run(&memory, &options.out),
        Benchmark::Leak(leak) => leak::run(&leak, &options.out),
        Benchmark::Neighbours(neighbours) => neighbours::run(&neighbours, &options.out),
        Benchmark::Wasm(wasm) => wasm::run(&wasm, &options.out),
        Benchmark::Container(container) => container::run(&container, &options.out),
        Benchmark::Vm(vm) => vm::run(&vm, &options.out),
        Benchmark::Code(code) => code::run(&code, &options.out),
        Benchmark::Net(net) => net::run(&net, &options.out),
        Benchmark::Workspace(workspace) => workspace::run(&workspace, &options.out),
        Benchmark::Plugins(plugins) => plugins::run(&plugins, &options.out),
        Benchmark::Server(server) => server::run(&server, &options.out),
    }
}
