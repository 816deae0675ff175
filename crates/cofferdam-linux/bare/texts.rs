//! Parsers for files of `/proc`. Names of processes are chosen by guests and may contain any bytes.

/// One clock tick of `stat` in microseconds: the kernel shows hundredths of a second.
const TICK_MICROS: u64 = 10_000;

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

/// Parses a number that consists of digits only.
pub fn number(text: &[u8]) -> Option<u64> {
    let digit = |value: u64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(digit.into())
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

/// Returns the process id if the name of an entry of `/proc` is one.
pub fn pid(name: &[u8]) -> Option<i32> {
    number(name).and_then(|number| i32::try_from(number).ok())
}

/// Returns the number in one line of a status file.
pub fn field(status: &[u8], key: &[u8]) -> Option<u64> {
    let line = status.split(|&byte| byte == b'\n').find(|line| line.starts_with(key))?;
    words(line).nth(1).and_then(number)
}

/// Returns the number of sockets in a network namespace, by `/proc/net/sockstat`. It includes those without a
/// descriptor.
pub fn sockets(sockstat: &[u8]) -> Option<u64> {
    let line = sockstat.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"sockets:"))?;
    words(line).nth(2).and_then(number)
}

/// Returns the text after the name in a `stat` file. The name itself may contain any bytes.
fn after_name(stat: &[u8]) -> &[u8] {
    let end = stat.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| stat.get(end + 1..)).unwrap_or_default()
}

/// Returns the letter of a process's state, by its `stat` file.
pub fn state(stat: &[u8]) -> Option<u8> {
    words(after_name(stat)).next().and_then(<[u8]>::first).copied()
}

/// Returns the time of a task in user mode, in clock ticks, by its `stat` file.
pub fn user_ticks(stat: &[u8]) -> Option<u64> {
    words(after_name(stat)).nth(11).and_then(number)
}

/// Returns true if a process has not ended yet, by its `stat` file.
pub fn is_running(stat: &[u8]) -> bool {
    state(stat).is_some_and(|state| !matches!(state, b'Z' | b'X'))
}

/// Returns the session of a process, by its `stat` file.
pub fn session(stat: &[u8]) -> Option<i32> {
    words(after_name(stat)).nth(3).and_then(pid)
}

/// Returns the user and system time of a process and its reaped children, by its `stat` file.
pub fn cpu_micros(stat: &[u8]) -> u64 {
    let ticks = words(after_name(stat)).skip(11).take(4).filter_map(number);
    ticks.fold(0u64, u64::saturating_add).saturating_mul(TICK_MICROS)
}

/// Returns the last process id that the kernel assigned, by `/proc/loadavg`.
pub fn last_pid(load: &[u8]) -> u64 {
    words(load).last().and_then(number).unwrap_or(0)
}

/// A NUL-terminated path of `/proc`.
pub struct Path {
    bytes: [u8; 32],
    length: usize,
}

impl Path {
    /// Builds `<prefix><number><suffix>`. Both texts must be short.
    pub fn new(prefix: &str, number: u32, suffix: &str) -> Self {
        let mut path = Self { bytes: [0; 32], length: 0 };
        path.push(prefix.as_bytes());
        path.push_number(number);
        path.push(suffix.as_bytes());
        path
    }

    /// Returns the path of a file of a task. The path needs no process id, because the task id alone identifies it.
    pub fn of_task(task: u32, suffix: &str) -> Self {
        let mut path = Self::new("/proc/", task, "/task/");
        path.push_number(task);
        path.push(suffix.as_bytes());
        path
    }

    /// Returns the path that describes a descriptor of a process.
    pub fn of_descriptor(pid: u32, fd: u32) -> Self {
        let mut path = Self::new("/proc/", pid, "/fdinfo/");
        path.push_number(fd);
        path
    }

    fn push_number(&mut self, number: u32) {
        let mut digits = [0; 10];
        let mut first = digits.len();
        let mut rest = number;
        while first > 0 {
            first -= 1;
            if let Some(digit) = digits.get_mut(first) {
                *digit = b'0' + (rest % 10) as u8;
            }
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(digits.get(first..).unwrap_or_default());
    }

    /// Appends text, except for the last byte, which stays NUL. A text that is too long is cut, and then names no file.
    fn push(&mut self, text: &[u8]) {
        for &byte in text {
            if let Some(slot) = self.bytes.get_mut(self.length).filter(|_| self.length < 31) {
                *slot = byte;
                self.length += 1;
            }
        }
    }

    /// Returns the path with its NUL.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..=self.length).unwrap_or(b"\0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_files_parse_with_any_process_name() {
        let stat = b"7 (a) Z (b) R 1 7 7 0 -1 4194304 9 8 0 0 11 22 33 44 20 0 1 0 55\n";
        assert!(is_running(stat));
        assert_eq!(cpu_micros(stat), 1_100_000);
        assert_eq!((state(stat), session(stat)), (Some(b'R'), Some(7)));
        assert_eq!((user_ticks(stat), user_ticks(b"7 (x) Z 1")), (Some(11), None));
        assert!(!is_running(b"7 (x) Z 1 7 7"));
        assert!(!is_running(b"7 (x)"));
        assert!(!is_running(b""));
        assert_eq!(cpu_micros(b"garbage"), 0);
    }

    #[test]
    fn fields_and_numbers_are_found_or_nothing_is() {
        let status = b"Name:\tx\nRssAnon:\t     128 kB\nFDSize:\t64\n";
        assert_eq!(field(status, b"RssAnon:"), Some(128));
        assert_eq!(field(status, b"FDSize:"), Some(64));
        assert_eq!(field(status, b"RssShmem:"), None);
        assert_eq!(sockets(b"sockets: used 17\nTCP: inuse 3 orphan 0\n"), Some(17));
        assert_eq!(sockets(b"TCP: inuse 3\n"), None);
        assert_eq!(last_pid(b"0.00 0.01 0.05 1/200 4711\n"), 4711);
        assert_eq!(pid(b"12"), Some(12));
        assert_eq!(pid(b"self"), None);
        assert_eq!(pid(b"99999999999"), None);
        assert_eq!(number(b"99999999999999999999999"), None);
    }

    #[test]
    fn paths_end_with_a_nul() {
        assert_eq!(Path::new("/proc/", 4_294_967_295, "/status").bytes(), b"/proc/4294967295/status\0");
        assert_eq!(Path::new("/dev/pts/", 0, "").bytes(), b"/dev/pts/0\0");
        // The largest process id of Linux.
        assert_eq!(Path::of_task(4_194_304, "/stat").bytes(), b"/proc/4194304/task/4194304/stat\0");
        assert_eq!(Path::of_descriptor(4_194_304, 999_999).bytes(), b"/proc/4194304/fdinfo/999999\0");
        assert_eq!(Path::new("/proc/", 1, "/a-name-that-is-much-too-long").bytes().last(), Some(&0));
    }
}
