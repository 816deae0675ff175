//! Hostile programs against the process backend, and some of them against others. Each row of the table tries one
//! attack, and fails if it succeeds.
//!
//! The programs are `tests/guests/*.c`; `docs/past-escapes.md` names the known escape of each. Harmless ones also run
//! outside the sandbox, where they must succeed, so that no row passes because its program is broken. Programs that
//! would harm the host never run outside; their rows give the reason.

#[cfg(feature = "container")]
mod containers;
pub mod guests;
mod host;
mod host_memory;
mod paths;
mod races;
mod resident;
mod row;
mod run;
pub mod table;
#[cfg(feature = "vm")]
mod vm;

use std::collections::BTreeSet;
use std::process::Command;

use cofferdam_contract::{Access, Workspace};

use self::host::SECRET_VARIABLE;
pub use self::run::turn;

/// The name of the test that [`secrets_of_the_supervisor_stay_outside`] starts in a separate process.
const INNER: &str = "hostile::inner_with_a_secret";

/// Promise (Process isolation): Hostile programs do not reach files of the host.
/// Promise (Process isolation): Hostile programs do not watch opens of files that they share with the host, and do not
/// delay them with leases.
#[test]
fn files_of_the_host_stay_outside() {
    run::run(table::files::rows());
}

/// Promise (Process isolation): Hostile programs reach no socket of the host.
#[test]
fn sockets_of_the_host_stay_outside() {
    run::run(table::network::rows());
}

/// Promise (Process isolation): A guest does not reach processes, namespaces and control groups of the host.
#[test]
fn processes_and_namespaces_of_the_host_stay_outside() {
    run::run(table::processes::rows());
}

/// Promise (Process isolation): Hostile programs do not reach rarely used parts of the kernel.
#[test]
fn the_kernel_stays_out_of_reach() {
    run::run(table::kernel::rows());
}

/// Promise (Process isolation): A guest cannot gain privileges.
#[test]
fn no_privilege_is_gained() {
    run::run(table::privileges::rows());
}

/// Promise (Process isolation): A guest cannot write or type into the terminal of its caller.
#[test]
fn terminals_stay_outside() {
    run::run(table::terminals());
}

/// Promise (Limits): Hostile programs do not exceed the limits of processes, descriptors and output, with and without
/// control groups.
#[test]
fn processes_descriptors_and_output_are_limited() {
    run::run(table::bombs::counts());
}

/// Promise (Limits): Memory is limited in every form, also in kernel objects.
#[test]
fn memory_is_limited_in_every_form() {
    run::run(table::bombs::memory_rows());
}

#[test]
fn kernel_memory_stays_within_the_memory_limit() {
    run::run(table::kernel_memory::rows());
}

/// Promise (Containers): The memory limit of a container bounds kernel objects too.
#[cfg(feature = "container")]
#[test]
fn kernel_memory_stays_within_the_memory_limit_in_containers() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP kernel memory in containers: only root can limit a container's socket buffers on cgroup v1");
        return;
    }
    containers::run(None, table::kernel_memory::rows());
}

/// Promise (Limits): Hostile programs do not exceed the limits of bytes and files, with and without control groups.
#[test]
fn disk_and_inodes_are_limited() {
    run::run(table::bombs::disk_rows());
}

/// Promise (Limits): Hostile programs do not escape the CPU limit, with and without control groups.
#[test]
fn processor_time_is_limited() {
    run::run(table::bombs::cpu_rows());
}

/// Promise (Warm sandboxes and pools): Hostile programs fail through a pool too.
#[test]
fn attacks_fail_through_a_pool_too() {
    run::run_pooled(table::all());
}

/// Promise (Containers): Hostile programs fail in containers too.
#[cfg(feature = "container")]
#[test]
fn attacks_fail_in_containers_too() {
    containers::run(None, table::all());
}

#[cfg(feature = "vm")]
#[test]
fn attacks_fail_in_a_vm_too() {
    // Attacks on the CPU limit come last, because they take longest.
    let groups = [table::processes::rows(), table::privileges::rows(), table::bombs::cpu_rows()];
    vm::run("attacks_fail_in_a_vm_too", groups.into_iter().flatten().collect());
}

/// Promise (Process isolation): Hostile programs fail as single commands too.
#[test]
fn attacks_fail_as_single_commands_too() {
    run::run_single(table::all());
}

/// Promise (Server): Hostile programs fail through the private socket too.
#[test]
fn attacks_fail_through_a_server_too() {
    // Without the bombs: `resident::runs` tests limits through the server.
    let groups = [
        table::files::rows(),
        table::network::rows(),
        table::processes::rows(),
        table::kernel::rows(),
        table::privileges::rows(),
        table::terminals(),
    ];
    resident::run(groups.into_iter().flatten().collect());
}

/// Promise (Process isolation): A guest does not reach secrets in the supervisor's environment.
#[test]
fn secrets_of_the_supervisor_stay_outside() {
    // The kernel shows the initial environment of a process, so this binary starts again with the secret.
    let status = Command::new(std::env::current_exe().expect("this binary has a path"))
        .args(["--exact", INNER, "--ignored", "--nocapture", "--test-threads=1"])
        .env(SECRET_VARIABLE, format!("secret-{}-of-the-supervisor", std::process::id()))
        .status()
        .expect("this binary starts again");
    assert!(status.success(), "see the output above");
}

#[test]
#[ignore = "started by secrets_of_the_supervisor_stay_outside, with a secret in its environment"]
fn inner_with_a_secret() {
    if std::env::var_os(SECRET_VARIABLE).is_some() {
        run::run(table::files::secrets());
        resident::run(table::files::secrets());
    }
}

/// Promise (Files): Hostile programs that swap links in a private workspace never lead the file API outside.
#[test]
fn file_api_is_not_fooled_by_swapped_links_in_a_private_workspace() {
    races::symlink_race(Workspace::default());
}

/// Promise (Files): Hostile programs that swap links in a mounted host directory never lead the file API outside.
#[test]
fn file_api_is_not_fooled_by_swapped_links_in_a_host_directory() {
    let directory = guests::open_temporary_directory(0o777);
    races::symlink_race(Workspace::HostDir { path: directory.path().to_owned(), access: Access::ReadWrite });
}

/// Promise (Files): Hostile programs that swap links in a copy-on-write workspace never lead the file API outside, and
/// do not change the host directory.
#[test]
fn file_api_is_not_fooled_by_swapped_links_in_a_copy_on_write_workspace() {
    let directory = guests::open_temporary_directory(0o777);
    races::symlink_race(Workspace::CopyOnWrite { path: directory.path().to_owned() });
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
}

/// Promise (Files): Hostile links in a private workspace never lead the file API outside.
#[test]
fn file_api_is_not_fooled_by_links_in_a_private_workspace() {
    races::resting_links(Workspace::default());
}

#[test]
fn file_api_is_not_fooled_by_links_in_a_host_directory() {
    let directory = guests::open_temporary_directory(0o777);
    races::resting_links(Workspace::HostDir { path: directory.path().to_owned(), access: Access::ReadWrite });
}

/// Promise (Files): A sandbox mounts the host directory that the caller named, even if another process swaps its path
/// later.
#[test]
fn a_swapped_directory_leads_no_sandbox_elsewhere() {
    paths::swapped_directory(run::backend().as_ref(), 40);
}

/// Promise (Files): A path that leads to another directory than the recorded one is not mounted.
#[test]
fn another_directory_than_the_recorded_one_is_not_mounted() {
    paths::replaced_directory(run::backend().as_ref());
}

/// Promise (Files): A sandbox has the root directory that the caller named, even if another process swaps its path
/// later.
#[test]
fn a_swapped_root_leads_no_sandbox_elsewhere() {
    paths::swapped_root(40);
}

/// Promise (Files): A path that leads to another directory than the recorded one is not used as root.
#[test]
fn another_directory_than_the_recorded_one_is_no_root() {
    paths::replaced_root();
}

#[cfg(feature = "container")]
#[test]
fn a_swapped_directory_leads_no_container_elsewhere() {
    if let Some(backend) = containers::backend(None) {
        paths::swapped_directory(backend.as_ref(), 12);
    }
    if let Some(backend) = containers::backend(None) {
        paths::replaced_directory(backend.as_ref());
    }
}

/// Promise (Files): Later mounts on the host do not appear in a mounted host directory.
#[test]
fn mounts_that_appear_later_on_the_host_stay_outside() {
    paths::later_mounts();
}

/// Promise (Process isolation): A guest does not reach the program of the runtime.
#[test]
fn the_runtime_is_not_executed_as_the_guest() {
    races::runtime_is_not_executed_as_the_guest();
}

/// Promise (Process isolation): A process sandbox has neither the host's root user nor a capability, also if root
/// starts it.
#[test]
fn the_host_sees_the_guest_as_an_ordinary_confined_process() {
    races::identity_on_the_host();
}

/// Promise (Process isolation): One guest cannot exhaust counted kernel resources that other sandboxes of its user
/// need.
#[test]
fn guest_cannot_exhaust_kernel_counts_of_its_user() {
    races::counts_of_a_user();
}

/// Promise (Process isolation): Reading a directory that is mounted read-only does not change the access times of its
/// files.
#[test]
fn reading_a_read_only_directory_leaves_access_times_alone() {
    races::reading_leaves_no_trace();
}

/// Promise (Process isolation): No process outlives its sandbox.
#[test]
fn daemons_do_not_outlive_the_sandbox() {
    races::daemons_die();
}

/// Promise (Process isolation): Hostile programs try every known escape in `docs/past-escapes.md`.
#[test]
fn every_guest_program_has_a_row_and_a_line_in_past_escapes() {
    let mut used: BTreeSet<String> = table::all().iter().map(|row| row.guest.to_owned()).collect();
    used.extend(table::kernel_memory::rows().iter().map(|row| row.guest.to_owned()));
    used.extend(table::files::secrets().iter().map(|row| row.guest.to_owned()));
    used.extend(races::GUESTS.map(str::to_owned));
    assert_eq!(used, guests::all_names(), "rows and tests/guests/*.c differ");

    let document = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/past-escapes.md");
    let text = std::fs::read_to_string(&document).expect("docs/past-escapes.md is part of the repository");
    let missing: Vec<_> = used.iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/past-escapes.md does not name {missing:?}");
}

#[test]
fn rows_without_a_control_say_why_and_names_are_unique() {
    let rows = table::all();
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "two rows have the same name");
    assert!(rows.iter().all(|row| !matches!(row.control, row::Control::None(""))));
}

/// Checks the last column of docs/limits.md: it names every form of `kernel_memory.c` that is a row here, and nothing
/// that does not exist.
#[test]
fn every_form_of_kernel_memory_is_in_the_table_of_limits() {
    let document = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let text = std::fs::read_to_string(&document).expect("docs/limits.md is part of the repository");
    let (_, table) = text.split_once("| tested as |\n").expect("a table with this column");
    let lines = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells = lines.filter_map(|line| line.trim_end_matches([' ', '|']).rsplit('|').next());
    let named: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let forms: BTreeSet<&str> = table::kernel_memory::FORMS.iter().map(|(form, _)| *form).collect();
    let missing: Vec<_> = forms.difference(&named).collect();
    assert!(missing.is_empty(), "docs/limits.md does not name {missing:?}");
    let programs = guests::all_names();
    let unknown: Vec<_> = named.difference(&forms).filter(|name| !programs.contains(**name)).collect();
    assert!(unknown.is_empty(), "docs/limits.md names {unknown:?}, which do not exist");
}
