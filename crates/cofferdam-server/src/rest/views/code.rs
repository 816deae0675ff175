//! The documents of code execution.

use std::time::Duration;

use cofferdam_code::{CodeRequest, CodeResult};
use cofferdam_contract::{OutputStream, serde_optional_duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rest::events::StreamEvent;
use crate::rest::problem::Problem;

/// Code to run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunCode {
    /// The code.
    pub code: String,
    /// The language, such as `python`. A call of a kernel has that of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// The limit on wall-clock time. Default: that of the sandbox.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub timeout: Option<Duration>,
}

impl RunCode {
    pub(in crate::rest) fn into_request(self, language: String) -> CodeRequest {
        let mut request = CodeRequest::new(language, self.code);
        request.timeout = self.timeout;
        request
    }
}

/// The result of code: output, exit, results such as figures, and changed files.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CodeOutcome(pub serde_json::Map<String, Value>);

impl CodeOutcome {
    pub(in crate::rest) fn of(result: &CodeResult) -> Self {
        match serde_json::to_value(result) {
            Ok(Value::Object(members)) => Self(members),
            _ => Self(serde_json::Map::new()),
        }
    }
}

/// An event of code that runs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum CodeEvent {
    /// Bytes of output.
    Output {
        /// `stdout` or `stderr`.
        stream: OutputStream,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes in base64.
        data: String,
    },
    /// Output that was left out of the stream, because the client was too slow.
    Lost {
        /// The number of bytes.
        bytes: u64,
        /// The bytes of output in all.
        offset: u64,
    },
    /// The result, and the end of the stream.
    Result {
        /// The result.
        result: CodeOutcome,
    },
    /// The failure, and the end of the stream.
    Error {
        /// The failure.
        error: Problem,
    },
}

impl StreamEvent for CodeEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::Output { .. } => "output",
            Self::Lost { .. } => "lost",
            Self::Result { .. } => "result",
            Self::Error { .. } => "error",
        }
    }

    fn failed(error: Problem) -> Self {
        Self::Error { error }
    }
}

/// A new kernel.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenKernel {
    /// The language: `python`, `javascript` or another one with kernels.
    #[serde(default = "python")]
    pub language: String,
}

fn python() -> String {
    "python".to_owned()
}

/// A kernel: an interpreter that keeps variables between calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelView {
    /// The id.
    pub id: String,
    /// The language.
    pub language: String,
}

/// A page of the kernels of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct KernelList {
    /// The kernels, in the order of ids.
    pub kernels: Vec<KernelView>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}
