//! What this machine is, and what exists on it: processes, memory, control groups, mounts. Reads, changes nothing but
//! this process's own limit on descriptors.

pub mod groups;
pub mod kernel;
pub mod machine;
pub mod mounts;
pub mod together;
pub mod tree;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lifts this process's limit on open descriptors as far as it may: benchmarks hold many sandboxes at once.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it fails, the sandboxes that can be held are fewer, which is then told.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// A file of `/proc` or `/sys`, empty where it cannot be read: what it tells of may have ended meanwhile.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The number after `name:` in lines such as `Pss:   12 kB`.
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
