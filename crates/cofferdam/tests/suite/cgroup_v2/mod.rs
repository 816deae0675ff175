//! The process backend on hosts with version 2 of control groups only: in a guest, because the kernel under the tests
//! may have version 1. One boot serves all tests. `script.sh` contains the commands.

mod vm;

use serde_json::Value;

use crate::hostile::table::kernel_memory::FORMS;
use vm::Case;

/// Tolerance of the host's memory: the guest's own programs allocate and free some too.
const SLACK_MIB: u64 = 192;
const LIMIT_MIB: u64 = 64;
/// The environments in which every limit is tested.
const ENVIRONMENTS: [&str; 2] = ["root", "delegated"];
/// Runs a test on the cases of the guest, or prints that it is skipped.
fn check(test: &str, check: impl FnOnce(&dyn Fn(&str) -> Case)) {
    let Some(cases) = vm::cases(test) else { return };
    check(&|name| cases.get(name).unwrap_or_else(|| panic!("the script has no case {name:?}")).clone());
}

impl Case {
    /// Returns the documents that it printed.
    fn documents(&self) -> Vec<Value> {
        let values = serde_json::Deserializer::from_str(&self.output).into_iter::<Value>();
        values.map_while(Result::ok).filter(Value::is_object).collect()
    }

    fn document(&self) -> Value {
        self.documents().into_iter().next().unwrap_or_else(|| panic!("no document: {self:#?}"))
    }

    /// Returns a row of the posture: its state and its mechanism.
    fn row(&self, protection: &str) -> (String, String) {
        let document = self.document();
        let rows = document["posture"].as_array().unwrap_or_else(|| panic!("no posture: {self:#?}"));
        let row = rows.iter().find(|row| row["protection"] == protection).expect("a row");
        (row["state"].as_str().unwrap().to_owned(), row["mechanism"].as_str().unwrap().to_owned())
    }

    /// Returns the doctor's finding on control groups: state, detail, remedy.
    fn control_groups(&self) -> [String; 3] {
        let document = self.document();
        let items = document["backends"][0]["items"].as_array().unwrap_or_else(|| panic!("no findings: {self:#?}"));
        let item = items.iter().find(|item| item["name"] == "control-groups").expect("a finding");
        ["state", "detail", "remedy"].map(|key| item[key].as_str().unwrap_or_default().to_owned())
    }

    fn is_by_groups(&self) -> bool {
        let rows = ["memory", "cpu", "pids"].map(|protection| self.row(protection));
        rows.iter().all(|(state, mechanism)| state == "enforced" && mechanism.starts_with("cgroup v2"))
    }

    fn is_by_watch(&self) -> bool {
        let rows = ["memory", "cpu", "pids"].map(|protection| self.row(protection));
        rows.iter().all(|(state, mechanism)| state == "enforced" && mechanism.starts_with("RLIMIT_"))
    }

    /// Returns the delegated controllers and the contents of a group.
    fn group(&self, path: &str) -> Option<(&str, &str)> {
        let line = self.groups.iter().find_map(|line| line.strip_prefix(path)?.strip_prefix(':'))?;
        line.split_once(':')
    }

    /// Returns true if no group of Cofferdam is left except the one for callers.
    fn left_no_group(&self) -> bool {
        let is_ours = |line: &String| line.split(':').next().is_some_and(|path| path.contains("/cofferdam-"));
        self.groups.iter().filter(|line| is_ours(line)).all(|line| line.contains("/cofferdam-callers:"))
    }
}

/// Promise (Limits): Control groups v2 enforce the limits, as root and as an ordinary user with a delegated group.
#[test]
fn limits_are_kept_by_groups_of_version_2() {
    check("limits_are_kept_by_groups_of_version_2", |case| {
        for environment in ENVIRONMENTS {
            let run = case(&format!("{environment} posture"));
            assert!(run.status == 0 && run.is_by_groups(), "{environment}: {run:#?}");
            let (state, mechanism) = run.row("cpus");
            assert!(state == "enforced" && mechanism == "cgroup v2 CPU quota of 0.5 processors", "{state} {mechanism}");
            let [state, detail, _] = case(&format!("{environment} doctor")).control_groups();
            assert_eq!((&*state, &*detail), ("ok", "version 2, usable"), "{environment}");
        }
    });
}

/// Promise (Limits): Each limit under control groups v2 holds, and an exit reports it.
#[test]
fn each_limit_of_version_2_holds_and_is_reported() {
    check("each_limit_of_version_2_holds_and_is_reported", |case| {
        for environment in ENVIRONMENTS {
            for (name, killed_by, hit, prints) in [
                ("memory", None, Some("memory"), "contained: "),
                ("memory of a process", Some("memory"), Some("memory"), ""),
                ("memory of a child", None, Some("memory"), "after\n"),
                ("memory of files", None, Some("memory"), "contained: "),
                ("stored files", None, None, "200\n"),
                ("disk", None, Some("disk"), "contained: "),
                ("pids", None, Some("pids"), "contained: "),
                ("cpu time", Some("cpu"), Some("cpu"), ""),
            ] {
                let run = case(&format!("{environment} {name}"));
                let document = run.document();
                let (exit, stdout) = (&document["exit"], document["stdout"]["text"].as_str().unwrap_or_default());
                assert_eq!(exit["killed_by"].as_str(), killed_by, "{environment} {name}: {run:#?}");
                let hits = exit["limits_hit"].as_array().expect("a list");
                let expected: Vec<Value> = hit.map(Value::from).into_iter().collect();
                assert_eq!(*hits, expected, "{environment} {name}: {run:#?}");
                assert!(stdout.starts_with(prints), "{environment} {name}: {stdout}");
                assert_eq!(run.status, if killed_by.is_some() { 137 } else { 0 }, "{environment} {name}: {run:#?}");
                assert!(run.left_no_group(), "{environment} {name}: {run:#?}");
            }
            let run = case(&format!("{environment} cpus"));
            let share = run.document()["stdout"]["text"].as_str().and_then(|text| text.trim().parse::<f64>().ok());
            assert!(share.is_some_and(|share| share < 0.4), "{environment}: {run:#?}");
        }
    });
}

/// Promise (Limits): Under control groups v2, kernel objects are charged to the sandbox, refused or bounded.
#[test]
fn objects_of_the_kernel_are_bounded_with_groups_of_version_2() {
    check("objects_of_the_kernel_are_bounded_with_groups_of_version_2", |case| {
        let all = ENVIRONMENTS.into_iter().flat_map(|environment| FORMS.iter().map(move |form| (environment, form.0)));
        let mut failed = Vec::new();
        for (environment, form) in all {
            let run = case(&format!("{environment} object {form}"));
            let document = run.document();
            let (code, killed_by) = (&document["exit"]["code"], document["exit"]["killed_by"].as_str());
            let taken = run.errors.lines().find_map(|line| line.strip_prefix("taken ")?.parse::<u64>().ok());
            println!("{environment} {form}: {taken:?} MiB");
            let has_ended_well = *code == 0 || killed_by == Some("memory");
            if !has_ended_well || taken.is_none_or(|taken| taken >= LIMIT_MIB + SLACK_MIB) {
                failed.push(format!("{environment} {form}: {taken:?} MiB, {}", document["exit"]));
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    });
}

/// Checks that the script has the forms of the hostile programs' table, with the same numbers of processes.
#[test]
fn the_script_takes_every_form_of_kernel_memory() {
    let script = include_str!("script.sh");
    let (_, list) = script.split_once("for form in ").expect("a list of forms");
    let (list, _) = list.split_once("; do").expect("its end");
    let listed: Vec<_> = list.split('"').skip(1).step_by(2).filter_map(|form| form.split_once(' ')).collect();
    assert_eq!(listed, FORMS);
}

/// Tests limits that the root of most hosts cannot raise in a container: it lacks CAP_SYS_RESOURCE there.
///
/// Promise (Process isolation): A sandbox inherits no right to real-time scheduling or to a raised priority.
#[test]
fn limits_of_priorities_are_not_inherited() {
    check("limits_of_priorities_are_not_inherited", |case| {
        let run = case("root with raised priorities");
        assert_eq!((run.status, run.output.as_str()), (0, "1 0 40 40 50 50\n0 0 0 0 0 0\n"), "{run:#?}");
    });
}

#[test]
fn queues_of_listening_sockets_are_short_where_the_kernel_hides_the_setting() {
    check("queues_of_listening_sockets_are_short_where_the_kernel_hides_the_setting", |case| {
        let run = case("session of a user queue");
        assert_eq!((run.status, run.output.as_str()), (0, "17\n"), "{run:#?}");
    });
}

/// Promise (Limits): Under control groups v2, processes of others are never moved.
#[test]
fn processes_of_others_are_never_moved() {
    check("processes_of_others_are_never_moved", |case| {
        // The parent group contains no processes, so it can be used.
        let run = case("free among others");
        assert!(run.status == 0 && run.is_by_groups() && run.left_no_group(), "{run:#?}");
        assert_eq!(run.group("/free/job"), Some(("", "witness")), "{run:#?}");
        // The process would leave the limit of the caller's group.
        let run = case("bounded among others");
        assert!(run.status == 0 && run.is_by_watch(), "{run:#?}");
        assert_eq!(run.group("/free/job"), Some(("", "witness")), "{run:#?}");
        assert_eq!(run.group("/free/job/cofferdam-callers"), None, "{run:#?}");
        let [state, detail, remedy] = case("bounded among others doctor").control_groups();
        assert!(state == "weaker" && detail.contains("/free/job: process "), "{state} {detail}");
        assert!(remedy.contains("systemd-run --scope -p Delegate=yes"), "{remedy}");
        let run = case("delegated among others");
        assert!(run.status == 0 && run.is_by_watch(), "{run:#?}");
        assert_eq!(run.group("/user.slice/shared.scope"), Some(("", "witness")), "{run:#?}");
        let [_, detail, remedy] = case("delegated among others doctor").control_groups();
        assert!(detail.contains("shared.scope: process "), "{detail}");
        assert!(remedy.contains("systemd-run --user --scope -p Delegate=yes"), "{remedy}");
        // The unit has its processes in a separate group.
        let run = case("delegated with a subgroup");
        assert!(run.status == 0 && run.is_by_groups() && run.left_no_group(), "{run:#?}");
        assert_eq!(run.group("/user.slice/service/callers"), Some(("", "witness")), "{run:#?}");
    });
}

/// Promise (Limits): Under control groups v2, a sandbox stays within the bounds of its caller's group.
#[test]
fn groups_lie_below_the_callers_own_bounded_group() {
    check("groups_lie_below_the_callers_own_bounded_group", |case| {
        let run = case("bounded alone");
        assert!(run.status == 0 && run.documents().len() == 2 && run.is_by_groups() && run.left_no_group(), "{run:#?}");
        assert!(run.output.contains("0::/alone/cofferdam-callers"), "{run:#?}");
        for (name, group) in [("bounded alone alive", "/alone"), ("delegated alive", "/user.slice/unit.scope")] {
            let run = case(name);
            let ours = run.groups.iter().filter(|line| line.starts_with(&format!("{group}/cofferdam-")));
            assert_eq!(ours.count(), 2, "{run:#?}");
            assert!(run.groups.iter().filter(|line| line.contains("cofferdam-4")).all(|line| line.starts_with(group)));
            assert!(
                run.group(&format!("{group}/cofferdam-callers")).is_some_and(|(_, inside)| inside.contains("other"))
            );
            assert_eq!(run.status, 143, "{run:#?}");
        }
    });
}

/// Promise (Limits): Groups that systemd manages are not changed.
#[test]
fn groups_of_systemd_are_not_changed() {
    check("groups_of_systemd_are_not_changed", |case| {
        let run = case("session of root");
        assert!(run.status == 0 && run.is_by_groups() && run.left_no_group(), "{run:#?}");
        assert_eq!(run.group("/user.slice").map(|(passed_on, _)| passed_on), Some("memory pids"), "{run:#?}");
        assert_eq!(run.group("/user.slice/session.scope"), Some(("", "witness")), "{run:#?}");
        let run = case("session of root alive");
        assert_eq!(run.output, "refused\n", "systemd took the memory controller from a sandbox: {run:#?}");
        for name in ["session of a user", "bounded session of root", "below the systemd of a user"] {
            let run = case(name);
            assert!(run.status == 0 && run.is_by_watch() && run.left_no_group(), "{name}: {run:#?}");
            assert_eq!(run.group("/user.slice/session.scope"), Some(("", "witness")), "{name}: {run:#?}");
        }
        let [state, detail, remedy] = case("session of a user doctor").control_groups();
        assert!(state == "weaker" && detail.contains("delegated to this user"), "{state} {detail}");
        assert!(remedy.contains("systemd-run --user --scope -p Delegate=yes"), "{remedy}");
    });
}
