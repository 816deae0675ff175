//! Unit tests.

use super::*;
use crate::args::{self, Command};
use cofferdam::configuration::Human;
#[cfg(feature = "vm")]
use cofferdam::registry::vms::{Acceleration, Jailer};
#[cfg(feature = "container")]
use cofferdam::registry::{ContainerSettings, PullPolicy};
#[cfg(feature = "vm")]
use cofferdam::registry::{MakePolicy, VmSettings};

fn flags(line: &str) -> RunArgs {
    let raw: Vec<_> = ["cofferdam", "run"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
    match args::parse(&raw).unwrap().command {
        Command::Run(run) => *run,
        other => panic!("{other:?}"),
    }
}

fn environment(entries: &[(&str, &str)]) -> Result<Environment> {
    Environment::read(|name| entries.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
}

/// Promise (Command line): Options take precedence over the environment, the configuration file and the defaults, in
/// this order.
#[test]
fn options_beat_environment_beats_file_beats_defaults() {
    let file = ConfigFile {
        limits: ConfigLimits { wall_time: Some(Human(Duration::from_secs(3))), ..ConfigLimits::default() },
        backend: Some("simulated".to_owned()),
        ..ConfigFile::default()
    };
    let set = environment(&[("SANDBOX_TIMEOUT_SEC", "2"), ("SANDBOX_TYPE", "local")]).unwrap();
    let unset = Environment::default();
    for (line, environment, file, seconds, backend) in [
        ("--timeout 1s --backend simulated x.py", &set, &file, 1, "simulated"),
        ("--timeout 9s x.py", &set, &file, 2, "process"),
        ("x.py", &set, &file, 2, "process"),
        ("x.py", &unset, &file, 3, "simulated"),
        ("x.py", &unset, &ConfigFile::default(), 60, "process"),
    ] {
        let settings = Settings::resolve(&flags(line), environment, file).unwrap();
        assert_eq!(settings.limits.wall_time, Duration::from_secs(seconds), "{line}");
        assert_eq!(settings.backend.name, backend, "{line}");
    }
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn an_option_that_would_do_nothing_is_refused() {
    let resolve =
        |line: &str| Settings::resolve(&flags(line), &Environment::default(), &ConfigFile::default()).map(drop);
    for line in ["--pull missing x.py", "--backend vm --pull never x.py", "--build missing x.py"] {
        let error = resolve(line).unwrap_err();
        assert!(error.to_string().contains("but the backend is") && error.remedy().is_some(), "{line}: {error}");
    }
    for line in
        ["--backend docker --pull missing x.py", "--image a --pull missing x.py", "--level vm --build never x.py"]
    {
        resolve(line).unwrap();
    }
}

#[test]
fn only_an_option_replaces_the_bound_on_output_of_code() {
    let size = ByteSize::from_bytes;
    for (line, whole, code, output) in [
        ("x.py", None, 500, 500),
        ("x.py", Some(900), 500, 500),
        ("x.py", Some(300), 500, 300),
        ("--max-output 800 x.py", Some(300), 500, 800),
    ] {
        let file = ConfigFile {
            max_output: whole.map(|bytes| Human(size(bytes))),
            code: Some(Bounds { max_output: size(code), ..Bounds::default() }),
            ..ConfigFile::default()
        };
        let settings = Settings::resolve(&flags(line), &Environment::default(), &file).unwrap();
        assert_eq!(settings.code.bounds.max_output, size(output), "{line} {whole:?}");
    }
}

#[test]
fn a_limit_can_be_lifted_on_each_layer() {
    let file = ConfigFile {
        limits: ConfigLimits { memory: Some(Bound::None), pids: Some(Bound::Of(3)), ..ConfigLimits::default() },
        ..ConfigFile::default()
    };
    let settings = Settings::resolve(&flags("--pids none x.py"), &Environment::default(), &file).unwrap();
    assert_eq!((settings.limits.memory, settings.limits.pids), (None, None));
    let settings = Settings::resolve(&flags("--memory 1M x.py"), &Environment::default(), &file).unwrap();
    assert_eq!(settings.limits.memory, Some(ByteSize::from_mebibytes(1)));
    assert_eq!(settings.limits.pids, Some(3));
    assert_eq!(settings.limits.disk, Limits::default().disk);
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn the_level_is_a_floor_under_every_source_of_the_backend() {
    let none = Environment::default();
    let choose = |line: &str, environment: &Environment, file: &ConfigFile| {
        Settings::resolve(&flags(line), environment, file).map(|settings| settings.backend.name)
    };
    let file = ConfigFile { level: Some(Level::Process), ..ConfigFile::default() };
    assert_eq!(choose("--level 1 x.sh", &none, &ConfigFile::default()).unwrap(), "process");
    assert_eq!(choose("--level vm x.py", &none, &ConfigFile::default()).unwrap(), "vm");
    assert!(choose("--backend simulated x.py", &none, &file).is_err());
    let simulated = environment(&[("SANDBOX_TYPE", "simulated")]).unwrap();
    assert!(choose("x.py", &simulated, &file).is_err());
    assert_eq!(choose("--level simulated x.py", &simulated, &file).unwrap(), "simulated");
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn a_module_gets_its_backend_unless_more_is_asked_for() {
    let none = Environment::default();
    let choose = |line: &str, file: &ConfigFile| {
        Settings::resolve(&flags(line), &none, file).map(|settings| settings.backend.name)
    };
    let defaults = ConfigFile::default();
    for (line, backend) in [
        ("x.wasm", "wasm"),
        ("--level wasm X.WASM", "wasm"),
        ("--level 1 -- x.wasm a", "wasm"),
        ("--backend wasm -- x.wasm a", "wasm"),
        ("--lang wasm x", "wasm"),
        ("--level wasm x.py", "wasm"),
        ("--level wasm --lang javascript x", "wasm"),
        ("--level wasm -", "wasm"),
        ("--level wasm --code 1", "wasm"),
        ("--level wasm -- -", "process"),
        ("--level wasm x.ts", "process"),
        ("--level wasm -- python3 x.py", "process"),
        ("x.py", "process"),
        ("-- x.wasm", "process"),
        ("--level process x.wasm", "process"),
        ("--backend process x.wasm", "process"),
        ("--lang python x.wasm", "process"),
        ("x.py x.wasm", "process"),
    ] {
        assert_eq!(choose(line, &defaults).unwrap(), backend, "{line}");
    }
    let file = ConfigFile { level: Some(Level::Process), ..ConfigFile::default() };
    assert_eq!(choose("x.wasm", &file).unwrap(), "process");
}

#[cfg(feature = "container")]
#[test]
fn container_settings_come_from_options_environment_and_file() {
    let set = environment(&[("DOCKER_HOST", "unix:///e.sock"), ("SANDBOX_TYPE", "docker:runsc")]).unwrap();
    let file = ConfigFile {
        containers: ContainerSettings {
            host: Some("unix:///f.sock".to_owned()),
            image: Some("own".to_owned()),
            pull: Some(PullPolicy::Missing),
            images_allowed: Some(vec!["own".to_owned()]),
            ..ContainerSettings::default()
        },
        ..ConfigFile::default()
    };
    let settings = Settings::resolve(&flags("--pull never x.py"), &set, &file).unwrap();
    assert_eq!(settings.backend.name, "docker");
    let expected = ContainerSettings {
        host: Some("unix:///e.sock".to_owned()),
        runtime_dir: None,
        runtime: Some("runsc".to_owned()),
        image: Some("own".to_owned()),
        pull: Some(PullPolicy::Never),
        images_allowed: Some(vec!["own".to_owned()]),
    };
    assert_eq!(settings.setup.containers, expected);
    let settings = Settings::resolve(&flags("--backend docker x.py"), &Environment::default(), &file).unwrap();
    assert_eq!(settings.setup.containers.host.as_deref(), Some("unix:///f.sock"));
    assert_eq!((settings.setup.containers.pull, settings.setup.containers.runtime), (Some(PullPolicy::Missing), None));
}

#[cfg(feature = "vm")]
#[test]
fn vm_settings_come_from_options_environment_and_file() {
    let set = environment(&[
        ("SANDBOX_TYPE", "vm:qemu"),
        ("COFFERDAM_VM_ACCELERATOR", "tcg"),
        ("COFFERDAM_VM_MEMORY", "1G"),
        ("COFFERDAM_VM_IMAGE", "mine"),
        ("COFFERDAM_VM_JAILER", "/opt/jailer"),
    ]);
    let set = set.unwrap();
    let file = ConfigFile {
        vms: VmSettings {
            image: Some("other".to_owned()),
            build: Some(MakePolicy::Missing),
            processors: Some(2),
            images: Some("/images".into()),
            jailer: Some(Jailer::Beside),
            ..VmSettings::default()
        },
        ..ConfigFile::default()
    };
    let settings = Settings::resolve(&flags("x.py"), &set, &file).unwrap();
    assert_eq!(settings.backend.name, "vm");
    let vms = settings.setup.vms;
    assert_eq!((vms.image.as_deref(), vms.build), (Some("mine"), Some(MakePolicy::Missing)));
    assert_eq!((vms.memory, vms.processors), (Some(Human(ByteSize::from_mebibytes(1024))), Some(2)));
    assert_eq!((vms.accelerator, vms.images), (Some(Acceleration::Tcg), Some("/images".into())));
    assert_eq!(vms.jailer, Some(Jailer::At("/opt/jailer".into())));
    assert_eq!(vms.driver, Some(cofferdam::registry::vms::Driver::Qemu));
    let settings = Settings::resolve(&flags("x.py"), &Environment::default(), &file).unwrap();
    assert_eq!(settings.setup.vms.jailer, Some(Jailer::Beside));
    assert_eq!(Jailer::default(), Jailer::Off);
    let settings = Settings::resolve(&flags("--build never x.py"), &set, &file).unwrap();
    assert_eq!(settings.setup.vms.build, Some(MakePolicy::Never));
    for (name, value) in [("ACCELERATOR", "hvf"), ("MEMORY", "lots"), ("PROCESSORS", "-1"), ("BUILD", "always")] {
        let name = format!("COFFERDAM_VM_{name}");
        let error = environment(&[(&name, value)]).unwrap_err();
        assert!(error.message().starts_with(&format!("{name} is '{value}'")), "{error}");
    }
}

#[cfg(all(feature = "mcp", feature = "wasm"))]
#[test]
fn wasm_settings_come_from_options_environment_and_file() {
    let set = environment(&[("COFFERDAM_WASM_DETERMINISTIC", "env"), ("COFFERDAM_WASM_FUEL", "20")]).unwrap();
    let unset = Environment::default();
    let file: ConfigFile = toml::from_str("[wasm]\ndeterministic = 7\nfuel = 30\n").unwrap();
    let none = ConfigFile::default();
    for (line, environment, file, seed, fuel) in [
        ("--deterministic=a --fuel 10 x.wasm", &set, &file, Some("a"), Some(10)),
        ("--deterministic x.wasm", &set, &file, Some("0"), Some(20)),
        ("x.wasm", &set, &file, Some("env"), Some(20)),
        ("x.wasm", &unset, &file, Some("7"), Some(30)),
        ("--fuel none x.wasm", &unset, &file, Some("7"), None),
        ("x.wasm", &unset, &none, None, None),
        // These settings do not affect other backends.
        ("x.py", &set, &file, None, None),
    ] {
        let flags = flags(line);
        let settings = Settings::resolve(&flags, environment, file).unwrap();
        // The spec of the sandboxes of `cofferdam mcp`.
        let spec = crate::plan::sandbox(&flags, &settings).unwrap();
        let attribute = |name: &str| spec.attributes().get(name).cloned();
        assert_eq!(attribute("wasm.deterministic"), seed.map(Into::into), "{line}");
        assert_eq!(attribute("wasm.fuel"), fuel.map(Into::into), "{line}");
    }
    let error = environment(&[("COFFERDAM_WASM_FUEL", "0")]).unwrap_err();
    assert!(error.message().starts_with("COFFERDAM_WASM_FUEL is '0'"), "{error}");
    for line in ["--fuel 1 x.py", "--deterministic x.py"] {
        assert!(Settings::resolve(&flags(line), &unset, &none).is_err(), "{line}");
    }
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn an_image_gets_the_backend_for_images_unless_another_is_named() {
    let choose = |line: &str| {
        let settings = Settings::resolve(&flags(line), &Environment::default(), &ConfigFile::default());
        settings.map(|settings| settings.backend.name)
    };
    assert_eq!(choose("--image python:3 x.py").unwrap(), "docker");
    assert_eq!(choose("--level process --image python:3 x.py").unwrap(), "docker");
    assert_eq!(choose("--backend process --image python:3 x.py").unwrap(), "process");
    assert_eq!(choose("--level container x.py").unwrap(), "docker");
    assert_eq!(choose("--level vm --image x x.py").unwrap(), "vm");
}

/// Promise (Server): Options, environment and configuration select the use of a server.
#[test]
fn whether_a_server_is_used_is_settled_like_everything_else() {
    let file = ConfigFile { use_server: Some(ServerUse::Start), ..ConfigFile::default() };
    let set = environment(&[("COFFERDAM_USE_SERVER", "never")]).unwrap();
    let choose = |line: &str, environment: &Environment, file: &ConfigFile| {
        Settings::resolve(&flags(line), environment, file).unwrap().use_server
    };
    assert_eq!(choose("--use-server require x.py", &set, &file), ServerUse::Require);
    assert_eq!(choose("x.py", &set, &file), ServerUse::Never);
    assert_eq!(choose("x.py", &Environment::default(), &file), ServerUse::Start);
    assert_eq!(choose("x.py", &Environment::default(), &ConfigFile::default()), ServerUse::Auto);
    let error = environment(&[("COFFERDAM_USE_SERVER", "yes")]).unwrap_err();
    assert!(error.message().starts_with("COFFERDAM_USE_SERVER is 'yes'"), "{error}");
}

#[cfg(feature = "container")]
#[test]
fn the_backend_in_the_environment_is_read_in_any_case() {
    for (value, name) in [
        ("LOCAL", "local"),
        ("Docker", "docker"),
        ("DOCKER:MyRuntime", "docker:MyRuntime"),
        ("VM:QEMU", "vm:qemu"),
        ("Firecracker", "firecracker"),
    ] {
        let environment = environment(&[("SANDBOX_TYPE", value)]).unwrap();
        assert_eq!(environment.backend.as_deref(), Some(name), "{value}");
    }
    let environment = environment(&[("SANDBOX_TYPE", "Docker:MyRuntime")]).unwrap();
    let settings = Settings::resolve(&flags("x.py"), &environment, &ConfigFile::default()).unwrap();
    assert_eq!(settings.setup.containers.runtime.as_deref(), Some("MyRuntime"));
}

#[test]
fn bad_variables_are_named() {
    for value in ["soon", "0", "-1", "NaN", "inf", "1e30", "60s"] {
        let error = environment(&[("SANDBOX_TIMEOUT_SEC", value)]).unwrap_err();
        assert!(error.message().starts_with("SANDBOX_TIMEOUT_SEC is"), "{error}");
    }
    assert_eq!(environment(&[("SANDBOX_TIMEOUT_SEC", ""), ("SANDBOX_TYPE", "")]).unwrap(), Environment::default());
    for name in ["apple-vz", "Apple-VZ"] {
        let environment = environment(&[("SANDBOX_TYPE", name)]).unwrap();
        let error = Settings::resolve(&flags("x.py"), &environment, &ConfigFile::default()).unwrap_err();
        assert_eq!(error.kind(), cofferdam::ErrorKind::Unsupported, "{name}");
        assert_eq!(error.context().next(), Some(("named by", "SANDBOX_TYPE")));
    }
}
