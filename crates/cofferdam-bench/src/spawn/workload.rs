//! The workloads of all contestants.

use clap::ValueEnum;

/// The system's Python. A version manager's `python3` is a shell script that takes longer than Python itself.
const PYTHON: &str = "/usr/bin/python3";

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Workload {
    /// `/bin/true`: a dynamically linked program that does nothing.
    True,
    /// A Python that starts without its site packages and prints one line.
    Python,
}

impl Workload {
    /// All workloads, in the order of execution.
    pub const ALL: [Self; 2] = [Self::True, Self::Python];

    /// Returns the name for options, tables and file names.
    pub fn slug(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::Python => "python",
        }
    }

    /// Returns the display name.
    pub fn title(self) -> &'static str {
        match self {
            Self::True => "/bin/true",
            Self::Python => "python3 -I -S -c 'print(1)'",
        }
    }

    /// Returns the command.
    pub fn argv(self) -> &'static [&'static str] {
        match self {
            Self::True => &["/bin/true"],
            Self::Python => &[PYTHON, "-I", "-S", "-c", "print(1)"],
        }
    }

    /// Returns the expected output.
    pub fn output(self) -> &'static str {
        match self {
            Self::True => "",
            Self::Python => "1\n",
        }
    }

    /// Returns the command as a line for a shell.
    pub fn shell_line(self) -> String {
        let quoted = self.argv().iter().map(|word| format!("'{word}'"));
        quoted.collect::<Vec<_>>().join(" ")
    }

    /// Returns the reason why it cannot run on this host, if any.
    pub fn missing(self) -> Option<String> {
        let program = self.argv()[0];
        (!std::path::Path::new(program).exists()).then(|| format!("{program} does not exist"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_sees_the_same_words() {
        assert_eq!(Workload::Python.shell_line(), "'/usr/bin/python3' '-I' '-S' '-c' 'print(1)'");
        assert!(Workload::ALL.iter().flat_map(|workload| workload.argv()).all(|word| !word.contains('\'')));
    }
}
