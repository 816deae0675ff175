//! The sandboxes and interpreters that a server prepares.

use std::sync::Arc;
use std::time::Duration;

use cofferdam::configuration::{Bound, Human};
use cofferdam::engine::{InterpreterConfig, InterpretersConfig, PreparedBackend, PreparedInterpreter};
use cofferdam::resident::ServeSettings;
use cofferdam::{Error, Level, Result, Spec, registry};

use crate::args::ServeArgs;
use crate::settings::Settings;

/// Idle timeout of a server that a run started.
const ON_DEMAND_IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Merges options, file and the defaults of the backend, in this order of precedence.
pub fn merged(args: &ServeArgs, file: &ServeSettings, backend: &str) -> ServeSettings {
    options(args).or(file.clone()).or(defaults(args, backend))
}

/// Creates the default backend, with prepared sandboxes and interpreters. Must be called in a tokio runtime.
pub fn backend(args: &ServeArgs, settings: &Settings, merged: &ServeSettings) -> Result<Arc<PreparedBackend>> {
    let name = settings.backend.name;
    let mut template = Spec::builder().limits(settings.limits.clone()).tenant(settings.tenant.clone());
    for protection in &settings.allow_weaker {
        template = template.allow_weaker(*protection);
    }
    for (name, value) in registry::attributes(name, &settings.setup)? {
        template = template.attribute(name, value);
    }
    let interpreters = InterpretersConfig::new(prepared_interpreters(args, settings, merged.clone())?);
    let backend = registry::backend_with(name, &settings.setup)?;
    PreparedBackend::new(backend, template.build()?, merged.pool(), interpreters).map(Arc::new)
}

fn options(args: &ServeArgs) -> ServeSettings {
    ServeSettings {
        idle_exit: args.idle_exit,
        drain: args.drain.map(Human),
        max_runs: args.max_runs,
        warm: args.prepared.warm,
        python: args.prepared.python,
        python_modules: args.prepared.python_modules.clone(),
        node: args.prepared.node,
        node_modules: args.prepared.node_modules.clone(),
    }
}

fn defaults(args: &ServeArgs, backend: &str) -> ServeSettings {
    let idle_exit = args.on_demand.then_some(Bound::Of(ON_DEMAND_IDLE_TIMEOUT));
    // An idle sandbox of another server costs money or memory there.
    let prepared = registry::is_external(backend).then_some(0);
    ServeSettings { idle_exit, warm: prepared, python: prepared, node: prepared, ..ServeSettings::default() }
}

/// Returns the interpreters to prepare: those of allowed languages, started as the configuration describes.
fn prepared_interpreters(
    args: &ServeArgs,
    settings: &Settings,
    merged: ServeSettings,
) -> Result<Vec<PreparedInterpreter>> {
    // Prepared interpreters are processes. The interpreters of level wasm start from a snapshot without preparation.
    if settings.backend.level == Level::Wasm {
        if [args.prepared.python, args.prepared.node].into_iter().flatten().any(|ready| ready > 0) {
            let what = format!(
                "the backend '{}' prepares no interpreters: its own start from a snapshot",
                settings.backend.name
            );
            return Err(Error::unsupported("serve", what).with_remedy("leave out --python and --node"));
        }
        return Ok(Vec::new());
    }
    let kinds = [
        ("python", InterpreterConfig::python(), merged.python, merged.python_modules),
        ("javascript", InterpreterConfig::node(), merged.node, merged.node_modules),
    ];
    let prepared = kinds.into_iter().filter_map(|(name, interpreter, ready, modules)| {
        let command = settings.code.languages.by_name(name).ok()?.interpreter.clone();
        let interpreter = InterpreterConfig { command, ..interpreter.with_modules(modules) };
        Some(PreparedInterpreter { name: name.to_owned(), interpreter, ready: ready.unwrap_or(1) })
    });
    Ok(prepared.filter(|kind| kind.ready > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Server): A server prepares no sandboxes of E2B or of another server unless that is configured.
    #[test]
    fn external_backends_prepare_nothing_by_default() {
        let file = ServeSettings::default();
        for (backend, expected) in [("e2b", Some(0)), ("remote", Some(0)), ("process", None), ("docker", None)] {
            let merged = merged(&ServeArgs::default(), &file, backend);
            assert_eq!((merged.warm, merged.python, merged.node), (expected, expected, expected), "{backend}");
        }
        let merged = merged(&ServeArgs::default(), &ServeSettings { warm: Some(3), ..file }, "e2b");
        assert_eq!((merged.warm, merged.pool().min_warm, merged.python), (Some(3), 3, Some(0)));
    }
}
