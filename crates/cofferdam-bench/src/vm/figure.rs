//! The measured times.

/// A time that is measured repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Figure {
    /// QEMU with its usual options.
    Plain,
    /// QEMU with the machine type and kernel command line of Cofferdam's VMs.
    PlainMicrovm,
    /// A container.
    Docker,
    /// A cold boot.
    Cold,
    /// A restore from a snapshot, up to the first exec.
    Restore,
    /// The part of it until the VM exists.
    RestoreAlone,
    /// A second exec in it.
    RestoreSecond,
    /// A claim of a prepared VM, up to the first exec.
    Claim,
    /// The part of it until the VM belongs to the request.
    ClaimAlone,
    /// An exec in a live VM.
    Exec,
    /// A snapshot.
    Snapshot,
    /// A snapshot without the time to copy its memory.
    SnapshotBeside,
    /// A snapshot, ten VMs from it, and a program in each.
    Fork,
    /// The part of it until the last of the ten exists: its agent has answered, and it has an identity of its own.
    ForkAnswered,
}

impl Figure {
    /// All figures, in the order of the table.
    pub const ALL: [Self; 14] = [
        Self::Plain,
        Self::PlainMicrovm,
        Self::Docker,
        Self::Cold,
        Self::Restore,
        Self::RestoreAlone,
        Self::RestoreSecond,
        Self::Claim,
        Self::ClaimAlone,
        Self::Exec,
        Self::Snapshot,
        Self::SnapshotBeside,
        Self::Fork,
        Self::ForkAnswered,
    ];

    /// Returns the display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "qemu, machine pc, to a prompt",
            Self::PlainMicrovm => "qemu, our machine, to a prompt",
            Self::Docker => "docker run --rm, true",
            Self::Cold => "cold boot to first exec",
            Self::Restore => "restore to first exec",
            Self::RestoreAlone => "  of which the restore",
            Self::RestoreSecond => "  second exec after it",
            Self::Claim => "warm claim to first exec",
            Self::ClaimAlone => "  of which the claim",
            Self::Exec => "exec in a running VM",
            Self::Snapshot => "snapshot",
            Self::SnapshotBeside => "snapshot beside the copy of RAM",
            Self::Fork => "fork of 10, a program ran in all",
            Self::ForkAnswered => "  of which until all have answered",
        }
    }

    /// Returns the name for JSON.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Plain => "plain-qemu",
            Self::PlainMicrovm => "plain-qemu-microvm",
            Self::Docker => "docker-run",
            Self::Cold => "cold",
            Self::Restore => "restore",
            Self::RestoreAlone => "restore-alone",
            Self::RestoreSecond => "restore-second-exec",
            Self::Claim => "claim",
            Self::ClaimAlone => "claim-alone",
            Self::Exec => "exec",
            Self::Snapshot => "snapshot",
            Self::SnapshotBeside => "snapshot-beside-copy",
            Self::Fork => "fork-10",
            Self::ForkAnswered => "fork-10-answered",
        }
    }

    /// Returns true if the figure is Cofferdam's.
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::Plain | Self::PlainMicrovm | Self::Docker)
    }

    /// Returns true if it has turns of its own. Turns of other figures measure the rest.
    pub fn has_turns(self) -> bool {
        !matches!(
            self,
            Self::RestoreAlone | Self::RestoreSecond | Self::ClaimAlone | Self::SnapshotBeside | Self::ForkAnswered
        )
    }
}
