//! The host and the versions of a result.

use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde_json::{Value, json};

/// The environment of a result. Unknown values are empty.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Seconds since 1970.
    pub unix_time: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The processor's model name.
    pub processor: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// The three load averages.
    pub load: String,
    /// True if the benchmark ran as root.
    pub root: bool,
    /// The compiler that built the program.
    pub rustc: String,
}

/// Collects the facts of this host.
pub fn collect() -> Facts {
    let cpuinfo = read("/proc/cpuinfo");
    let processor = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let status = read("/proc/self/status");
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    Facts {
        unix_time: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        kernel: read("/proc/sys/kernel/osrelease"),
        processor: processor.map_or_else(String::new, |(_, name)| name.to_owned()),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        load: load(),
        root: uid == Some("0"),
        rustc: version("rustc"),
    }
}

/// Returns the current three load averages.
pub fn load() -> String {
    read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

impl Facts {
    /// Formats one line.
    pub fn line(&self) -> String {
        let user = if self.root { "root" } else { "ordinary user" };
        let load = load();
        format!(
            "{}, {} cores, Linux {}, {user}; load {} before, {load} after",
            self.processor, self.cores, self.kernel, self.load
        )
    }

    /// Returns the facts as JSON, at the end of a benchmark.
    pub fn json(&self) -> Value {
        json!({
            "unix_time": self.unix_time,
            "kernel": self.kernel,
            "processor": self.processor,
            "cores": self.cores,
            "root": self.root,
            "cofferdam": env!("CARGO_PKG_VERSION"),
            "rustc": self.rustc,
            "load_before": self.load,
            "load_after": load(),
        })
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the first line of a program's version output.
pub fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}
