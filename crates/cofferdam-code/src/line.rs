//! Shell lines, each run in a process of its own, after which the shell reports its working directory. The beginning
//! and the end of output of any length are kept.

use cofferdam_contract::{Chunk, OutputEvent, OutputStream, Result, Sandbox, SandboxPath, WORKSPACE_PATH};
use parking_lot::Mutex;

use crate::executor::OnOutput;
use crate::head_tail::{HeadTail, HeadTailBuffer};
use crate::{BackendProfile, CodeRequest, CodeResult, Executor, Want};

/// The delimiter before and after the directory that the shell reports.
const BEFORE: char = '\u{1e}';
/// The maximum size of the report of a directory, in bytes.
const MAX_REPORT: usize = 4 * 4200;

/// The result of a shell line.
#[derive(Debug)]
pub struct Line {
    /// The full result, with output up to the bounds of a call.
    pub result: CodeResult,
    /// The head and the tail of standard output.
    pub stdout: HeadTail,
    /// The head and the tail of standard error.
    pub stderr: HeadTail,
    /// The final working directory of the shell, or the workspace if it is outside of that; `None` if the shell did not
    /// report it.
    pub directory: Option<SandboxPath>,
}

impl Executor {
    /// Runs the code of `request` as a line in its language, which must be a shell. Keeps `keep` bytes of the beginning
    /// and of the end of each stream.
    pub async fn run_line(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        mut request: CodeRequest,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<Line> {
        let marker = crate::result::random_id()?;
        let report = format!(
            "trap '{{ status=$?; set +x; }} 2>/dev/null; printf \"\\036{marker} %s\\036\" \"$(pwd -P 2>/dev/null)\" >&2; exit $status' EXIT"
        );
        request.code = format!("{report}\n{}\n", request.code);
        (request.results, request.files) = (Want::No, Want::No);
        let word = format!("{BEFORE}{marker} ").into_bytes();
        let shown = |chunk: &Chunk| on_output(&without(chunk, &word));
        let (mut result, mut ends) =
            self.execute_head_tail(profile, sandbox, request, keep.saturating_add(MAX_REPORT), &shown).await?;
        // The report goes to the final standard error of the line, which may be its standard output.
        for data in [&mut result.stdout, &mut result.stderr] {
            let mut bytes = data.bytes().to_vec();
            if take_report(&mut bytes, &word).is_some() {
                *data = bytes::Bytes::from(bytes).into();
            }
        }
        let reported = ends
            .iter_mut()
            .find_map(|ends| take_report(&mut ends.tail, &word).or_else(|| take_report(&mut ends.head, &word)));
        // An exec cannot start outside of the workspace.
        let inside = |report| String::from_utf8(report).ok().filter(|path| path.starts_with(WORKSPACE_PATH));
        let directory =
            reported.map(|report| inside(report).and_then(|path| SandboxPath::new(path).ok()).unwrap_or_default());
        let [stdout, stderr] = ends;
        Ok(Line { result, stdout, stderr, directory })
    }

    /// Runs code like [`Self::execute_live`], and keeps `keep` bytes of the beginning and of the end of standard output
    /// and standard error, whatever their length.
    pub async fn execute_head_tail(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        request: CodeRequest,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [HeadTail; 2])> {
        let collector = HeadTailCollector::new(keep);
        let on_event = |event: &OutputEvent| {
            if let OutputEvent::Chunk(chunk) = event {
                on_output(chunk);
            }
            collector.take(event);
        };
        let result = self.execute_to_the_end(profile, sandbox, request, &on_event).await?;
        Ok((result, collector.head_tail()))
    }
}

/// A collector of the head and the tail of both streams.
pub(crate) struct HeadTailCollector([Mutex<HeadTailBuffer>; 2]);

impl HeadTailCollector {
    pub(crate) fn new(keep: usize) -> Self {
        Self([Mutex::new(HeadTailBuffer::new(keep)), Mutex::new(HeadTailBuffer::new(keep))])
    }

    pub(crate) fn take(&self, event: &OutputEvent) {
        let lock = |at: usize| self.0[at].lock();
        match event {
            OutputEvent::Chunk(chunk) => lock(usize::from(chunk.stream == OutputStream::Stderr)).take(&chunk.data),
            // The stream of lost bytes is unknown. They count as standard output.
            OutputEvent::Lost { bytes, .. } => lock(0).lose(*bytes),
        }
    }

    pub(crate) fn head_tail(self) -> [HeadTail; 2] {
        self.0.map(|buffer| buffer.into_inner().head_tail())
    }
}

/// Removes the report from a chunk of output, as far as the report is in that chunk.
fn without(chunk: &Chunk, word: &[u8]) -> Chunk {
    let at = chunk.data.windows(word.len()).position(|part| part == word);
    Chunk { stream: chunk.stream, data: chunk.data.slice(..at.unwrap_or(chunk.data.len())) }
}

/// Removes the report of the shell's directory, if there is one, and returns the directory.
fn take_report(data: &mut Vec<u8>, word: &[u8]) -> Option<Vec<u8>> {
    let at = data.windows(word.len()).rposition(|window| window == word)?;
    let from = at + word.len();
    let length = data[from..].iter().position(|byte| *byte == BEFORE as u8)?;
    let path = data[from..from + length].to_vec();
    data.drain(at..=from + length);
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_the_directory_is_removed() {
        let mut data = b"one\x1em /a\x1e\xfftwo\x1em /workspace/b\x1elate".to_vec();
        assert_eq!(take_report(&mut data, b"\x1em ").as_deref(), Some(&b"/workspace/b"[..]));
        assert_eq!(data, b"one\x1em /a\x1e\xfftwolate");
        assert_eq!(take_report(&mut b"\x1em /a".to_vec(), b"\x1em "), None);
    }
}
