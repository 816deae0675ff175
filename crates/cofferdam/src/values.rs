//! Parsers of structured option values: variables, labels, network policies.

use cofferdam::NetworkPolicy;

/// Parses a variable. Refuses one without a value: no values are inherited from the environment.
pub fn parse_env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the variable has no name; write KEY=VALUE".to_owned()),
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("nothing is inherited from the environment; write {text}=VALUE")),
    }
}

/// Parses the name of a variable whose value is taken from the environment of this process.
pub fn parse_secret(text: &str) -> Result<String, String> {
    match text {
        "" => Err("the variable has no name".to_owned()),
        // The value is visible in the process list already. Do not repeat it in the message.
        text if text.contains('=') => {
            Err("write only the name; the value is read from the environment, which other users cannot see".to_owned())
        }
        text => Ok(text.to_owned()),
    }
}

/// Parses a label.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// Parses a network policy: `none`, or hosts.
pub fn parse_network(text: &str) -> Result<NetworkPolicy, String> {
    if text == "none" {
        return Ok(NetworkPolicy::None);
    }
    let hosts: Vec<String> = text.split(',').map(|host| host.trim().to_owned()).collect();
    if hosts.iter().any(|host| host.is_empty() || host == "none") {
        return Err("write none, or host names with commas between them".to_owned());
    }
    Ok(NetworkPolicy::Allow { hosts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name_and_a_value() {
        assert_eq!(parse_env("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(parse_env("A="), Ok(("A".to_owned(), String::new())));
        assert!(parse_env("=a").is_err());
        let error = parse_env("HOME").unwrap_err();
        assert_eq!(error, "nothing is inherited from the environment; write HOME=VALUE");
    }

    #[test]
    fn a_secret_is_a_name_and_no_value() {
        assert_eq!(parse_secret("TOKEN"), Ok("TOKEN".to_owned()));
        for text in ["", "TOKEN=hunter2"] {
            assert!(!parse_secret(text).unwrap_err().contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_network_is_none_or_hosts() {
        assert_eq!(parse_network("none"), Ok(NetworkPolicy::None));
        let hosts = vec!["a.example".to_owned(), "*.b.example:443".to_owned()];
        assert_eq!(parse_network("a.example, *.b.example:443"), Ok(NetworkPolicy::Allow { hosts }));
        for text in ["", "a,,b", "none,a", ","] {
            assert!(parse_network(text).is_err(), "{text}");
        }
    }
}
