//! The table of cases. To add a case, add a line here and a function in the file of its subject.

mod cancel;
mod connect;
mod copies;
mod environment;
mod exit;
mod files;
mod hostile;
mod images;
mod isolation;
mod lifecycle;
mod limits;
mod mounts;
mod network;
mod output;
mod pause;
mod posture;
mod prepared;
mod snapshot;
mod stdin;
mod terminal;
pub(crate) mod undeclared;
mod watch;
mod workspace;

use crate::CaseInfo;
use crate::case::Case;
use cofferdam_contract::Capability;

macro_rules! cases {
    ($($(#[doc = $promise:literal])* $name:literal $requirement:literal [$($need:ident),*] $function:path;)*) => {
        pub(crate) const CASES: &[Case] = &[$(Case {
            info: CaseInfo { name: $name, requirement: $requirement, needs: &[$(Capability::$need),*] },
            run: |context| Box::pin($function(context)),
        }),*];
    };
}

cases! {
    "exit/success-with-full-output" "K6" [] exit::success_with_full_output;
    /// Promise (Contract): The exit code of a program is returned unchanged.
    "exit/code-verbatim" "K6" [] exit::code_verbatim;
    /// Promise (Contract): The exit of a program that a signal ended names the signal and has the code -1.
    "exit/signal" "K3" [] exit::signal;
    /// Promise (Contract): A timeout sets `timed_out` and the code -1.
    "exit/timeout" "K6" [] exit::timeout;
    /// Promise (Contract): A timeout ends a program that ignores SIGTERM.
    "exit/timeout-although-term-ignored" "K3" [] exit::timeout_although_term_ignored;
    /// Promise (Contract): A timeout ends a program that has closed its output.
    "exit/timeout-although-output-closed" "K3" [] exit::timeout_although_output_closed;
    /// Promise (Contract): A timeout kills the complete process tree.
    "exit/timeout-kills-the-tree" "K3" [Files] exit::timeout_kills_the_tree;
    "exit/command-not-found" "K1" [] exit::command_not_found;
    "exit/command-not-executable" "K1" [Files] exit::command_not_executable;
    /// Promise (Contract): Several callers can await the same exit.
    "exit/awaited-by-many" "K2" [] exit::awaited_by_many;
    /// Promise (Contract): An exit reports CPU seconds, peak memory and output bytes.
    "exit/usage-is-reported" "K3" [] exit::usage_is_reported;

    /// Promise (Contract): `cancel` is idempotent, and the exit reports a signal.
    "cancel/idempotent-and-surfaces-as-a-signal" "K6" [] cancel::idempotent_and_surfaces_as_a_signal;
    /// Promise (Contract): `cancel` sends SIGTERM first.
    "cancel/sends-term-first" "K2" [] cancel::sends_term_first;
    /// Promise (Contract): `cancel` kills the process tree after the grace period.
    "cancel/kills-after-the-grace" "K2" [] cancel::kills_after_the_grace;
    /// Promise (Contract): `cancel` kills daemonised grandchildren.
    "cancel/kills-daemonised-grandchildren" "K2" [Files] cancel::kills_daemonised_grandchildren;
    "cancel/after-the-end-changes-nothing" "K2" [] cancel::after_the_end_changes_nothing;
    "cancel/close-is-idempotent" "K2" [] cancel::close_is_idempotent;
    /// Promise (Contract): A dropped handle kills its exec and frees its resources.
    "cancel/dropping-the-handle-kills" "K2" [Files] cancel::dropping_the_handle_kills;

    /// Promise (Contract): Output keeps its stream and its bytes.
    "output/binary" "K2" [] output::binary;
    /// Promise (Contract): Output keeps its order within each stream.
    "output/order-within-each-stream" "K2" [] output::order_within_each_stream;
    /// Promise (Contract): Output beyond the maximum is cut exactly there, and the exit reports the truncation.
    "output/truncated-exactly" "K6" [] output::truncated_exactly;
    /// Promise (Contract): Output that is exactly as long as the maximum is not truncated.
    "output/not-truncated-at-the-limit" "K6" [] output::not_truncated_at_the_limit;
    /// Promise (Contract): The maximum of output covers standard output and standard error together.
    "output/truncation-counts-both-streams" "K6" [] output::truncation_counts_both_streams;
    /// Promise (Contract): Subscribers receive output while the program runs.
    "output/live" "K2" [StreamingStdin] output::live;
    /// Promise (Contract): A late subscriber receives all later output.
    "output/late-subscriber" "K4" [StreamingStdin] output::late_subscriber;
    /// Promise (Contract): A slow subscriber delays neither the program nor other subscribers.
    "output/slow-subscriber" "K4" [] output::slow_subscriber;

    /// Promise (Contract): Empty standard input is an end of file.
    "stdin/empty-is-end-of-file" "K11" [] stdin::empty_is_end_of_file;
    /// Promise (Contract): Standard input can be bytes and an end of file.
    "stdin/bytes-then-end-of-file" "K11" [] stdin::bytes_then_end_of_file;
    "stdin/one-mebibyte-through" "K11" [] stdin::one_mebibyte_through;
    /// Promise (Contract): Standard input can be a stream, which the caller ends.
    "stdin/stream-with-end-of-file" "K11" [StreamingStdin] stdin::stream_with_end_of_file;
    "stdin/dropping-the-writer-is-end-of-file" "K11" [StreamingStdin] stdin::dropping_the_writer_is_end_of_file;
    "stdin/unread-input-blocks-nothing" "K11" [] stdin::unread_input_blocks_nothing;

    /// Promise (Contract): A terminal has the requested size.
    "terminal/is-one-of-the-size-asked" "K11" [Terminal, StreamingStdin] terminal::is_one_of_the_size_asked;
    /// Promise (Contract): A caller can resize a terminal.
    "terminal/resize" "K11" [Terminal, StreamingStdin] terminal::resize;
    "terminal/control-c-interrupts" "K11" [Terminal, StreamingStdin] terminal::control_c_interrupts;
    "terminal/none-unless-asked" "K11" [] terminal::none_unless_asked;

    /// Promise (Contract): A request adds its variables to a fixed base environment.
    "environment/is-a-delta" "K4" [] environment::is_a_delta;
    /// Promise (Contract): A request can replace and remove variables of the base environment.
    "environment/unset-and-replace" "K4" [] environment::unset_and_replace;
    "environment/working-dir" "K4" [Files] environment::working_dir;
    "environment/shell-and-script" "C3" [UnixPrograms] environment::shell_and_script;

    /// Promise (Contract): Concurrent sandboxes do not affect each other.
    "isolation/concurrent-sandboxes" "K6" [] isolation::concurrent_sandboxes;
    /// Promise (Contract): Concurrent execs of a sandbox keep their output and exits apart.
    "isolation/concurrent-execs" "K6" [MultipleExecs] isolation::concurrent_execs;
    /// Promise (Contract): Each sandbox has a private workspace.
    "isolation/private-workspaces" "K6" [Files] isolation::private_workspaces;
    /// Promise (Process isolation): A guest does not reach files of the host.
    "isolation/host-files-are-out-of-reach" "E1" [] isolation::host_files_are_out_of_reach;
    /// Promise (Process isolation): A guest has no network by default.
    "isolation/no-network" "K10" [] isolation::no_network;

    /// Promise (Contract): `close` is idempotent.
    "sandbox/close-is-idempotent" "K6" [] lifecycle::close_is_idempotent;
    /// Promise (Contract): Every call to a closed sandbox returns `Closed`.
    "sandbox/closed-answers-closed" "K6" [] lifecycle::closed_answers_closed;
    /// Promise (Contract): `close` ends running execs.
    "sandbox/close-ends-execs" "K6" [] lifecycle::close_ends_execs;
    "sandbox/one-shot" "K1" [] lifecycle::one_shot;
    /// Promise (Process isolation): A single command behaves as in a sandbox of its own.
    "sandbox/single-command" "K1" [] lifecycle::single_command;
    "sandbox/execs-in-sequence" "E2" [MultipleExecs] lifecycle::execs_in_sequence;
    "sandbox/ids-are-unique" "E2" [] lifecycle::ids_are_unique;
    /// Promise (Contract): A sandbox keeps the tenant and the labels of its spec.
    "sandbox/spec-is-kept" "K8" [] lifecycle::spec_is_kept;
    "sandbox/invalid-spec" "K1" [] lifecycle::invalid_spec;
    "sandbox/invalid-request" "K1" [] lifecycle::invalid_request;
    "sandbox/root-directory" "E1" [RootDirectory] lifecycle::root_directory;
    "sandbox/root-directory-missing" "E1" [RootDirectory] lifecycle::root_directory_missing;
    "sandbox/unknown-attribute" "K1" [] lifecycle::unknown_attribute;

    /// Promise (Images): A sandbox of an image runs the image's programs, with the settings of the image that its backend honours.
    "image/runs-its-program" "E1" [Image] images::runs_its_program;
    /// Promise (Images): No sandbox of an image sees what another one wrote to its root.
    "image/root-is-private" "E1" [Image] images::root_is_private;
    /// Promise (Images): A missing image is refused with `NotFound`, its name and a remedy.
    "image/missing-is-named" "E1" [Image] images::missing_is_named;

    /// Promise (Files): A guest cannot write to a read-only workspace.
    "workspace/read-only-rejects-writes" "K6" [] workspace::read_only_rejects_writes;
    "workspace/read-only-filled-by-the-file-api" "K6" [Files] workspace::read_only_filled_by_the_file_api;
    "workspace/host-directory" "K4" [HostWorkspace] workspace::host_directory;
    /// Promise (Files): A guest cannot write to a host directory that is mounted read-only.
    "workspace/host-directory-read-only" "K6" [HostWorkspace] workspace::host_directory_read_only;
    /// Promise (Files): The file API does not change a host directory that is mounted read-only.
    "workspace/host-directory-read-only-for-the-file-api" "K6" [HostWorkspace, Files] workspace::host_directory_read_only_for_the_file_api;
    "workspace/host-directory-outlives-the-sandbox" "K4" [HostWorkspace] workspace::host_directory_outlives_the_sandbox;

    /// Promise (Files): A copy-on-write workspace shows a host directory, and changes of the guest never reach it.
    "workspace/copy-on-write" "K4" [CopyOnWrite] workspace::copy_on_write;
    /// Promise (Files): The file API changes the layer of a copy-on-write workspace, and not the host directory.
    "workspace/copy-on-write-for-the-file-api" "K4" [CopyOnWrite, Files] workspace::copy_on_write_for_the_file_api;
    "workspace/copy-on-write-starts-anew" "K4" [CopyOnWrite] workspace::copy_on_write_starts_anew;
    /// Promise (Limits): The disk limit bounds the changes of a copy-on-write workspace.
    "limits/disk-of-copy-on-write" "E4" [CopyOnWrite] limits::disk_of_copy_on_write;

    /// Promise (Files): A guest cannot write to a read-only mount of a host directory.
    "mounts/read-only" "K4" [Mounts] mounts::read_only;
    /// Promise (Files): What a guest writes to a writable mount is on the host.
    "mounts/read-write" "K4" [Mounts] mounts::read_write;
    /// Promise (Limits): A writable mount of the host is refused with a disk limit, which it cannot have.
    "mounts/writable-has-no-size" "E4" [Mounts] mounts::writable_has_no_size;
    /// Promise (Files): Changes in a copy-on-write mount never reach the host, and count against the disk limit.
    "mounts/copy-on-write" "K4" [CopyOnWriteMounts] mounts::copy_on_write;
    "mounts/file" "K4" [Mounts] mounts::file;
    /// Promise (Limits): A mounted tmpfs stores at most its size.
    "mounts/tmpfs" "E4" [Mounts] mounts::tmpfs;
    "mounts/nested" "K4" [Mounts] mounts::nested;
    /// Promise (Files): A rename does not detach a mount below the workspace.
    "mounts/in-the-workspace" "K4" [Mounts] mounts::in_the_workspace;
    /// Promise (Files): What a guest stores on a mounted disk survives its sandbox, and is at most what fits on it.
    "mounts/disk" "K4" [DiskMounts] mounts::disk;
    /// Promise (Files): A guest gets no disk that is missing, a directory, or without a file system.
    "mounts/disk-missing-or-special" "K4" [DiskMounts] mounts::disk_missing_or_special;
    /// Promise (Files): Devices, sockets and links of the host are not mounted.
    "mounts/missing-or-special" "K4" [Mounts] mounts::missing_or_special;

    /// Promise (Files): The file API returns the bytes that it wrote.
    "files/round-trip" "E2" [Files] files::round_trip;
    /// Promise (Files): The file API reads and writes files of 256 MiB.
    "files/large-file" "E2" [Files] files::large_file;
    /// Promise (Files): The guest and the file API see the same files.
    "files/shared-with-the-guest" "E2" [Files] files::shared_with_the_guest;
    /// Promise (Files): The file API replaces a file completely or not at all.
    "files/replaced-whole-or-not-at-all" "E2" [Files] files::replaced_whole_or_not_at_all;
    "files/list" "E2" [Files] files::list;
    "files/remove" "E2" [Files] files::remove;
    /// Promise (Files): A rename moves a file, link or directory in one step, and replaces files and empty directories.
    "files/rename" "E2" [Files] files::rename;
    "files/rename-refused" "E2" [Files] files::rename_refused;
    "files/missing" "E2" [Files] files::missing;
    "files/disk-limit-holds" "E4" [Files] files::disk_limit_holds;

    /// Promise (Files): A copy into and out of a workspace keeps contents, permissions and symlinks.
    "copies/round-trip" "K4" [Files] copies::round_trip;
    "copies/replaces-files" "K4" [Files] copies::replaces_files;
    /// Promise (Files): A copy out of a workspace contains what its patterns select, and nothing else.
    "copies/selects-by-patterns" "K4" [Files] copies::selects_by_patterns;
    /// Promise (Limits): A copy out of a workspace is bounded in number and size of files.
    "copies/bounded" "K4" [Files] copies::bounded;
    /// Promise (Limits): The disk limit bounds a copy into a workspace.
    "copies/disk-limit-holds" "E4" [Files] copies::disk_limit_holds;
    /// Promise (Files): An archive with a path that leads out of the workspace is refused.
    "copies/hostile-archives" "E2" [Files] copies::hostile_archives;
    /// Promise (Files): A copy into a workspace follows no symlink, neither of the archive nor of the guest.
    "copies/links-on-the-way" "E2" [Files] copies::links_on_the_way;
    /// Promise (Files): A copy out of a workspace skips devices, pipes and sockets, and lists them.
    "copies/skips-what-is-no-file" "E2" [Files] copies::skips_special_files;
    /// Promise (Files): A copy stays inside the workspace while a guest swaps a link during the copy.
    "copies/swapped-during-the-copy" "E2" [Files] copies::swapped_during_the_copy;

    /// Promise (Files): The file API refuses `..` and absolute paths that lead out of the workspace.
    "hostile/dot-dot-and-absolute" "E2" [Files] hostile::dot_dot_and_absolute;
    /// Promise (Files): The file API reads no file outside the workspace through a link.
    "hostile/read-through-a-link-outside" "E2" [Files] hostile::read_through_a_link_outside;
    /// Promise (Files): The file API writes no file outside the workspace through a link.
    "hostile/write-through-a-link-outside" "E2" [Files] hostile::write_through_a_link_outside;
    "hostile/list-through-a-link-outside" "E2" [Files] hostile::list_through_a_link_outside;
    "hostile/remove-through-a-link-outside" "E2" [Files] hostile::remove_through_a_link_outside;
    /// Promise (Files): A rename moves no file out of the workspace or into it through a link.
    "hostile/rename-through-a-link-outside" "E2" [Files] hostile::rename_through_a_link_outside;
    "hostile/link-inside-is-followed" "E2" [Files] hostile::link_inside_is_followed;
    "hostile/link-loop" "E2" [Files] hostile::link_loop;
    /// Promise (Files): The file API stays inside the workspace while a guest swaps a link during the call.
    "hostile/link-swapped-during-the-call" "E2" [Files] hostile::link_swapped_during_the_call;
    /// Promise (Files): The file API stays inside the workspace while a guest swaps a directory during the call.
    "hostile/directory-swapped-during-the-call" "E2" [Files] hostile::directory_swapped_during_the_call;
    /// Promise (Files): The file API refuses named pipes and does not open them.
    "hostile/fifo" "E2" [Files] hostile::fifo;
    /// Promise (Files): The file API refuses devices and does not open them.
    "hostile/device" "E2" [Files] hostile::device;
    "hostile/directory-as-file" "E2" [Files] hostile::directory_as_file;

    /// Promise (Limits): The memory of a process is limited.
    "limits/memory" "E4" [] limits::memory;
    /// Promise (Limits): The memory limit covers all processes together.
    "limits/memory-over-processes" "E4" [] limits::memory_over_processes;
    /// Promise (Limits): A kill of a child for memory is reported as a limit hit.
    "limits/memory-kill-of-a-child-is-reported" "E4" [] limits::memory_kill_of_a_child_is_reported;
    /// Promise (Limits): A program can use its memory up to the limit.
    "limits/memory-below-is-usable" "E4" [] limits::memory_below_is_usable;
    /// Promise (Limits): The CPU time of a process is limited.
    "limits/cpu" "E4" [] limits::cpu;
    /// Promise (Limits): The CPU limit covers all processes together.
    "limits/cpu-over-processes" "E4" [] limits::cpu_over_processes;
    /// Promise (Limits): The CPU limit covers grandchildren.
    "limits/cpu-of-grandchildren" "E4" [] limits::cpu_of_grandchildren;
    /// Promise (Limits): The CPU limit of an exec counts from its start: earlier execs do not reduce it.
    "limits/cpu-counts-from-the-start-of-an-exec" "E4" [MultipleExecs] limits::cpu_counts_from_the_start_of_an_exec;
    /// Promise (Limits): The number of processes and threads is limited.
    "limits/processes" "E4" [] limits::processes;
    "limits/processes-limit-is-named" "E4" [] limits::processes_limit_is_named;
    /// Promise (Limits): The stored bytes are limited.
    "limits/disk" "E4" [] limits::disk;
    /// Promise (Limits): The disk limit does not depend on the memory limit.
    "limits/disk-beyond-memory" "E4" [] limits::disk_beyond_memory;
    /// Promise (Limits): The disk limit covers all writable directories together.
    "limits/disk-over-directories" "E4" [] limits::disk_over_directories;
    "limits/disk-in-a-host-directory" "E4" [HostWorkspace] limits::disk_in_a_host_directory;
    /// Promise (Limits): The wall time of a sandbox is limited.
    "limits/wall-time" "E4" [] limits::wall_time;
    /// Promise (Limits): The timeout of a request takes precedence.
    "limits/request-timeout-wins" "E4" [] limits::request_timeout_wins;

    /// Promise (Posture): The posture has a row for every protection.
    "posture/has-every-row" "E1" [] posture::has_every_row;
    /// Promise (Posture): The posture has no shortfall that the spec does not allow.
    "posture/no-shortfall-unless-allowed" "E1" [] posture::no_shortfall_unless_allowed;
    /// Promise (Posture): The posture names the limits that the spec does not set.
    "posture/says-what-was-not-asked" "E1" [] posture::lists_unrequested_protections;
    /// Promise (Posture): The posture agrees with what the kernel shows inside.
    "posture/agrees-with-the-kernel" "E1" [] posture::agrees_with_the_kernel;
    /// Promise (Posture): The posture agrees with the processes that a guest sees.
    "posture/agrees-on-processes" "E1" [] posture::agrees_on_processes;
    /// Promise (Posture): The posture agrees with the root file system that a guest sees.
    "posture/agrees-on-the-root" "E1" [] posture::agrees_on_the_root;

    /// Promise (Contract): A connection to a port of a sandbox passes bytes both ways, and each direction ends by itself.
    "connect/echo-with-half-close" "K10" [Connect] connect::echo_with_half_close;
    /// Promise (Contract): Connections to a sandbox do not affect each other.
    "connect/several-at-once" "K10" [Connect] connect::several_at_once;
    /// Promise (Contract): A connection to a port without a server fails with `Unavailable`.
    "connect/unused-port-is-unavailable" "K10" [Connect] connect::unused_port_is_unavailable;
    /// Promise (Contract): A connection ends with its sandbox.
    "connect/ends-with-the-sandbox" "K10" [Connect] connect::ends_with_the_sandbox;

    /// Promise (Files): A watch reports what a guest creates, changes, renames and removes.
    "watch/changes-are-reported" "K4" [Watch] watch::changes_are_reported;
    /// Promise (Files): A watch includes new directories, and what was in them before.
    "watch/new-directories-are-included" "K4" [Watch] watch::new_directories_are_included;
    "watch/single-directory" "K4" [Watch] watch::single_directory;
    /// Promise (Files): A watch reports changes that the file API makes.
    "watch/file-api-is-reported" "K4" [Watch, Files] watch::file_api_is_reported;
    /// Promise (Files): Many writes to one file become few events.
    "watch/writes-are-coalesced" "K4" [Watch] watch::writes_are_coalesced;
    /// Promise (Files): More changed paths than the maximum are reported once as an overflow.
    "watch/overflow-is-reported-once" "K4" [Watch] watch::overflow_is_reported_once;
    /// Promise (Files): A watch sees what a guest changes in a copy-on-write workspace.
    "watch/copy-on-write" "K4" [Watch, CopyOnWrite] watch::copy_on_write;
    "watch/host-directory" "K4" [Watch, HostWorkspace] watch::host_directory;
    /// Promise (Files): A watch ends with its sandbox, after the last changes.
    "watch/ends-with-the-sandbox" "K4" [Watch] watch::ends_with_the_sandbox;
    /// Promise (Files): A dropped watch is free for another one.
    "watch/dropped-watches-are-free" "K4" [Watch] watch::dropped_watches_are_free;
    "watch/invalid-paths-are-refused" "K4" [Watch] watch::invalid_paths_are_refused;
    /// Promise (Files): A watch follows no link, and reports nothing outside the workspace.
    "watch/links-are-not-followed" "K4" [Watch] watch::links_are_not_followed;
    /// Promise (Files): A directory that becomes a link again and again leads a watch to nothing outside.
    "watch/swapped-directory-is-not-followed" "K4" [Watch] watch::swapped_directory_is_not_followed;

    /// Promise (Network): A sandbox with a policy looks up the names of the policy, and no others.
    "network/names-of-the-policy-alone" "K10" [NetworkAllowlist] network::names_of_the_policy_alone;
    /// Promise (Network): A sandbox with a policy connects to the names and ports of the policy, and to nothing else.
    "network/connections-of-the-policy-alone" "K10" [NetworkAllowlist] network::connections_of_the_policy_alone;
    /// Promise (Network): A policy gives a sandbox no interface or route of the host's network.
    "network/no-interface-but-loopback" "K10" [NetworkAllowlist] network::no_interface_but_loopback;
    /// Promise (Network): A denial names what was refused and what would allow it.
    "network/denials-name-the-look-up" "K10" [NetworkAllowlist] network::denials_name_the_look_up;
    /// Promise (Network): The policy of a live sandbox can be replaced, unless the backend answers `Unsupported`.
    "network/policy-of-a-live-sandbox" "K10" [NetworkAllowlist] network::policy_of_a_live_sandbox;
    /// Promise (Network): A policy with a host that is not valid, or that the backend cannot reach, is refused with a remedy.
    "network/refused-hosts-have-a-remedy" "K10" [NetworkAllowlist] network::refused_hosts_have_a_remedy;

    "snapshot/restores-files" "E2" [Snapshot, Files] snapshot::restores_files;
    "snapshot/of-another-backend" "E2" [Snapshot] snapshot::of_another_backend;
    /// Promise (Contract): A snapshot of one tenant is refused to another tenant.
    "snapshot/of-another-tenant" "E2" [Snapshot] snapshot::of_another_tenant;
    "snapshot/forks-are-independent" "E2" [Fork, Files] snapshot::forks_are_independent;

    /// Promise (Contract): A pause stops all programs of a sandbox, and they resume where they stopped.
    "pause/stops-and-goes-on" "E2" [Pause, StreamingStdin] pause::stops_and_goes_on;
    /// Promise (Contract): The time of a pause does not count against the timeout of an exec.
    "pause/time-stands-still" "E2" [Pause, StreamingStdin] pause::time_stands_still;
    /// Promise (Contract): A cancel during a pause takes effect when the sandbox resumes.
    "pause/cancel-takes-effect-when-it-goes-on" "E2" [Pause] pause::cancel_takes_effect_when_it_goes_on;
    /// Promise (Contract): A paused sandbox refuses new execs and file calls.
    "pause/calls-are-refused-meanwhile" "E2" [Pause, Files] pause::calls_are_refused_meanwhile;
    /// Promise (Contract): A paused sandbox can be closed.
    "pause/closes-while-paused" "E2" [Pause] pause::closes_while_paused;

    /// Promise (Warm sandboxes and pools): A claimed sandbox equals a created one in spec, posture and environment.
    "warm/claimed-as-created" "E5" [Warm] prepared::claimed_as_created;
    /// Promise (Warm sandboxes and pools): A claimed sandbox has the limits, the tenant and the labels of its claim.
    "warm/spec-is-the-claims" "E5" [Warm] prepared::spec_is_the_claims;
    /// Promise (Warm sandboxes and pools): A claimed sandbox has the environment of its requests only.
    "warm/environment-is-a-delta" "E5" [Warm] prepared::environment_is_a_delta;
    /// Promise (Warm sandboxes and pools): A claimed sandbox has the workspace access of its claim.
    "warm/access-is-the-claims" "E5" [Warm] prepared::access_is_the_claims;
    /// Promise (Warm sandboxes and pools): A claimed sandbox has the process limit of its claim.
    "warm/processes-are-the-claims" "E5" [Warm] prepared::processes_are_the_claims;
    /// Promise (Warm sandboxes and pools): A claimed sandbox has the disk limit of its claim.
    "warm/disk-is-the-claims" "E5" [Warm] prepared::disk_is_the_claims;
    /// Promise (Warm sandboxes and pools): A backend refuses a claim that would be weaker than its spec requires.
    "warm/weaker-claims-are-refused" "E5" [Warm] prepared::weaker_claims_are_refused;
    "warm/invalid-specs-are-refused" "E5" [Warm] prepared::invalid_specs_are_refused;
    /// Promise (Warm sandboxes and pools): A warm sandbox that is closed unclaimed leaves nothing.
    "warm/closes-unused" "E5" [Warm] prepared::closes_unused;
    /// Promise (Warm sandboxes and pools): Two claims give two sandboxes that share no file.
    "warm/claims-share-nothing" "E5" [Warm, Files] prepared::claims_share_nothing;

    "undeclared/multiple-execs" "K6" [] undeclared::multiple_execs;
    "undeclared/streaming-stdin" "K6" [] undeclared::streaming_stdin;
    /// Promise (Contract): A backend that does not declare terminals answers `Unsupported` to them.
    "undeclared/terminal" "K6" [] undeclared::terminal;
    /// Promise (Contract): A backend that does not declare the file API answers `Unsupported` to it.
    "undeclared/files" "K6" [] undeclared::files;
    "undeclared/host-workspace" "K6" [] undeclared::host_workspace;
    "undeclared/copy-on-write" "K6" [] undeclared::copy_on_write;
    "undeclared/mounts" "K6" [] undeclared::mounts;
    "undeclared/copy-on-write-mounts" "K6" [] undeclared::copy_on_write_mounts;
    "undeclared/disk-mounts" "K6" [] undeclared::disk_mounts;
    "undeclared/root-directory" "K6" [] undeclared::root_directory;
    "undeclared/image" "K6" [] undeclared::image;
    "undeclared/pause" "K6" [] undeclared::pause;
    /// Promise (Contract): A backend that does not declare snapshots answers `Unsupported` to them.
    "undeclared/snapshot" "K6" [] undeclared::snapshot;
    "undeclared/fork" "K6" [] undeclared::fork;
    /// Promise (Contract): A backend that does not declare warm sandboxes answers `Unsupported` to them.
    "undeclared/warm" "K6" [] undeclared::warm;
    /// Promise (Contract): A backend that does not declare network allowlists answers `Unsupported` to them.
    "undeclared/network-allowlist" "K6" [] undeclared::network_allowlist;
    /// Promise (Contract): A backend that does not declare connections answers `Unsupported` to them.
    "undeclared/connect" "K6" [] undeclared::connect;
    /// Promise (Contract): A backend that does not declare watches answers `Unsupported` to them.
    "undeclared/watch" "K6" [] undeclared::watch;
    "undeclared/unix-programs" "K6" [] undeclared::unix_programs;
}

#[cfg(test)]
mod tests {
    use super::CASES;

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<&str> = CASES.iter().map(|case| case.info.name).collect();
        assert_eq!(names.len(), CASES.len());
    }
}
