//! Text for models about a run: the output, with the middle of long output left out, then remarks about its end.

use cofferdam_code::{Bounds, CodeRequest, HeadTail};
use cofferdam_contract::{ByteSize, Error, ErrorKind, Result};

use crate::results::End;

/// Default maximum of each stream in a result.
const DEFAULT_OUTPUT: ByteSize = ByteSize::from_bytes(20_000);

/// Returns the maximum of each stream in the result of a call.
///
/// # Errors
/// Returns `Denied` if the call requests more than the configured maximum.
pub fn max_output(request: &CodeRequest, bounds: &Bounds) -> Result<usize> {
    let max_output = request.max_output.unwrap_or(DEFAULT_OUTPUT.min(bounds.max_output));
    if max_output > bounds.max_output {
        let message = format!("max_output_bytes {max_output} exceeds the server's limit of {}", bounds.max_output);
        return Err(Error::new(ErrorKind::Denied, "policy", message).with_remedy("request less output"));
    }
    Ok(usize::try_from(max_output.as_bytes()).unwrap_or(usize::MAX))
}

/// Returns both streams as text, with the middle of long ones left out, and the end with `truncated` set accordingly.
pub fn outputs(outputs: [HeadTail; 2], max_output: usize, end: End) -> (String, String, End) {
    let [(stdout, of_stdout), (stderr, of_stderr)] = outputs.map(|output| output.text(max_output));
    (stdout, stderr, End { truncated: of_stdout || of_stderr, ..end })
}

/// Returns output and end as one text.
pub fn of(stdout: &str, stderr: &str, end: &End) -> String {
    let mut parts = Vec::new();
    for (name, text) in [("", stdout), ("stderr:\n", stderr)] {
        let text = text.trim_end_matches('\n');
        if !text.is_empty() {
            parts.push(format!("{name}{text}"));
        }
    }
    parts.extend(remarks(end));
    if parts.is_empty() {
        parts.push("[no output]".to_owned());
    }
    parts.join("\n")
}

/// Returns remarks about the end of a run.
fn remarks(end: &End) -> Vec<String> {
    let mut remarks = Vec::new();
    match (&end.killed_by, end.timed_out, end.signal) {
        (Some(limit), ..) => remarks.push(format!("[killed at the {limit} limit]")),
        (None, true, _) => remarks.push(format!("[killed after {:.1} s: timeout]", end.duration_seconds)),
        (None, false, Some(signal)) => remarks.push(format!("[terminated by signal {signal}]")),
        (None, false, None) if end.exit_code != 0 => remarks.push(format!("[exit code {}]", end.exit_code)),
        _ => {}
    }
    let others = end.limits_hit.iter().filter(|limit| end.killed_by.as_ref() != Some(limit));
    remarks.extend(others.map(|limit| format!("[an operation was refused or a process killed at the {limit} limit]")));
    remarks.extend(end.network_denials.iter().map(|denial| format!("[network: {denial}]")));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_comes_first_and_then_how_it_ended() {
        let end = End {
            exit_code: 3,
            signal: None,
            timed_out: false,
            truncated: true,
            killed_by: None,
            limits_hit: vec!["disk".to_owned()],
            network_denials: vec!["refused the look-up of a.example: the policy does not list it".to_owned()],
            duration_seconds: 1.0,
        };
        let text = of("out\n", "err\n", &end);
        assert_eq!(
            text,
            "out\nstderr:\nerr\n[exit code 3]\n\
             [an operation was refused or a process killed at the disk limit]\n\
             [network: refused the look-up of a.example: the policy does not list it]"
        );
        let quiet =
            End { exit_code: 0, truncated: false, limits_hit: Vec::new(), network_denials: Vec::new(), ..end.clone() };
        assert_eq!(of("", "", &quiet), "[no output]");
        let killed = End { killed_by: Some("memory".to_owned()), ..quiet.clone() };
        assert_eq!(of("", "", &killed), "[killed at the memory limit]");
        let late = End { timed_out: true, exit_code: -1, ..quiet };
        assert_eq!(of("", "", &late), "[killed after 1.0 s: timeout]");
    }
}
