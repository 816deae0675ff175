//! The command line of the benchmarks.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::code::Lang;
use crate::spawn::{Contestant, Workload};
use crate::wasm::Guest;

/// The minimum number of runs for a meaningful median.
const MIN_RUNS: u64 = 10;

/// The benchmark to run, and the directory of its results.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", about = "Compare Cofferdam with alternatives, in one run")]
pub struct Options {
    /// Directory for the result files.
    #[arg(long, global = true, overrides_with = "out", default_value = "bench-results")]
    pub out: PathBuf,
    /// The benchmark to run.
    #[command(subcommand)]
    pub benchmark: Benchmark,
}

/// The benchmark to run.
#[derive(Debug, Subcommand)]
pub enum Benchmark {
    /// Measure a program at each isolation level, compared with an unsandboxed start.
    Spawn(SpawnOptions),
    /// Measure the memory of idle sandboxes.
    Memory(MemoryOptions),
    /// Test for leaks while sandboxes are created and destroyed.
    Leak(LeakOptions),
    /// Measure the latency with noisy neighbours.
    Neighbours(NeighboursOptions),
    /// Measure WebAssembly runs, compared with native programs.
    Wasm(WasmOptions),
    /// Measure runs in containers, compared with the engine's own command line.
    Container(ContainerOptions),
    /// Measure VMs: boot, restore from snapshots, latency and memory.
    Vm(VmOptions),
    /// Measure a line of Python and of JavaScript at each isolation level, compared with the bare interpreter.
    Code(CodeOptions),
    /// Measure the network of sandboxes, compared with a client without one.
    Net(NetOptions),
    /// Measure plugins through the host, compared with bare pipes and gRPC.
    Plugins(PluginsOptions),
    /// Measure the server under load, compared with the library, with queued requests and with idle sandboxes.
    Server(ServerOptions),
    /// Measure copy-on-write workspaces, compared with an empty workspace and with bare programs.
    Workspace(WorkspaceOptions),
}

/// Options of `spawn`.
#[derive(Debug, Args)]
pub struct SpawnOptions {
    /// Run fewer rounds and end within a minute.
    #[arg(long)]
    pub quick: bool,
    /// Number of rounds for `true`. Python runs a quarter, and slow contestants fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RUNS..))]
    pub n: Option<u64>,
    /// Contestants beside `bare`, by their short names.
    #[arg(long, value_delimiter = ',', value_parser = Contestant::parse)]
    pub only: Vec<Contestant>,
    /// Program to measure as the command line [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pub command_line: Option<PathBuf>,
    /// Workload to run [default: both].
    #[arg(long, value_enum)]
    pub workload: Option<Workload>,
}

/// Options of `memory`.
#[derive(Debug, Args)]
pub struct MemoryOptions {
    /// Number of idle sandboxes held at once.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(MIN_RUNS..=100_000))]
    pub n: u64,
}

/// Options of `leak`.
#[derive(Debug, Args)]
pub struct LeakOptions {
    /// Number of sandboxes to create, use and destroy.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub n: u64,
}

/// Options of `neighbours`.
#[derive(Debug, Args)]
pub struct NeighboursOptions {
    /// Number of sandboxes that each keep one processor busy.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub neighbours: u64,
    /// Number of runs of each kind with neighbours, and without.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(MIN_RUNS..))]
    pub n: u64,
}

/// Options of `wasm`.
#[derive(Debug, Args)]
pub struct WasmOptions {
    /// Run fewer rounds and end within a minute.
    #[arg(long)]
    pub quick: bool,
    /// Number of rounds. Slow contestants run fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RUNS..))]
    pub n: Option<u64>,
    /// Guest to run [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<Guest>,
    /// Number of idle sessions of each kind held at once, or 0 for none.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub sessions: u64,
    /// Directory of the interpreters [default: the cache directory of this user].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Program to measure as the command line [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pub command_line: Option<PathBuf>,
}

/// Options of `container`.
#[derive(Debug, Args)]
pub struct ContainerOptions {
    /// Run fewer rounds and end within two minutes.
    #[arg(long)]
    pub quick: bool,
    /// Number of rounds. Slow contestants run fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RUNS..))]
    pub n: Option<u64>,
    /// Address of the engine [default: `DOCKER_HOST`, else the usual sockets].
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Program to measure as the command line [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pub command_line: Option<PathBuf>,
}

/// Options of `vm`.
#[derive(Debug, Args)]
pub struct VmOptions {
    /// Run fewer rounds and hold fewer clones, for some minutes.
    #[arg(long)]
    pub quick: bool,
    /// Number of rounds. Slow contestants run fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RUNS..))]
    pub n: Option<u64>,
    /// Number of idle clones held at once [default: 100, with `--quick` 10].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub clones: Option<u64>,
    /// Directory of VM images and packages [default: the cache directory of this user].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Also measure `docker run`, with a new engine unless an address is given.
    #[arg(long)]
    pub docker: bool,
    /// Address of an engine for `docker run` [default: `DOCKER_HOST`, else the usual socket].
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
}

/// Options of `code`.
#[derive(Debug, Args)]
pub struct CodeOptions {
    /// Run fewer rounds and end within two minutes.
    #[arg(long)]
    pub quick: bool,
    /// Number of rounds. Slow contestants run fewer.
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RUNS..))]
    pub n: Option<u64>,
    /// Language to measure [default: all].
    #[arg(long, value_enum)]
    pub lang: Vec<Lang>,
    /// Also measure in VMs, and create their image if it is missing.
    #[arg(long)]
    pub vm: bool,
    /// Measure in containers, with a new engine unless an address is given.
    #[arg(long)]
    pub docker: bool,
    /// Address of a container engine [default: `DOCKER_HOST`, else the usual sockets].
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
}

/// Options of `net`.
#[derive(Debug, Args)]
pub struct NetOptions {
    /// Run for shorter times and end within a minute.
    #[arg(long)]
    pub quick: bool,
    /// Measure in the namespaces of this process, with servers' files in this directory.
    #[arg(long, value_name = "DIR", hide = true)]
    pub inside: Option<PathBuf>,
    /// Run the servers, with their files in this directory.
    #[arg(long, value_name = "DIR", hide = true)]
    pub serve: Option<PathBuf>,
    /// Run the client against this port.
    #[arg(long, value_name = "PORT", hide = true)]
    pub load: Option<u16>,
    /// Run the client as one of many that start at the same time.
    #[arg(long, hide = true)]
    pub of_many: bool,
}

/// Options of `plugins`.
#[derive(Debug, Args)]
pub struct PluginsOptions {
    /// Run fewer rounds and hold fewer idle plugins, within two minutes.
    #[arg(long)]
    pub quick: bool,
    /// Number of idle plugins held at once [default: 1000, with `--quick` 50].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub idle: Option<u64>,
    /// Run the server of gRPC with this socket.
    #[arg(long, value_name = "SOCKET", hide = true)]
    pub serve: Option<PathBuf>,
}

/// Options of `server`.
#[derive(Debug, Args)]
pub struct ServerOptions {
    /// Run fewer requests, queue fewer and hold fewer idle sandboxes, within a minute.
    #[arg(long)]
    pub quick: bool,
    /// Number of requests for each number of clients [default: 8000, with `--quick` 512].
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RUNS..))]
    pub n: Option<u64>,
    /// Number of requests that wait for room at once [default: 10000, with `--quick` 400].
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RUNS..=16_000))]
    pub queued: Option<u64>,
    /// Number of idle sandboxes held at once [default: 1000, with `--quick` 50].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub idle: Option<u64>,
    /// Program to start as the server [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pub command_line: Option<PathBuf>,
}

/// Options of `workspace`.
#[derive(Debug, Args)]
pub struct WorkspaceOptions {
    /// Run fewer rounds with smaller files, within a minute.
    #[arg(long)]
    pub quick: bool,
    /// Number of files in the large directory.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=2_000_000))]
    pub files: u64,
    /// Also measure `docker run`, with a new engine unless an address is given.
    #[arg(long)]
    pub docker: bool,
    /// Address of an engine for `docker run` [default: `DOCKER_HOST`, else the usual socket].
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
        assert_eq!(spawn.only.iter().map(|contestant| contestant.slug()).collect::<Vec<_>>(), ["run", "bwrap"]);
        assert_eq!(parse("--out x leak --out y").unwrap().out, PathBuf::from("y"));
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
        let Benchmark::Plugins(plugins) = parse("plugins --quick --idle 20").unwrap().benchmark else {
            panic!("not plugins")
        };
        assert_eq!((plugins.quick, plugins.idle, plugins.serve), (true, Some(20), None));
        let Benchmark::Server(server) = parse("server --quick --queued 50 --idle 5").unwrap().benchmark else {
            panic!("not server")
        };
        assert_eq!((server.quick, server.n, server.queued, server.idle), (true, None, Some(50), Some(5)));
        for line in [
            "plugins --idle 0",
            "server --queued 100000",
            "code --lang lisp",
            "vm --n 1",
            "vm --clones 0",
            "",
            "spawn --n",
            "spawn --n x",
            "spawn --n 1",
            "spawn --slow",
            "spawn --only unknown",
            "leak --n 5",
            "wasm --workload lisp",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
