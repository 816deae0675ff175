//! Tests of the measurements, and of the agent's part of the isolation.

use std::collections::BTreeSet;

use cofferdam_contract::{Access, SandboxPath};
use cofferdam_guest::{Groups, Settings, usual_rules};

use crate::enclosure::connect;
use crate::execs::shell;

#[tokio::test]
async fn evidence_matches_the_enclosure() {
    let (enclosure, guest, evidence) = connect(Settings::default()).await.unwrap();
    assert_eq!((evidence.pid, &evidence.uids[..], &evidence.gids[..]), (1, &[1000; 4][..], &[1000; 4][..]));
    assert_eq!(evidence.capabilities, [Some(0); 5]);
    assert!(evidence.no_new_privileges && evidence.seccomp_filtered && evidence.exec_tags);
    let through: Vec<_> = evidence.calls.iter().filter(|call| call.was_let_through()).collect();
    assert!(through.is_empty() && evidence.calls.len() > 15, "{through:?}");
    assert!(evidence.writes.iter().all(|trial| !trial.worked), "{:?}", evidence.writes);
    assert_eq!(evidence.interfaces, Some(vec![]));
    assert_eq!(evidence.uid_map[0][0], 1000);
    assert!(evidence.sockets.is_empty());
    assert_eq!((evidence.bounds.version, evidence.counts_cpu), (0, false), "the host's control groups do not count");
    let ours = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string();
    let agent = enclosure.agent();
    for (name, inode) in &evidence.namespaces {
        let theirs = std::fs::read_link(format!("/proc/{agent}/ns/{name}")).unwrap().display().to_string();
        assert!(theirs.contains(&format!("[{inode}]")), "{name}");
        assert_eq!(theirs == ours(name), name == "cgroup", "{name}");
    }
    assert_eq!(evidence.namespaces.len(), 7);
    let workspace = evidence.mount_of("/workspace/x").unwrap();
    assert_eq!((workspace.path.as_str(), workspace.kind.as_str()), ("/workspace", "tmpfs"));
    let space = workspace.space.unwrap();
    assert_eq!((space.bytes, space.files), (400 << 20, 20_000));
    assert!(evidence.mount_of("/").unwrap().read_only);
    if cofferdam_linux::landlock::abi() > 0 {
        assert!(evidence.landlock && evidence.landlock_abi == cofferdam_linux::landlock::abi());
    }
    assert_eq!(evidence.workspace_writable, Some(true));
    assert!(shell(&guest, "true").await.0.success());
}

#[tokio::test]
async fn a_read_only_workspace_is_for_guests_and_not_for_the_file_api() {
    if cofferdam_linux::landlock::abi() == 0 {
        println!("skipped: this kernel has no Landlock");
        return;
    }
    let settings = Settings { rules: usual_rules(Access::ReadOnly), ..Settings::default() };
    let (_enclosure, guest, evidence) = connect(settings).await.unwrap();
    assert_eq!(evidence.workspace_writable, Some(false));
    let file = SandboxPath::new("file").unwrap();
    guest.write_file(&file, Box::new(&b"there"[..])).await.unwrap();
    let (_, text) =
        shell(&guest, "cat file; echo x > file || echo refused; rm -f file || echo kept; touch new || echo none").await;
    assert_eq!(text, "thererefused\nkept\nnone\n");
}

#[tokio::test]
async fn without_filter_and_rules_nothing_is_claimed() {
    let settings = Settings { filter: None, rules: vec![], groups: Groups::Never, ..Settings::default() };
    let (_enclosure, guest, evidence) = connect(settings).await.unwrap();
    assert!(!evidence.seccomp_filtered && !evidence.landlock);
    let through: BTreeSet<_> =
        evidence.calls.iter().filter(|call| call.was_let_through()).map(|call| call.name).collect();
    assert!(through.contains("io_uring_setup") && through.contains("unshare"), "{through:?}");
    assert!(evidence.no_new_privileges, "the agent always sets it");
    assert!(shell(&guest, "true").await.0.success());
}

#[tokio::test]
async fn guests_have_the_isolation_of_the_agent() {
    let (_enclosure, guest, _) = connect(Settings::default()).await.unwrap();
    let (_, status) =
        shell(&guest, "grep -E '^(NoNewPrivs|Seccomp|CapEff|CapBnd):' /proc/self/status | tr -d '\\t'").await;
    assert_eq!(status, "CapEff:0000000000000000\nCapBnd:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n");
    // The kernel kills guests before the agent, whose score is unchanged.
    let (_, scores) = shell(&guest, "cat /proc/self/oom_score_adj").await;
    assert_eq!(scores, "500\n");
    // A guest can neither remove nor replace its exec tag.
    let line = "python3 -c 'import resource\ntry:\n resource.prlimit(0, 15, (9, 9))\nexcept (PermissionError, OSError, ValueError): print(\"refused\")'";
    assert_eq!(shell(&guest, line).await.1, "refused\n");
}
