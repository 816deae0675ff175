//! The benchmarks' own command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::code::Lang;
use crate::spawn::{Contestant, Workload};
use crate::wasm::Guest;

/// The fewest runs that a median says anything about.
const FEWEST: u64 = 10;

/// What to measure, and where to write it.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", about = "Benchmarks that compare in one run; nothing asserts a time")]
pub struct Options {
    /// Directory for the files with the results.
    #[arg(long, global = true, overrides_with = "out", default_value = "bench-results")]
    pub out: PathBuf,
    /// Which benchmark.
    #[command(subcommand)]
    pub benchmark: Benchmark,
}

/// Which benchmark.
#[derive(Debug, Subcommand)]
pub enum Benchmark {
    /// How long a program takes behind each wall, compared with no wall.
    Spawn(SpawnOptions),
    /// What idle sandboxes cost while they are held.
    Memory(MemoryOptions),
    /// What is left and what grows while sandboxes are made and destroyed.
    Churn(ChurnOptions),
    /// What busy neighbours do to latency.
    Hogs(HogsOptions),
    /// How long runs of WebAssembly take, compared with programs of their own.
    Wasm(WasmOptions),
    /// How long runs in containers take, compared with the engine's own command line.
    Container(ContainerOptions),
    /// How long machines take to start, to go on from snapshots and to answer, and what they hold.
    Vm(VmOptions),
    /// How long a line of Python and of JavaScript takes behind each wall, compared with the bare interpreter.
    Code(CodeOptions),
}

/// Options of `spawn`.
#[derive(Debug, Args)]
pub struct SpawnOptions {
    /// Fewer rounds: ends within a minute.
    #[arg(long)]
    pub quick: bool,
    /// Rounds for `true`; Python has a quarter of it, those that are slow have fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(FEWEST..))]
    pub n: Option<u64>,
    /// Contestants that take part beside `bare`, by their short names.
    #[arg(long, value_delimiter = ',', value_parser = Contestant::parse)]
    pub only: Vec<Contestant>,
    /// The program that is measured as the command line; default: the one beside this program.
    #[arg(long, value_name = "FILE")]
    pub command_line: Option<PathBuf>,
    /// What they run; default: both.
    #[arg(long, value_enum)]
    pub workload: Option<Workload>,
}

/// Options of `memory`.
#[derive(Debug, Args)]
pub struct MemoryOptions {
    /// Idle sandboxes held at once.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(FEWEST..=100_000))]
    pub n: u64,
}

/// Options of `churn`.
#[derive(Debug, Args)]
pub struct ChurnOptions {
    /// Sandboxes made, run in, and destroyed.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub n: u64,
}

/// Options of `hogs`.
#[derive(Debug, Args)]
pub struct HogsOptions {
    /// Sandboxes that each keep one processor busy.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub hogs: u64,
    /// Runs of each kind with hogs, and as many without.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(FEWEST..))]
    pub n: u64,
}

/// Options of `wasm`.
#[derive(Debug, Args)]
pub struct WasmOptions {
    /// Fewer rounds: ends within a minute.
    #[arg(long)]
    pub quick: bool,
    /// Rounds; those that are slow have fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(FEWEST..))]
    pub n: Option<u64>,
    /// What is run; default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<Guest>,
    /// Idle sessions held at once, of each kind; 0 leaves them out.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub sessions: u64,
    /// Where the interpreters are; default: the cache directory of this user.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// The program that is measured as the command line; default: the one beside this program.
    #[arg(long, value_name = "FILE")]
    pub command_line: Option<PathBuf>,
}

/// Options of `container`.
#[derive(Debug, Args)]
pub struct ContainerOptions {
    /// Fewer rounds: ends within two minutes.
    #[arg(long)]
    pub quick: bool,
    /// Rounds; those that are slow have fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(FEWEST..))]
    pub n: Option<u64>,
    /// The engine's address; default: `DOCKER_HOST`, else the usual sockets.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// The program that is measured as the command line; default: the one beside this program.
    #[arg(long, value_name = "FILE")]
    pub command_line: Option<PathBuf>,
}

/// Options of `vm`.
#[derive(Debug, Args)]
pub struct VmOptions {
    /// Fewer rounds, fewer clones: some minutes.
    #[arg(long)]
    pub quick: bool,
    /// Rounds; those that are slow have fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(FEWEST..))]
    pub n: Option<u64>,
    /// Idle clones held at once; default: 100, with `--quick` 10.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub clones: Option<u64>,
    /// Where images of machines and packages are kept; default: the cache directory of this user.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Measures `docker run`, too, with an engine that is started for it where no address is given.
    #[arg(long)]
    pub docker: bool,
    /// The address of an engine for `docker run`; default: `DOCKER_HOST`, else the usual socket.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
}

/// Options of `code`.
#[derive(Debug, Args)]
pub struct CodeOptions {
    /// Fewer rounds: ends within two minutes.
    #[arg(long)]
    pub quick: bool,
    /// Rounds; those that are slow have fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(FEWEST..))]
    pub n: Option<u64>,
    /// Only this language; default: all.
    #[arg(long, value_enum)]
    pub lang: Vec<Lang>,
    /// Measures in machines, too; makes their image where it is missing.
    #[arg(long)]
    pub vm: bool,
    /// Measures in containers with an engine that is started for it where no address is given.
    #[arg(long)]
    pub docker: bool,
    /// The address of a container engine; default: `DOCKER_HOST`, else the usual sockets.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(["bench"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn options_are_read_or_refused() {
        let options = parse("spawn --n 50 --only run,bwrap --workload python --out x").unwrap();
        assert_eq!(options.out, PathBuf::from("x"));
        let Benchmark::Spawn(spawn) = options.benchmark else { panic!("not spawn") };
        assert_eq!((spawn.n, spawn.quick, spawn.workload), (Some(50), false, Some(Workload::Python)));
        assert_eq!(spawn.only.iter().map(|who| who.slug()).collect::<Vec<_>>(), ["run", "bwrap"]);
        assert_eq!(parse("--out x churn --out y").unwrap().out, PathBuf::from("y"));
        assert!(matches!(parse("memory --n 20").unwrap().benchmark, Benchmark::Memory(MemoryOptions { n: 20 })));
        let Benchmark::Wasm(wasm) = parse("wasm --quick --workload null,python --cache c").unwrap().benchmark else {
            panic!("not wasm")
        };
        assert_eq!((wasm.workload, wasm.cache), (vec![Guest::Null, Guest::Python], Some(PathBuf::from("c"))));
        let Benchmark::Vm(vm) = parse("vm --quick --clones 20 --docker").unwrap().benchmark else { panic!("not vm") };
        assert_eq!((vm.quick, vm.clones, vm.docker, vm.n), (true, Some(20), true, None));
        let Benchmark::Code(code) = parse("code --quick --lang javascript --vm").unwrap().benchmark else {
            panic!("not code")
        };
        assert_eq!((code.lang, code.vm, code.docker), (vec![Lang::JavaScript], true, false));
        for line in [
            "code --lang lisp",
            "vm --n 1",
            "vm --clones 0",
            "",
            "spawn --n",
            "spawn --n x",
            "spawn --n 1",
            "spawn --slow",
            "spawn --only nobody",
            "churn --n 5",
            "wasm --workload lisp",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
