//! What is timed.

/// A time that is measured again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Figure {
    /// QEMU as anybody starts it.
    Plain,
    /// QEMU with the machine and the words for the kernel that ours has.
    PlainMicrovm,
    /// A container.
    Docker,
    /// A machine is made.
    Cold,
    /// A machine is made from a snapshot.
    Restore,
    /// Of that, until the machine is there.
    RestoreAlone,
    /// Another exec in it.
    RestoreSecond,
    /// A machine that was made ahead is taken.
    Claim,
    /// Of that, until the machine is this request's.
    ClaimAlone,
    /// A machine lives.
    Exec,
    /// A snapshot is taken.
    Snapshot,
    /// The same without what a copy of its memory takes.
    SnapshotBeside,
    /// A snapshot is taken, ten machines are made from it, and a program is run in each.
    Fork,
    /// Of that, until the last of the ten is there: its agent has answered, and it is another machine than the others.
    ForkAnswered,
}

impl Figure {
    /// All, in the order of the table.
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

    /// For people.
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
            Self::Exec => "exec in a live machine",
            Self::Snapshot => "snapshot",
            Self::SnapshotBeside => "snapshot beside the copy of RAM",
            Self::Fork => "fork of 10, a program ran in all",
            Self::ForkAnswered => "  of which until all have answered",
        }
    }

    /// For programs.
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

    /// Whether it is Cofferdam's.
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::Plain | Self::PlainMicrovm | Self::Docker)
    }

    /// Whether turns are taken for it; another one's turn gives the rest.
    pub fn has_turns(self) -> bool {
        !matches!(
            self,
            Self::RestoreAlone | Self::RestoreSecond | Self::ClaimAlone | Self::SnapshotBeside | Self::ForkAnswered
        )
    }
}
