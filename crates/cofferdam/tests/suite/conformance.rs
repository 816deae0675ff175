//! The conformance suite on the process backend, with a census of the host.

use cofferdam::registry;
use cofferdam::{
    Access, Backend, ByteSize, ErrorKind, ExecRequest, Limits, OutputEvent, Protection, Sandbox, Spec, Stdin, Workspace,
};
use cofferdam_conformance::{Options, Outcome, Target, TestImage, UnixPrograms, run};
use cofferdam_process::{ProcessBackend, ProcessConfig};

use crate::census;
use crate::images::Fixed;

/// Promise (Conformance suite): The process backend passes the conformance suite.
#[test]
fn process_backend_passes_the_conformance_suite() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Other tests run at the same time, so only objects that every poll finds count.
        let target = registry::conformance_target("process").expect("the backend is built in").with_root("/");
        let report = run(&target, &Options::default()).await;
        for case in report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
            println!("{case}");
        }
        let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
        assert!(report.is_success(), "{}\n{}", failures.join("\n"), report.summary());
        let capable = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
        assert!(capable >= 100, "only {capable} cases could be run");
    });
}

/// Promise (Conformance suite): The process backend passes the conformance cases of images.
#[test]
fn process_backend_passes_the_conformance_cases_of_images() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut image = Fixed::with_programs(&["sh", "cat", "env", "rm"], 2);
        image.user = Some((1234, 1234));
        let test_image = TestImage {
            env: vec![("GREETING".to_owned(), "hello".to_owned()), ("PATH".to_owned(), "/programs:/bin".to_owned())],
            user: Some(1234),
            working_dir: Some("/app".to_owned()),
            ..TestImage::new("test:latest", "/app/readme", "of the image\n")
        };
        let weaker =
            [Protection::Memory, Protection::CpuTime, Protection::Cpus, Protection::Processes, Protection::Disk];
        let spec = weaker.into_iter().fold(Spec::builder(), |spec, weaker| spec.allow_weaker(weaker));
        let target = Target::new(image.backend(), UnixPrograms::without_python())
            .with_spec(spec.build().expect("valid"))
            .with_image(test_image);
        let report = run(&target, &Options { filter: Some("image".to_owned()), ..Options::default() }).await;
        let passed: Vec<&str> =
            report.cases.iter().filter(|case| case.outcome == Outcome::Passed).map(|case| &*case.name).collect();
        assert_eq!(passed, ["image/runs-its-program", "image/root-is-private", "image/missing-is-named"], "{report}");
        // A backend without a store refuses images.
        let target = registry::conformance_target("wasm").ok();
        let none = ProcessBackend::new(ProcessConfig::default()).expect("a backend");
        let none = Some(Target::new(std::sync::Arc::new(none), UnixPrograms::without_python()));
        for target in target.into_iter().chain(none) {
            let report = run(&target, &Options { filter: Some("image".to_owned()), ..Options::default() }).await;
            let undeclared = report.get("undeclared/image").map(|case| &case.outcome);
            assert!(report.is_success() && undeclared == Some(&Outcome::Passed), "{report}");
        }
    });
}

/// Promise (Warm sandboxes and pools): The process backend passes the conformance suite through a pool.
#[test]
fn process_backend_passes_the_conformance_suite_through_a_pool() {
    let before = census::census();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (target, pooled) = registry::pooled_conformance_target("process").expect("the backend is built in");
        let report = run(&target.with_root("/"), &Options::default()).await;
        let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
        assert!(report.is_success(), "{}\n{}", failures.join("\n"), report.summary());
        let capable = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
        assert!(capable >= 100, "only {capable} cases could be run");
        let claims = pooled.pool().metrics().claims;
        assert!(claims.total() >= 100, "{claims:?}");
        pooled.pool().shutdown(std::time::Duration::from_secs(60)).await.expect("everything ends");
    });
    drop(runtime);
    let left = census::left_behind(&before, std::time::Duration::from_secs(60));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn simulated_backend_passes_the_conformance_suite_through_a_pool() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (target, pooled) = registry::pooled_conformance_target("simulated").expect("the backend is built in");
        let options = Options { parallelism: 8, large_file: ByteSize::from_mebibytes(4), ..Options::default() };
        let report = run(&target, &options).await;
        let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
        assert!(report.is_success(), "{}\n{}", failures.join("\n"), report.summary());
        let metrics = pooled.pool().metrics();
        assert!(metrics.claims.warm > 20, "{metrics:?}");
        pooled.pool().shutdown(std::time::Duration::from_secs(60)).await.expect("everything ends");
    });
}

#[cfg(feature = "wasm")]
#[test]
fn the_command_line_examines_the_wasm_backend() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.args(["conformance", "--backend", "wasm", "--json", "--filter", "E2"]);
    let output = command.output().expect("the binary starts");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(document["success"], true, "{document}");
    let passed = document["cases"].as_array().expect("cases").iter().filter(|case| case["outcome"] == "passed").count();
    assert!(passed > 10, "{document}");
}

#[test]
fn the_command_line_examines_a_backend_through_a_pool() {
    for (backend, filter) in [("simulated", "warm"), ("process", "exit/code")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        command.args(["conformance", "--backend", backend, "--pooled", "--json", "--filter", filter]);
        let output = command.output().expect("the binary starts");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
        assert_eq!((output.status.code(), &report["success"]), (Some(0), &true.into()), "{report}");
        // A pool prepares no sandboxes for other pools, whatever its backend does. A skip would report that.
        let cases = report["cases"].as_array().expect("cases").iter();
        let mut undeclared = cases.filter(|case| case["name"] == "undeclared/warm");
        assert!(undeclared.all(|case| case["outcome"] == "passed"), "{report}");
    }
}

#[test]
fn a_filter_without_a_case_and_an_image_that_is_missing_are_no_success() {
    for (options, expected) in [
        (["--filter", "no-such-case"].as_slice(), "the name of no test case contains 'no-such-case'"),
        (&["--filter", "exit/code", "--image", "no-such-image"], "'no-such-image'"),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        let state = tempfile::tempdir().expect("a directory");
        command.args(["conformance", "--backend", "process"]).args(options).env("XDG_STATE_HOME", state.path());
        let output = command.output().expect("the binary starts");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(!output.status.success() && text.contains(expected), "{options:?}: {text}");
    }
}

#[test]
fn whole_life_of_a_backend_leaves_nothing_behind() {
    let before = census::census();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let target = registry::conformance_target("process").expect("the backend is built in");
        let options = Options { filter: Some("cancel/".to_owned()), ..Options::default() };
        assert!(run(&target, &options).await.is_success());
    });
    let left = census::left_behind(&before, std::time::Duration::from_secs(60));
    assert!(left.is_empty(), "{left:?}");
}

/// Promise (Limits): A spec with a disk limit and a writable host directory is refused.
#[test]
fn a_writable_host_directory_with_a_disk_limit_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let backend = registry::backend("process").expect("the backend is built in");
        let mounted = |access| Workspace::HostDir { path: directory.path().to_owned(), access };
        let spec = |access| Spec::builder().workspace(mounted(access));
        let refused = backend.create(spec(Access::ReadWrite).build().expect("valid")).await;
        let error = refused.expect_err("the sum of what is stored there has no limit");
        assert_eq!(error.kind(), ErrorKind::WeakerThanRequired, "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("--allow-weaker disk")), "{error:?}");
        for accepted in [spec(Access::ReadOnly), spec(Access::ReadWrite).allow_weaker(Protection::Disk)] {
            let sandbox = backend.create(accepted.build().expect("valid")).await.expect("it is accepted");
            sandbox.close().await.expect("it closes");
        }
    });
}

#[test]
fn starts_that_are_given_up_end_only_themselves() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let backend = registry::backend("process").expect("the backend is built in");
        let sandbox = backend.create(Spec::default()).await.expect("a sandbox");
        let request = ExecRequest::argv(["cat"]).stdin(Stdin::Stream).build().expect("valid");
        let other = sandbox.start(request).await.expect("it starts");
        for round in 0u64..20 {
            let request = ExecRequest::argv(["sleep", "1000"]).build().expect("valid");
            let limit = std::time::Duration::from_micros(round * 50);
            // Most of these are dropped while the request is in transit.
            drop(tokio::time::timeout(limit, sandbox.start(request)).await);
        }
        let mut input = other.stdin().expect("it was asked for");
        tokio::io::AsyncWriteExt::write_all(&mut input, b"alive").await.expect("it is read");
        input.close().await.expect("it closes");
        let mut output = other.output();
        let first = output.next().await;
        assert!(matches!(&first, Some(OutputEvent::Chunk(chunk)) if chunk.data == "alive"), "{first:?}");
        assert!(other.exit().await.expect("it ends").success());
        // Cancelled execs do not leave processes: only a few are allowed at once.
        let sleepers = ExecRequest::shell("for i in 1 2 3 4 5 6; do sleep 0.2 & done; wait").build().expect("valid");
        assert!(sandbox.exec(sleepers).await.expect("it runs").exit.success());
        sandbox.close().await.expect("it closes");
    });
}

/// Returns a posture without the identities of namespaces and users, which differ between sandboxes.
fn shape(sandbox: &dyn Sandbox) -> Vec<String> {
    let items = sandbox.posture().items().iter();
    let rows = items.map(|item| {
        let identities = item.protection.as_str().ends_with("namespace") || item.protection == Protection::User;
        let words = item.mechanism.split(' ');
        let plain = words.filter(|word| !(identities && word.contains(|c: char| c.is_ascii_digit())));
        format!("{} {:?} {}", item.protection, item.state, plain.collect::<Vec<_>>().join(" "))
    });
    rows.collect()
}

/// Promise (Process isolation): A sandbox from prepared namespaces equals one that is created on request.
#[test]
fn sandbox_from_prepared_namespaces_equals_a_created_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let prepared = ProcessBackend::new(ProcessConfig::default()).expect("a backend");
        let config = ProcessConfig { prepare_ahead: false, ..ProcessConfig::default() };
        let unprepared = ProcessBackend::new(config).expect("a backend");
        let mounted = tempfile::tempdir().expect("a directory");
        let host = Workspace::HostDir { path: mounted.path().to_owned(), access: Access::ReadOnly };
        let limits = |memory: u64, processes: u32, disk: u64| Limits {
            memory: Some(ByteSize::from_mebibytes(memory)),
            pids: Some(processes),
            disk: Some(ByteSize::from_mebibytes(disk)),
            ..Limits::default()
        };
        let specs = [
            Spec::builder(),
            Spec::builder().limits(limits(64, 3, 2)),
            Spec::builder().limits(limits(700, 40, 8)).workspace(Workspace::Private { access: Access::ReadOnly }),
            Spec::builder().workspace(host),
            Spec::builder().limits(Limits { memory: None, pids: None, ..Limits::default() }),
        ];
        // Each sandbox is requested after another one, and after a pause in which a child is forked for that one.
        for spec in specs.iter().chain(specs.iter().rev()) {
            let spec = spec.clone().build().expect("valid");
            tokio::time::sleep(std::time::Duration::from_millis(60)).await;
            let ahead = prepared.create(spec.clone()).await.expect("a sandbox");
            let direct = unprepared.create(spec).await.expect("a sandbox");
            assert_eq!(shape(&*ahead), shape(&*direct));
            ahead.close().await.expect("it closes");
            direct.close().await.expect("it closes");
        }
    });
}
