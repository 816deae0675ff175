//! The table of cases. To add a case, add a line here and a function in the file of its subject.

mod cancel;
mod environment;
mod exit;
mod files;
mod hostile;
mod isolation;
mod lifecycle;
mod limits;
mod output;
mod pause;
mod posture;
mod snapshot;
mod stdin;
mod terminal;
pub(crate) mod undeclared;
mod warm;
mod workspace;

use crate::CaseInfo;
use crate::case::Case;
use cofferdam_contract::Capability;

macro_rules! cases {
    ($($name:literal $requirement:literal [$($need:ident),*] $function:path;)*) => {
        pub(crate) const CASES: &[Case] = &[$(Case {
            info: CaseInfo { name: $name, requirement: $requirement, needs: &[$(Capability::$need),*] },
            run: |context| Box::pin($function(context)),
        }),*];
    };
}

cases! {
    "exit/success-with-full-output" "K6" [] exit::success_with_full_output;
    "exit/code-verbatim" "K6" [] exit::code_verbatim;
    "exit/signal" "K3" [] exit::signal;
    "exit/timeout" "K6" [] exit::timeout;
    "exit/timeout-although-term-ignored" "K3" [] exit::timeout_although_term_ignored;
    "exit/timeout-although-output-closed" "K3" [] exit::timeout_although_output_closed;
    "exit/timeout-kills-the-tree" "K3" [Files] exit::timeout_kills_the_tree;
    "exit/command-not-found" "K1" [] exit::command_not_found;
    "exit/command-not-executable" "K1" [Files] exit::command_not_executable;
    "exit/awaited-by-many" "K2" [] exit::awaited_by_many;
    "exit/usage-is-reported" "K3" [] exit::usage_is_reported;

    "cancel/idempotent-and-surfaces-as-a-signal" "K6" [] cancel::idempotent_and_surfaces_as_a_signal;
    "cancel/sends-term-first" "K2" [] cancel::sends_term_first;
    "cancel/kills-after-the-grace" "K2" [] cancel::kills_after_the_grace;
    "cancel/kills-daemonised-grandchildren" "K2" [Files] cancel::kills_daemonised_grandchildren;
    "cancel/after-the-end-changes-nothing" "K2" [] cancel::after_the_end_changes_nothing;
    "cancel/close-is-idempotent" "K2" [] cancel::close_is_idempotent;
    "cancel/dropping-the-handle-kills" "K2" [Files] cancel::dropping_the_handle_kills;

    "output/binary" "K2" [] output::binary;
    "output/order-within-each-stream" "K2" [] output::order_within_each_stream;
    "output/truncated-exactly" "K6" [] output::truncated_exactly;
    "output/not-truncated-at-the-limit" "K6" [] output::not_truncated_at_the_limit;
    "output/truncation-counts-both-streams" "K6" [] output::truncation_counts_both_streams;
    "output/live" "K2" [StreamingStdin] output::live;
    "output/late-subscriber" "K4" [StreamingStdin] output::late_subscriber;
    "output/slow-subscriber" "K4" [] output::slow_subscriber;

    "stdin/empty-is-end-of-file" "K11" [] stdin::empty_is_end_of_file;
    "stdin/bytes-then-end-of-file" "K11" [] stdin::bytes_then_end_of_file;
    "stdin/one-mebibyte-through" "K11" [] stdin::one_mebibyte_through;
    "stdin/stream-with-end-of-file" "K11" [StreamingStdin] stdin::stream_with_end_of_file;
    "stdin/dropping-the-writer-is-end-of-file" "K11" [StreamingStdin] stdin::dropping_the_writer_is_end_of_file;
    "stdin/unread-input-blocks-nothing" "K11" [] stdin::unread_input_blocks_nothing;

    "terminal/is-one-of-the-size-asked" "K11" [Terminal, StreamingStdin] terminal::is_one_of_the_size_asked;
    "terminal/resize" "K11" [Terminal, StreamingStdin] terminal::resize;
    "terminal/control-c-interrupts" "K11" [Terminal, StreamingStdin] terminal::control_c_interrupts;
    "terminal/none-unless-asked" "K11" [] terminal::none_unless_asked;

    "environment/is-a-delta" "K4" [] environment::is_a_delta;
    "environment/unset-and-replace" "K4" [] environment::unset_and_replace;
    "environment/working-dir" "K4" [Files] environment::working_dir;
    "environment/shell-and-script" "C3" [UnixPrograms] environment::shell_and_script;

    "isolation/concurrent-sandboxes" "K6" [] isolation::concurrent_sandboxes;
    "isolation/concurrent-execs" "K6" [MultipleExecs] isolation::concurrent_execs;
    "isolation/private-workspaces" "K6" [Files] isolation::private_workspaces;
    "isolation/host-files-are-out-of-reach" "E1" [] isolation::host_files_are_out_of_reach;
    "isolation/no-network" "K10" [] isolation::no_network;

    "sandbox/close-is-idempotent" "K6" [] lifecycle::close_is_idempotent;
    "sandbox/closed-answers-closed" "K6" [] lifecycle::closed_answers_closed;
    "sandbox/close-ends-execs" "K6" [] lifecycle::close_ends_execs;
    "sandbox/one-shot" "K1" [] lifecycle::one_shot;
    "sandbox/single-command" "K1" [] lifecycle::single_command;
    "sandbox/execs-in-sequence" "E2" [MultipleExecs] lifecycle::execs_in_sequence;
    "sandbox/ids-are-unique" "E2" [] lifecycle::ids_are_unique;
    "sandbox/spec-is-kept" "K8" [] lifecycle::spec_is_kept;
    "sandbox/invalid-spec" "K1" [] lifecycle::invalid_spec;
    "sandbox/invalid-request" "K1" [] lifecycle::invalid_request;
    "sandbox/root-directory" "E1" [RootDirectory] lifecycle::root_directory;
    "sandbox/root-directory-missing" "E1" [RootDirectory] lifecycle::root_directory_missing;
    "sandbox/unknown-attribute" "K1" [] lifecycle::unknown_attribute;

    "workspace/read-only-rejects-writes" "K6" [] workspace::read_only_rejects_writes;
    "workspace/read-only-filled-by-the-file-api" "K6" [Files] workspace::read_only_filled_by_the_file_api;
    "workspace/host-directory" "K4" [HostWorkspace] workspace::host_directory;
    "workspace/host-directory-read-only" "K6" [HostWorkspace] workspace::host_directory_read_only;
    "workspace/host-directory-read-only-for-the-file-api" "K6" [HostWorkspace, Files] workspace::host_directory_read_only_for_the_file_api;
    "workspace/host-directory-outlives-the-sandbox" "K4" [HostWorkspace] workspace::host_directory_outlives_the_sandbox;

    "files/round-trip" "E2" [Files] files::round_trip;
    "files/large-file" "E2" [Files] files::large_file;
    "files/shared-with-the-guest" "E2" [Files] files::shared_with_the_guest;
    "files/replaced-whole-or-not-at-all" "E2" [Files] files::replaced_whole_or_not_at_all;
    "files/list" "E2" [Files] files::list;
    "files/remove" "E2" [Files] files::remove;
    "files/missing" "E2" [Files] files::missing;
    "files/disk-limit-holds" "E4" [Files] files::disk_limit_holds;

    "hostile/dot-dot-and-absolute" "E2" [Files] hostile::dot_dot_and_absolute;
    "hostile/read-through-a-link-outside" "E2" [Files] hostile::read_through_a_link_outside;
    "hostile/write-through-a-link-outside" "E2" [Files] hostile::write_through_a_link_outside;
    "hostile/list-through-a-link-outside" "E2" [Files] hostile::list_through_a_link_outside;
    "hostile/remove-through-a-link-outside" "E2" [Files] hostile::remove_through_a_link_outside;
    "hostile/link-inside-is-followed" "E2" [Files] hostile::link_inside_is_followed;
    "hostile/link-loop" "E2" [Files] hostile::link_loop;
    "hostile/link-swapped-during-the-call" "E2" [Files] hostile::link_swapped_during_the_call;
    "hostile/directory-swapped-during-the-call" "E2" [Files] hostile::directory_swapped_during_the_call;
    "hostile/fifo" "E2" [Files] hostile::fifo;
    "hostile/device" "E2" [Files] hostile::device;
    "hostile/directory-as-file" "E2" [Files] hostile::directory_as_file;

    "limits/memory" "E4" [] limits::memory;
    "limits/memory-over-processes" "E4" [] limits::memory_over_processes;
    "limits/memory-kill-of-a-child-is-reported" "E4" [] limits::memory_kill_of_a_child_is_reported;
    "limits/memory-below-is-usable" "E4" [] limits::memory_below_is_usable;
    "limits/cpu" "E4" [] limits::cpu;
    "limits/cpu-over-processes" "E4" [] limits::cpu_over_processes;
    "limits/cpu-of-grandchildren" "E4" [] limits::cpu_of_grandchildren;
    "limits/cpu-of-another-exec" "E4" [MultipleExecs, StreamingStdin] limits::cpu_of_another_exec;
    "limits/processes" "E4" [] limits::processes;
    "limits/processes-limit-is-named" "E4" [] limits::processes_limit_is_named;
    "limits/disk" "E4" [] limits::disk;
    "limits/disk-beyond-memory" "E4" [] limits::disk_beyond_memory;
    "limits/disk-over-directories" "E4" [] limits::disk_over_directories;
    "limits/disk-in-a-host-directory" "E4" [HostWorkspace] limits::disk_in_a_host_directory;
    "limits/wall-time" "E4" [] limits::wall_time;
    "limits/request-timeout-wins" "E4" [] limits::request_timeout_wins;

    "posture/has-every-row" "E1" [] posture::has_every_row;
    "posture/no-shortfall-unless-allowed" "E1" [] posture::no_shortfall_unless_allowed;
    "posture/says-what-was-not-asked" "E1" [] posture::says_what_was_not_asked;
    "posture/agrees-with-the-kernel" "E1" [] posture::agrees_with_the_kernel;
    "posture/agrees-on-processes" "E1" [] posture::agrees_on_processes;
    "posture/agrees-on-the-root" "E1" [] posture::agrees_on_the_root;

    "snapshot/restores-files" "E2" [Snapshot, Files] snapshot::restores_files;
    "snapshot/of-another-backend" "E2" [Snapshot] snapshot::of_another_backend;
    "snapshot/forks-are-independent" "E2" [Fork, Files] snapshot::forks_are_independent;

    "pause/stops-and-goes-on" "E2" [Pause, StreamingStdin] pause::stops_and_goes_on;
    "pause/time-stands-still" "E2" [Pause, StreamingStdin] pause::time_stands_still;
    "pause/cancel-takes-effect-when-it-goes-on" "E2" [Pause] pause::cancel_takes_effect_when_it_goes_on;
    "pause/calls-are-refused-meanwhile" "E2" [Pause, Files] pause::calls_are_refused_meanwhile;
    "pause/closes-while-paused" "E2" [Pause] pause::closes_while_paused;

    "warm/claimed-as-created" "E5" [Warm] warm::claimed_as_created;
    "warm/spec-is-the-claims" "E5" [Warm] warm::spec_is_the_claims;
    "warm/environment-is-a-delta" "E5" [Warm] warm::environment_is_a_delta;
    "warm/access-is-the-claims" "E5" [Warm] warm::access_is_the_claims;
    "warm/processes-are-the-claims" "E5" [Warm] warm::processes_are_the_claims;
    "warm/disk-is-the-claims" "E5" [Warm] warm::disk_is_the_claims;
    "warm/weaker-claims-are-refused" "E5" [Warm] warm::weaker_claims_are_refused;
    "warm/invalid-specs-are-refused" "E5" [Warm] warm::invalid_specs_are_refused;
    "warm/closes-unused" "E5" [Warm] warm::closes_unused;
    "warm/claims-share-nothing" "E5" [Warm, Files] warm::claims_share_nothing;

    "undeclared/multiple-execs" "K6" [] undeclared::multiple_execs;
    "undeclared/streaming-stdin" "K6" [] undeclared::streaming_stdin;
    "undeclared/terminal" "K6" [] undeclared::terminal;
    "undeclared/files" "K6" [] undeclared::files;
    "undeclared/host-workspace" "K6" [] undeclared::host_workspace;
    "undeclared/root-directory" "K6" [] undeclared::root_directory;
    "undeclared/image" "K6" [] undeclared::image;
    "undeclared/pause" "K6" [] undeclared::pause;
    "undeclared/snapshot" "K6" [] undeclared::snapshot;
    "undeclared/fork" "K6" [] undeclared::fork;
    "undeclared/warm" "K6" [] undeclared::warm;
    "undeclared/network-allowlist" "K6" [] undeclared::network_allowlist;
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
