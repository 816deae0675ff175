//! The host and its objects: processes, memory, control groups, mounts. Reads only, and changes nothing but this
//! process's own limit on descriptors.

pub mod facts;
pub mod groups;
pub mod kernel;
pub mod mounts;
pub mod parallel;
pub mod tree;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit on open descriptors as far as allowed, because benchmarks hold many sandboxes at once.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, fewer sandboxes can be held, which is then reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Reads a file of `/proc` or `/sys`. Returns an empty text if it cannot be read, because its process may have ended.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the number after `name:` in lines such as `Pss:   12 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Pss_Dirty:  5 kB\nPss:            12 kB\nThreads:\t3\n";
        assert_eq!(field(text, "Pss"), Some(12));
        assert_eq!(field(text, "Threads"), Some(3));
        assert_eq!(field(text, "Rss"), None);
    }
}
