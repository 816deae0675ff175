//! Other sandboxing programs, with command lines for the configuration closest to Cofferdam's: no network, processes of
//! its own, the host's programs read-only, no privileges, and limits if supported. `docs/performance.md` lists the
//! differences.

use std::path::Path;

use super::workload::Workload;

/// The image for Docker. It contains only links into `/usr`, which is mounted.
pub const IMAGE: &str = "cofferdam-bench:peer";
/// The sandbox number for isolate, which has a thousand.
pub const BOX: &str = "987";

/// Another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// bubblewrap.
    Bubblewrap,
    /// nsjail.
    Nsjail,
    /// firejail.
    Firejail,
    /// isolate, for programming contests.
    Isolate,
    /// Docker, through its command line and daemon.
    Docker,
    /// runc, the OCI runtime below Docker.
    Runc,
    /// crun, the OCI runtime in C.
    Crun,
    /// runsc, gVisor's OCI runtime, with a kernel of its own.
    Runsc,
    /// srt, Anthropic's sandbox runtime, which uses bubblewrap.
    Srt,
}

/// The inputs of a command line.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The directory of the peers' files, created by [`super::stage::Stage`].
    pub dir: &'a Path,
    /// A number that no other run of this process uses.
    pub serial: u64,
}

impl Scene<'_> {
    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn id(&self) -> String {
        format!("{}{}", id_prefix(), self.serial)
    }
}

/// Returns the name prefix of all containers of this process.
pub fn id_prefix() -> String {
    format!("cofferdam-bench-{}-", std::process::id())
}

impl Peer {
    /// All peers, in the order of the tables.
    pub const ALL: &[Self] = &[
        Self::Bubblewrap,
        Self::Nsjail,
        Self::Isolate,
        Self::Firejail,
        Self::Crun,
        Self::Runc,
        Self::Runsc,
        Self::Docker,
        Self::Srt,
    ];

    /// Returns the program, which is also the short name.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bwrap",
            Self::Nsjail => "nsjail",
            Self::Firejail => "firejail",
            Self::Isolate => "isolate",
            Self::Docker => "docker",
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::Runsc => "runsc",
            Self::Srt => "srt",
        }
    }

    /// Returns the display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bwrap --unshare-all",
            Self::Docker => "docker run",
            Self::Runc => "runc run",
            Self::Crun => "crun run",
            Self::Runsc => "runsc run (gVisor)",
            Self::Isolate => "isolate --run",
            Self::Nsjail | Self::Firejail | Self::Srt => self.slug(),
        }
    }

    /// Returns additional options that are needed on some hosts, each with the resulting weakness. They are tried in
    /// order.
    pub fn variants(self) -> &'static [(&'static [&'static str], &'static str)] {
        match self {
            Self::Nsjail => &[(&[], ""), (&["--disable_clone_newcgroup"], "without a cgroup namespace")],
            Self::Runsc => &[(&[], ""), (&["--ignore-cgroups"], "without limits on memory and processes")],
            _ => &[(&[], "")],
        }
    }

    /// Returns the whole command line, program first.
    pub fn command_line(self, variant: &[&str], workload: Workload, scene: &Scene<'_>) -> Vec<String> {
        let mut line = vec![self.slug().to_owned()];
        line.extend(self.options(workload, scene));
        // The options of a variant are global. They precede the subcommand or the command.
        line.splice(1..1, variant.iter().map(|word| (*word).to_owned()));
        if self.takes_argv() {
            line.extend(workload.argv().iter().map(|word| (*word).to_owned()));
        }
        line
    }

    /// Returns true if the command is passed as arguments. Other peers have it in a file or as a line for a shell.
    fn takes_argv(self) -> bool {
        !matches!(self, Self::Runc | Self::Crun | Self::Runsc | Self::Srt)
    }

    fn options(self, workload: Workload, scene: &Scene<'_>) -> Vec<String> {
        match self {
            Self::Bubblewrap => words("--unshare-all --ro-bind / / --proc /proc --dev /dev"),
            Self::Nsjail => words(
                "--mode o --really_quiet --chroot / --user 65534 --group 65534 --tmpfsmount /tmp --rlimit_as 512 \
                 --rlimit_cpu 30 --time_limit 60 --",
            ),
            Self::Firejail => words(
                "--quiet --noprofile --net=none --private --private-dev --private-tmp --seccomp --caps.drop=all \
                 --nonewprivs --nogroups --rlimit-as=536870912 --rlimit-cpu=30 --",
            ),
            Self::Isolate => {
                words(&format!("--box-id={BOX} --silent --processes=10 --mem=524288 --time=30 --wall-time=60 --run --"))
            }
            Self::Docker => words(&format!(
                "run --rm --pull never --network none --read-only --tmpfs /tmp --cap-drop ALL --security-opt \
                 no-new-privileges --user 65534:65534 --pids-limit 10 --memory 512m --volume /usr:/usr:ro --name {} \
                 {IMAGE}",
                scene.id()
            )),
            Self::Runc | Self::Crun => self.oci(&[], workload, scene),
            Self::Runsc => self.oci(&["--network=none"], workload, scene),
            Self::Srt => {
                let line = workload.shell_line();
                vec!["--settings".into(), scene.file("srt.json"), "-c".into(), line]
            }
        }
    }

    fn oci(self, global: &[&str], workload: Workload, scene: &Scene<'_>) -> Vec<String> {
        let mut line = vec!["--root".to_owned(), scene.file(&format!("state-{}", self.slug()))];
        line.extend(global.iter().map(|word| (*word).to_owned()));
        line.extend(["run".into(), "--bundle".into(), scene.file(workload.slug()), scene.id()]);
        line
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(peer: Peer, variant: &[&str], workload: Workload) -> String {
        peer.command_line(variant, workload, &Scene { dir: Path::new("/stage"), serial: 7 }).join(" ")
    }

    #[test]
    fn the_command_stands_at_the_end_where_it_is_not_in_a_file() {
        assert_eq!(
            line(Peer::Bubblewrap, &[], Workload::True),
            "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev /bin/true"
        );
        for peer in Peer::ALL.iter().filter(|peer| peer.takes_argv()) {
            let line = line(*peer, &[], Workload::Python);
            assert!(line.ends_with(" /usr/bin/python3 -I -S -c print(1)"), "{line}");
        }
        assert_eq!(line(Peer::Srt, &[], Workload::True), "srt --settings /stage/srt.json -c '/bin/true'");
    }

    #[test]
    fn an_oci_runtime_is_given_a_bundle_of_the_workload_and_a_name_of_its_own() {
        let own = std::process::id();
        assert_eq!(
            line(Peer::Runsc, Peer::Runsc.variants()[1].0, Workload::Python),
            format!(
                "runsc --ignore-cgroups --root /stage/state-runsc --network=none run --bundle /stage/python \
                 cofferdam-bench-{own}-7"
            )
        );
        let first = Peer::Runc.command_line(&[], Workload::True, &Scene { dir: Path::new("/s"), serial: 1 });
        let second = Peer::Runc.command_line(&[], Workload::True, &Scene { dir: Path::new("/s"), serial: 2 });
        assert_ne!(first, second);
    }

    #[test]
    fn no_sandbox_gets_a_network() {
        for (peer, word) in [
            (Peer::Bubblewrap, "--unshare-all"),
            (Peer::Firejail, "--net=none"),
            (Peer::Docker, "--network none"),
            (Peer::Runsc, "--network=none"),
        ] {
            assert!(line(peer, &[], Workload::True).contains(word), "{peer:?}");
        }
    }

    #[test]
    fn weaker_protections_of_a_variant_are_reported() {
        for peer in Peer::ALL {
            for (options, weaker) in peer.variants() {
                assert_eq!(options.is_empty(), weaker.is_empty(), "{peer:?}");
            }
        }
    }
}
