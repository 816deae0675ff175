//! The benchmark's own command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// What to measure, and where to write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Times that each contestant runs one at a time.
    pub rounds: usize,
    /// Times that each contestant runs for each number at once.
    pub rounds_at_once: usize,
    /// Directory of the JSON file.
    pub out: PathBuf,
}

impl Options {
    /// Parses `[--quick] [--n N] [--out DIR]`.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { rounds: 2000, rounds_at_once: 1600, out: PathBuf::from("bench-results") };
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = |name: &str| words.next().with_context(|| format!("{name} needs a value"));
            match word.as_str() {
                "--quick" => (options.rounds, options.rounds_at_once) = (300, 240),
                "--n" => {
                    let n: usize = value("--n")?.parse().context("--n takes a number")?;
                    if n < 10 {
                        bail!("--n takes a number of at least 10");
                    }
                    (options.rounds, options.rounds_at_once) = (n, n);
                }
                "--out" => options.out = value("--out")?.into(),
                other => bail!("unknown option '{other}'; known are --quick, --n N and --out DIR"),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_or_refused() {
        assert_eq!(parse("--quick").unwrap().rounds, 300);
        assert_eq!(parse("--n 50 --out x").unwrap().out, PathBuf::from("x"));
        for line in ["--n", "--n x", "--n 1", "--slow"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
