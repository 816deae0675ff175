//! Patterns of event names: names with dots, where `*` stands for one name and `**` at the end for any number.

/// The maximum length of a name or pattern in bytes.
const MAX_LENGTH: usize = 200;
/// The maximum number of names between dots.
const MAX_PARTS: usize = 16;

/// Returns true for the name of an event, such as `weather.changed`.
pub fn is_event_name(name: &str) -> bool {
    name.len() <= MAX_LENGTH && name.split('.').count() <= MAX_PARTS && name.split('.').all(is_part)
}

/// Returns true for a pattern of event names, such as `weather.*`.
pub fn is_event_pattern(pattern: &str) -> bool {
    let parts: Vec<&str> = pattern.split('.').collect();
    let is_single = |part: &str| part == "*" || is_part(part);
    let is_valid = parts
        .split_last()
        .is_some_and(|(last, before)| before.iter().all(|part| is_single(part)) && (is_single(last) || *last == "**"));
    is_valid && parts.len() <= MAX_PARTS && pattern.len() <= MAX_LENGTH
}

/// Returns true if a pattern includes a name, or all names of another pattern. `weather.**` includes `weather`, too.
pub fn matches_event(pattern: &str, name: &str) -> bool {
    let mut names = name.split('.');
    for part in pattern.split('.') {
        match (part, names.next()) {
            ("**", _) => return true,
            (_, None | Some("**")) => return false,
            (part, Some(name)) if part != "*" && part != name => return false,
            _ => {}
        }
    }
    names.next().is_none()
}

fn is_part(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_stand_for_names() {
        for (pattern, name, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("a.b", "a", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("*.b", "a.b", true),
            ("a.**", "a", true),
            ("a.**", "a.b.c", true),
            ("a.**", "ab.c", false),
            ("**", "a.b", true),
            ("a.**", "a.b.*", true),
            ("a.**", "a.**", true),
            ("a.*", "a.**", false),
            ("a.b", "a.*", false),
            ("a.*", "*.b", false),
        ] {
            assert_eq!(matches_event(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for pattern in ["*", "**", "a.*.b", "a.**", "*.**", "A-1._x"] {
            assert!(is_event_pattern(pattern), "{pattern}");
        }
        for pattern in ["", ".", "a.", ".a", "a..b", "**.a", "a**", "***", "a*", "a.**.b", "a b", "ä"] {
            assert!(!is_event_pattern(pattern), "{pattern}");
        }
        assert!(!is_event_pattern(&"a".repeat(201)) && !is_event_pattern(&["a"; 17].join(".")));
        assert!(is_event_name("a.b-1") && !is_event_name("a.*") && !is_event_name("a."));
    }

    proptest! {
        #[test]
        fn a_name_matches_itself_and_its_generalisations(
            parts in proptest::collection::vec("[a-z]{1,3}", 1..6), at in any::<prop::sample::Index>()
        ) {
            let name = parts.join(".");
            let at = at.index(parts.len());
            let mut any_one = parts.clone();
            any_one[at] = "*".to_owned();
            let mut any_end = parts[..at].to_vec();
            any_end.push("**".to_owned());
            for pattern in [name.clone(), any_one.join("."), any_end.join(".")] {
                prop_assert!(is_event_pattern(&pattern) && matches_event(&pattern, &name), "{pattern} {name}");
            }
            let longer = format!("{name}.x");
            prop_assert!(!matches_event(&name, &longer) && !matches_event(&longer, &name));
        }

        #[test]
        fn any_text_is_answered(pattern in ".{0,30}", name in ".{0,30}") {
            let _ = (is_event_pattern(&pattern), is_event_name(&name), matches_event(&pattern, &name));
        }
    }
}
