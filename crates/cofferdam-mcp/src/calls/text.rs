//! What a model reads of a run: output whose middle is left out where it is long, then whatever is not as usual.

use crate::results::End;

/// Characters of each stream that stand in the text. The structured result has all that was kept.
const MOST: usize = 20_000;

/// Output and end as one text.
pub fn of(stdout: &str, stderr: &str, end: &End) -> String {
    let mut parts = Vec::new();
    for (name, text) in [("", stdout), ("stderr:\n", stderr)] {
        let text = text.trim_end_matches('\n');
        if !text.is_empty() {
            parts.push(format!("{name}{}", cut(text, MOST)));
        }
    }
    parts.extend(remarks(end));
    if parts.is_empty() {
        parts.push("[no output]".to_owned());
    }
    parts.join("\n")
}

/// What is to be said about how something ended.
fn remarks(end: &End) -> Vec<String> {
    let mut remarks = Vec::new();
    if end.truncated {
        remarks.push("[output beyond the maximum was dropped]".to_owned());
    }
    match (&end.killed_by, end.timed_out, end.signal) {
        (Some(limit), ..) => remarks.push(format!("[killed at the {limit} limit]")),
        (None, true, _) => remarks.push(format!("[killed after {:.1} s: the time was over]", end.duration_seconds)),
        (None, false, Some(signal)) => remarks.push(format!("[ended by signal {signal}]")),
        (None, false, None) if end.exit_code != 0 => remarks.push(format!("[exit code {}]", end.exit_code)),
        _ => {}
    }
    let others = end.limits_hit.iter().filter(|limit| end.killed_by.as_ref() != Some(limit));
    remarks.extend(others.map(|limit| format!("[something was refused or killed at the {limit} limit]")));
    remarks
}

/// Keeps the beginning and the end, and says how much is missing between them.
fn cut(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let at = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (at(most / 2), at(count - most / 2));
    let left_out = count - 2 * (most / 2);
    format!("{}\n[… {left_out} of {count} characters left out …]\n{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_are_kept_and_the_end_is_told() {
        let end = End {
            exit_code: 3,
            signal: None,
            timed_out: false,
            truncated: true,
            killed_by: None,
            limits_hit: vec!["disk".to_owned()],
            duration_seconds: 1.0,
        };
        let text = of("out\n", "err\n", &end);
        assert_eq!(
            text,
            "out\nstderr:\nerr\n[output beyond the maximum was dropped]\n[exit code 3]\n\
             [something was refused or killed at the disk limit]"
        );
        let quiet = End { exit_code: 0, truncated: false, limits_hit: Vec::new(), ..end.clone() };
        assert_eq!(of("", "", &quiet), "[no output]");
        let killed = End { killed_by: Some("memory".to_owned()), ..quiet.clone() };
        assert_eq!(of("", "", &killed), "[killed at the memory limit]");
        let late = End { timed_out: true, exit_code: -1, ..quiet };
        assert_eq!(of("", "", &late), "[killed after 1.0 s: the time was over]");
        assert_eq!(
            cut(&format!("{}{}", "é".repeat(6), "b".repeat(6)), 6),
            "ééé\n[… 6 of 12 characters left out …]\nbbb"
        );
    }
}
