//! The sandbox and the command of a plugin.

use std::time::Duration;

use cofferdam_contract::{
    Access, ByteSize, Command, ExecRequest, Level, Limits, NetworkPolicy, Result, Script, Spec, Stdin, TenantId,
    Workspace,
};
use cofferdam_linux::named::Directory;

use super::permission;
use crate::{Entry, Manifest, Runtime, Strategy};

/// The SDK for Python, which is the program that loads the plugin.
const PYTHON_SDK: &[u8] = include_bytes!("../../../../sdk/python-plugin/src/cofferdam_plugin/__init__.py");
/// The SDK for Node.js, which is the program that loads the plugin.
const NODE_SDK: &[u8] = include_bytes!("../../../../sdk/node-plugin/cofferdam-plugin.cjs");

/// The memory limit of a plugin without one.
const DEFAULT_MEMORY: ByteSize = ByteSize::from_mebibytes(256);
/// The share of a plugin's memory that the heap of Node.js gets, in percent.
const HEAP_PERCENT: u64 = 60;
/// The output of a plugin that waits for the host to read it. Sixteen messages of the largest size fit. It is allocated as
/// it fills.
const OUTPUT_BUFFER: ByteSize = ByteSize::from_mebibytes(128);
/// The output of a plugin in its whole life.
const MAX_OUTPUT: ByteSize = ByteSize::from_bytes(1 << 50);
/// The maximum life of a plugin: calls have their own limits.
const LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the strategy of a plugin.
pub fn strategy(manifest: &Manifest) -> Strategy {
    manifest.sandbox.strategy.unwrap_or(match (manifest.runtime, manifest.sandbox.level) {
        (Runtime::Wasm, _) => Strategy::Wasm,
        (_, Some(Level::Container)) => Strategy::Container,
        (_, Some(Level::Vm)) => Strategy::Vm,
        _ => Strategy::Subprocess,
    })
}

/// Returns the level that a strategy has at least.
pub fn level(strategy: Strategy) -> Option<Level> {
    match strategy {
        Strategy::Subprocess => Some(Level::Process),
        Strategy::Container => Some(Level::Container),
        Strategy::Vm => Some(Level::Vm),
        Strategy::Wasm => Some(Level::Wasm),
        Strategy::Thread | Strategy::Inline => None,
    }
}

/// Returns true if the package is copied into the sandbox, because VMs mount no directory of the host.
pub fn is_copied(strategy: Strategy) -> bool {
    strategy == Strategy::Vm
}

/// Returns the spec of a plugin's sandbox. It sees its own package, and nothing else of the host's files.
pub fn spec(manifest: &Manifest, package: &Directory, tenant: Option<&TenantId>, strategy: Strategy) -> Result<Spec> {
    let limits = &manifest.sandbox.limits;
    let (device, inode) = package.identity();
    let path = package.path().to_owned();
    let defaults = Limits::default();
    let builder = match is_copied(strategy) {
        true => Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }),
        false => Spec::builder()
            .directory(&path, cofferdam_contract::DirectoryId { device, inode })
            .workspace(Workspace::HostDir { path, access: Access::ReadOnly }),
    };
    let mut builder = builder
        .limits(Limits {
            memory: Some(limits.memory.unwrap_or(DEFAULT_MEMORY)),
            disk: limits.disk.or(defaults.disk),
            pids: limits.pids.or(defaults.pids),
            // The host counts the CPU time of each call.
            cpu_time: None,
            wall_time: LIFE,
            ..defaults
        })
        .label("cofferdam.plugin", &manifest.name);
    if let Some(hosts) = permission::network(manifest) {
        builder = builder.network(NetworkPolicy::Allow { hosts });
    }
    if let Some(tenant) = tenant {
        builder = builder.tenant(tenant.clone());
    }
    builder.build()
}

/// Returns the command that runs a plugin.
pub fn request(manifest: &Manifest, options: &Options) -> Result<ExecRequest> {
    let script = |interpreter: Vec<String>, name: &str, contents: &'static [u8]| {
        Command::Script(Script {
            interpreter,
            name: name.to_owned(),
            contents: bytes::Bytes::from_static(contents),
            args: Vec::new(),
        })
    };
    let command = match (manifest.runtime, &manifest.entry) {
        (Runtime::Python, _) => {
            script(words(&["python3", "-u", "-B"], &options.interpreter), "cofferdam_plugin.py", PYTHON_SDK)
        }
        (Runtime::Node, _) => {
            let memory = manifest.sandbox.limits.memory.unwrap_or(DEFAULT_MEMORY);
            let heap = format!("--max-old-space-size={}", heap_mebibytes(memory));
            let interpreter = words(&["node", "--enable-source-maps", &heap], &options.interpreter);
            script(interpreter, "cofferdam-plugin.cjs", NODE_SDK)
        }
        (_, Entry::Name(name)) => Command::Argv(vec![name.clone()]),
        (_, Entry::Command(words)) => Command::Argv(words.clone()),
    };
    let mut builder = ExecRequest::builder(command)
        .stdin(Stdin::Stream)
        .max_output(MAX_OUTPUT)
        .output_buffer(OUTPUT_BUFFER)
        .env("COFFERDAM_PLUGIN", &manifest.name);
    for (name, value) in &options.env {
        builder = builder.env(name, value);
    }
    builder.build()
}

/// Additions to a plugin's command, for debugging.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Options of the interpreter.
    pub interpreter: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
}

fn words(first: &[&str], more: &[String]) -> Vec<String> {
    first.iter().map(|word| (*word).to_owned()).chain(more.iter().cloned()).collect()
}

/// Returns the heap limit of Node.js for a memory limit. Code, stacks and buffers need the rest.
fn heap_mebibytes(memory: ByteSize) -> u64 {
    ((memory.as_bytes() >> 20) * HEAP_PERCENT / 100).max(16)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(extra: serde_json::Value) -> Manifest {
        let mut value = json!({"manifest": 1, "name": "p", "version": "1.0.0", "runtime": "python", "entry": "m:f"});
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_strategy_follows_runtime_and_level() {
        assert_eq!(strategy(&manifest(json!({}))), Strategy::Subprocess);
        assert_eq!(strategy(&manifest(json!({"sandbox": {"level": "vm"}}))), Strategy::Vm);
        assert_eq!(strategy(&manifest(json!({"runtime": "wasm", "entry": "a.wasm"}))), Strategy::Wasm);
    }

    /// Promise (Plugins): A plugin has no network unless its manifest has the permission and a host.
    #[test]
    fn a_plugin_has_no_network_without_the_permission() {
        let directory = tempfile::tempdir().unwrap();
        let package = Directory::open(directory.path()).unwrap();
        let network = |extra| spec(&manifest(extra), &package, None, Strategy::Subprocess).unwrap().network().clone();
        assert_eq!(network(json!({"sandbox": {"net": ["a.example:443"]}})), NetworkPolicy::None);
        assert_eq!(network(json!({"permissions": ["net"]})), NetworkPolicy::None);
        let both = network(json!({"permissions": ["net"], "sandbox": {"net": ["a.example:443"]}}));
        assert_eq!(both, NetworkPolicy::Allow { hosts: vec!["a.example:443".to_owned()] });
    }

    /// Promise (Plugins): Node.js gets a heap limit below the memory limit, and source maps.
    #[test]
    fn node_gets_a_heap_limit_and_source_maps() {
        let manifest =
            manifest(json!({"runtime": "node", "entry": "a.js:f", "sandbox": {"limits": {"memory": "100M"}}}));
        let request = request(&manifest, &Options::default()).unwrap();
        let Command::Script(script) = request.command() else { panic!("{request:?}") };
        assert!(script.interpreter.contains(&"--max-old-space-size=60".to_owned()), "{script:?}");
        assert!(script.interpreter.contains(&"--enable-source-maps".to_owned()));
    }
}
