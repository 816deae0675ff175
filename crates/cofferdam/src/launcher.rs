//! The decision to fork a launcher at program start, before anything is parsed. Runs need one, unless they name another
//! backend. A wrong guess in either direction only costs time.

use std::ffi::CStr;

/// Number of words that are searched for the command: the program, one option with its value, the command.
const FIRST_WORDS: usize = 4;
/// Names of the process backend and of its level.
const PROCESS: [&[u8]; 2] = [b"process", b"local"];
/// Options that name a backend or a level.
const OPTIONS: [&[u8]; 2] = [b"--backend", b"--level"];
/// The environment variable that names a backend.
const VARIABLE: &[u8] = b"SANDBOX_TYPE";

/// Returns true if a launcher is forked for these arguments and this environment.
pub fn is_wanted(
    arguments: impl Iterator<Item = &'static CStr>,
    mut environment: impl Iterator<Item = &'static CStr>,
) -> bool {
    let mut named: Option<&[u8]> = None;
    let (mut run, mut value_follows) = (false, false);
    for (index, word) in arguments.map(CStr::to_bytes).enumerate().skip(1).take_while(|(_, word)| *word != b"--") {
        run |= index < FIRST_WORDS && word == b"run";
        if value_follows {
            named = Some(word);
        }
        value_follows = OPTIONS.contains(&word);
        named = OPTIONS.iter().find_map(|option| value_of(word, option)).or(named);
    }
    let named = named.or_else(|| environment.find_map(|word| value_of(word.to_bytes(), VARIABLE)));
    run && named.is_none_or(|name| name.is_empty() || PROCESS.contains(&name))
}

/// Returns the value of `name=value`.
fn value_of<'a>(word: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    word.strip_prefix(name)?.strip_prefix(b"=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_for_runs_of_the_process_backend() {
        let wanted = |arguments: &[&'static CStr], environment: &[&'static CStr]| {
            is_wanted(arguments.iter().copied(), environment.iter().copied())
        };
        for arguments in [
            &[c"c", c"run", c"a.py"][..],
            &[c"c", c"--config", c"f", c"run", c"--", c"x", c"--backend", c"docker"],
            &[c"c", c"run", c"--backend", c"process", c"a.py"],
            &[c"c", c"run", c"--level=process", c"a.py"],
        ] {
            assert!(wanted(arguments, &[c"SANDBOX_TYPE=", c"SANDBOX_TYPES=docker"]), "{arguments:?}");
        }
        for arguments in [
            &[c"c", c"doctor"][..],
            &[c"c", c"a", c"b", c"c", c"run"],
            &[c"c", c"run", c"--backend", c"docker", c"a.py"],
            &[c"c", c"run", c"--backend=docker:runsc", c"a.py"],
            &[c"c", c"run", c"--level", c"wasm", c"a.py"],
        ] {
            assert!(!wanted(arguments, &[]), "{arguments:?}");
        }
        assert!(!wanted(&[c"c", c"run", c"a.py"], &[c"A=b", c"SANDBOX_TYPE=docker"]));
        assert!(wanted(&[c"c", c"run", c"--backend", c"process"], &[c"SANDBOX_TYPE=docker"]));
    }
}
