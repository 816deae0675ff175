//! Messages of E2B's API and of the agent in its VMs. Unknown fields are ignored, as in E2B's own clients; missing ones
//! have the default of their type, as in its encoding.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// The request for a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds until E2B ends it.
    pub timeout: u64,
    pub auto_pause: bool,
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: bool,
    pub metadata: BTreeMap<String, String>,
}

/// A time after which E2B ends a sandbox, from now on.
#[derive(Debug, Serialize)]
pub(crate) struct Timeout {
    pub timeout: u64,
}

/// A sandbox that was created or resumed.
#[derive(Deserialize)]
pub(crate) struct CreatedSandbox {
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    #[serde(rename = "envdAccessToken", default)]
    pub token: Option<String>,
    #[serde(default)]
    pub domain: Option<String>,
}

/// A description of a sandbox by E2B.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Detail {
    /// The name of the state, such as `running` and `paused`.
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub allow_internet_access: Option<bool>,
}

impl Detail {
    pub fn is_paused(&self) -> bool {
        self.state == "paused"
    }
}

/// A measurement of a sandbox.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metric {
    #[serde(default)]
    pub timestamp_unix: i64,
    #[serde(default)]
    pub mem_used: Option<u64>,
}

/// An error of the API, or of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ErrorBody {
    /// A number of the API, or a name of the Connect protocol.
    #[serde(default)]
    pub code: serde_json::Value,
    #[serde(default)]
    pub message: String,
}

/// The last message of a stream.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct EndOfStream {
    #[serde(default)]
    pub error: Option<ErrorBody>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Size {
    pub cols: u16,
    pub rows: u16,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Pty {
    pub size: Size,
}

#[derive(Debug, Serialize)]
pub(crate) struct ProcessConfig {
    pub cmd: String,
    pub args: Vec<String>,
    pub envs: BTreeMap<String, String>,
    pub cwd: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct StartRequest {
    pub process: ProcessConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    pub tag: String,
    pub stdin: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Selector {
    pub pid: u32,
}

/// A request about one process.
#[derive(Debug, Serialize)]
pub(crate) struct OfProcess<'a> {
    pub process: Selector,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Input<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Input<'a> {
    Stdin(&'a [u8]),
    Pty(&'a [u8]),
}

impl Serialize for Input<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (name, data) = match self {
            Self::Stdin(data) => ("stdin", data),
            Self::Pty(data) => ("pty", data),
        };
        serializer.collect_map([(name, STANDARD.encode(data))])
    }
}

/// A message of a process.
#[derive(Debug, Deserialize)]
pub(crate) struct ProcessMessage {
    #[serde(default)]
    pub event: ProcessEvent,
}

/// An event of a process. One field is set; none for an event that this version does not know.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessEvent {
    pub start: Option<Started>,
    pub data: Option<Data>,
    pub end: Option<End>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Started {
    pub pid: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Data {
    pub stdout: Option<Base64>,
    pub stderr: Option<Base64>,
    pub pty: Option<Base64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct End {
    pub exit_code: i32,
    pub exited: bool,
    pub status: String,
}

/// Bytes as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base64(pub Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Self).map_err(serde::de::Error::custom)
    }
}

/// The names that Go gives to signals of Linux, of those that end programs.
const SIGNALS: [(&str, i32); 23] = [
    ("hangup", 1),
    ("interrupt", 2),
    ("quit", 3),
    ("illegal instruction", 4),
    ("trace/breakpoint trap", 5),
    ("aborted", 6),
    ("bus error", 7),
    ("floating point exception", 8),
    ("killed", 9),
    ("user defined signal 1", 10),
    ("segmentation fault", 11),
    ("user defined signal 2", 12),
    ("broken pipe", 13),
    ("alarm clock", 14),
    ("terminated", 15),
    ("stack fault", 16),
    ("CPU time limit exceeded", 24),
    ("file size limit exceeded", 25),
    ("virtual timer expired", 26),
    ("profiling timer expired", 27),
    ("I/O possible", 29),
    ("power failure", 30),
    ("bad system call", 31),
];

impl End {
    /// Returns the exit code, or the signal that ended the program. E2B has the signal only as text.
    pub fn outcome(&self) -> Result<i32, i32> {
        let Some(text) = self.status.strip_prefix("signal: ").filter(|_| !self.exited || self.exit_code < 0) else {
            return Ok(self.exit_code);
        };
        let text = text.strip_suffix(" (core dumped)").unwrap_or(text);
        let named = SIGNALS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        let numbered = || text.strip_prefix("signal ")?.parse().ok().filter(|number| (1..=64).contains(number));
        named.or_else(numbered).map_or(Ok(self.exit_code), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(json: &str) -> Result<i32, i32> {
        serde_json::from_str::<End>(json).unwrap().outcome()
    }

    #[test]
    fn exits_are_read_from_codes_and_names_of_signals() {
        assert_eq!(end(r#"{"exited":true,"status":"exit status 0"}"#), Ok(0));
        assert_eq!(end(r#"{"exitCode":3,"exited":true,"status":"exit status 3"}"#), Ok(3));
        assert_eq!(end(r#"{"exitCode":-1,"status":"signal: killed","error":"x"}"#), Err(9));
        assert_eq!(end(r#"{"exitCode":-1,"status":"signal: segmentation fault (core dumped)"}"#), Err(11));
        assert_eq!(end(r#"{"exitCode":-1,"status":"signal: signal 34"}"#), Err(34));
        assert_eq!(end(r#"{"exitCode":-1,"status":"signal: nonsense"}"#), Ok(-1));
        assert_eq!(end(r#"{"exitCode":7,"exited":true,"status":"signal: killed"}"#), Ok(7), "it exited");
    }

    #[test]
    fn unknown_events_and_fields_are_ignored() {
        let event = |text: &str| serde_json::from_str::<ProcessMessage>(text).map(|message| message.event);
        let ProcessEvent { start, data, end } = event(r#"{"event":{"news":{}},"more":1}"#).unwrap();
        assert!(start.is_none() && data.is_none() && end.is_none());
        let data = event(r#"{"event":{"data":{"stdout":"aGk="}}}"#).unwrap().data.unwrap();
        assert_eq!(data.stdout, Some(Base64(b"hi".to_vec())));
        assert!(event(r#"{"event":{"data":{"stdout":"?"}}}"#).is_err());
    }
}
