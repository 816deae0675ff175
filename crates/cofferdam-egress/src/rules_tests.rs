use cofferdam_contract::{ErrorKind, NetworkRules};
use proptest::prelude::*;

use super::*;

fn read(hosts: &[&str]) -> Result<Rules> {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Rules::of(&NetworkPolicy::Allow { hosts }).map(|rules| rules.expect("rules"))
}

/// Looks up a name that resolves to these addresses, then connects to one of these.
fn verdict(hosts: &[&str], name: &str, resolved: &[&str], to: &str) -> std::result::Result<Allowed, Refusal> {
    let rules = read(hosts).unwrap();
    let known: Vec<ResolvedAddress> = match rules.lookup(name) {
        Ok(Query::Name(target)) => {
            let known = |text: &&str| ResolvedAddress { address: text.parse().unwrap(), target: Arc::clone(&target) };
            resolved.iter().map(known).collect()
        }
        Ok(Query::Address(_)) => Vec::new(),
        Err(refusal) => return Err(refusal),
    };
    rules.connect(&known, to.parse().unwrap())
}

#[test]
fn verdicts() {
    use Allowed::{Elsewhere, InRange, Listed, Localhost};
    use Refusal::{InvalidName, NotListed, NotLookedUp, NotPublic, OtherPort};
    for (hosts, name, resolved, to, expected) in [
        (&["a.example"][..], "a.example", &["8.8.8.8"][..], "8.8.8.8:443", Ok(Elsewhere)),
        (&["a.example"], "A.Example.", &["8.8.8.8"], "8.8.8.8:1", Ok(Elsewhere)),
        (&["A.EXAMPLE."], "a.example", &["8.8.8.8"], "8.8.8.8:1", Ok(Elsewhere)),
        (&["a.example:443"], "a.example", &["8.8.8.8"], "8.8.8.8:443", Ok(Elsewhere)),
        (&["a.example:443"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Err(OtherPort)),
        (&["a.example:443", "a.example:80"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Ok(Elsewhere)),
        (&["a.example:443", "a.example"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Ok(Elsewhere)),
        (&["a.example", "a.example:443"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Ok(Elsewhere)),
        (&["*.example:1", "a.example:2"], "a.example", &["8.8.8.8"], "8.8.8.8:2", Ok(Elsewhere)),
        (&["a.example"], "a.example", &["8.8.8.8"], "8.8.4.4:443", Err(NotLookedUp)),
        (&["a.example"], "a.example", &["2606:4700::1"], "[2606:4700::1]:443", Ok(Elsewhere)),
        (&["a.example"], "b.example", &[], "8.8.8.8:1", Err(NotListed)),
        (&["a.example"], "a.example.b", &[], "8.8.8.8:1", Err(NotListed)),
        (&["a.example"], "b.a.example", &[], "8.8.8.8:1", Err(NotListed)),
        (&["a.example"], "a.example..", &[], "8.8.8.8:1", Err(InvalidName)),
        (&["a.example"], "a.example\0", &[], "8.8.8.8:1", Err(InvalidName)),
        (&["a.example"], "", &[], "8.8.8.8:1", Err(InvalidName)),
        (&["*.example"], "b.a.example", &["8.8.8.8"], "8.8.8.8:1", Ok(Elsewhere)),
        (&["*.example"], "example", &[], "8.8.8.8:1", Err(NotListed)),
        (&["*.a.example"], "ba.example", &[], "8.8.8.8:1", Err(NotListed)),
        (&["*.example"], ".example", &[], "8.8.8.8:1", Err(InvalidName)),
        (&["*.a.example"], "*.a.example", &[], "8.8.8.8:1", Err(InvalidName)),
        // Names that resolve to addresses which are not allowed.
        (&["a.example"], "a.example", &["127.0.0.1"], "127.0.0.1:80", Err(NotPublic)),
        (&["a.example"], "a.example", &["169.254.169.254"], "169.254.169.254:80", Err(NotPublic)),
        (&["a.example"], "a.example", &["10.1.2.3"], "10.1.2.3:80", Err(NotPublic)),
        (&["a.example"], "a.example", &["::1"], "[::1]:80", Err(NotPublic)),
        (&["a.example"], "a.example", &["64:ff9b::7f00:1"], "[64:ff9b::7f00:1]:80", Err(NotPublic)),
        (&["a.example"], "a.example", &["64:ff9b::808:808"], "[64:ff9b::808:808]:80", Err(NotPublic)),
        (&["a.example"], "a.example", &["64:ff9b:1::808:808"], "[64:ff9b:1::808:808]:80", Err(NotPublic)),
        (&["a.example"], "a.example", &["2002:808:808::1"], "[2002:808:808::1]:80", Err(NotPublic)),
        (&["a.example", "[64:ff9b::/96]:80"], "a.example", &["64:ff9b::808:808"], "[64:ff9b::808:808]:80", Ok(InRange)),
        (&["a.example", "[64:ff9b::/96]:81"], "a.example", &["64:ff9b::1"], "[64:ff9b::1]:80", Err(NotPublic)),
        (&["a.example", "2002:808:808::1"], "a.example", &["2002:808:808::1"], "[2002:808:808::1]:80", Ok(Listed)),
        (&["a.example"], "a.example", &["::ffff:127.0.0.1"], "[::ffff:127.0.0.1]:80", Err(NotPublic)),
        (&["a.example", "127.0.0.1:80"], "a.example", &["127.0.0.1"], "127.0.0.1:81", Err(NotPublic)),
        (&["a.example", "10.1.2.3"], "a.example", &["10.1.2.3"], "10.1.2.3:80", Ok(Listed)),
        (&["*.localhost"], "a.localhost", &["127.0.0.1"], "127.0.0.1:80", Err(NotPublic)),
        (&["localhost"], "localhost", &["127.0.0.1", "::1"], "[::1]:80", Ok(Localhost)),
        (&["localhost:80"], "localhost", &["127.0.0.1"], "127.0.0.1:80", Ok(Localhost)),
        (&["localhost:80"], "localhost", &["127.0.0.1"], "127.0.0.1:81", Err(OtherPort)),
        (&["localhost"], "localhost", &["127.0.0.1"], "127.0.0.2:80", Err(NotLookedUp)),
        (&["localhost"], "localhost", &["8.8.8.8"], "8.8.8.8:80", Err(NotPublic)),
        // Listed addresses.
        (&["127.0.0.1:80"], "127.0.0.1", &[], "127.0.0.1:80", Ok(Listed)),
        (&["127.0.0.1:80"], "127.0.0.1", &[], "127.0.0.1:81", Err(OtherPort)),
        (&["127.0.0.1:80", "127.0.0.1:81"], "127.0.0.1", &[], "127.0.0.1:81", Ok(Listed)),
        (&["127.0.0.1"], "127.0.0.1", &[], "[::ffff:127.0.0.1]:80", Err(NotLookedUp)),
        (&["127.0.0.1"], "127.0.0.1", &[], "[::127.0.0.1]:80", Err(NotLookedUp)),
        (&["127.0.0.1"], "::ffff:127.0.0.1", &[], "127.0.0.1:80", Err(NotListed)),
        (&["127.0.0.1"], "127.0.0.2", &[], "127.0.0.1:80", Err(NotListed)),
        (&["127.0.0.1"], "2130706433", &[], "127.0.0.1:80", Err(InvalidName)),
        (&["127.0.0.1"], "0x7f.1", &[], "127.0.0.1:80", Err(InvalidName)),
        (&["127.0.0.1"], "0x7f000001", &[], "127.0.0.1:80", Err(InvalidName)),
        (&["[::1]:80"], "::1", &[], "[::1]:80", Ok(Listed)),
        (&["[::1]"], "::1", &[], "[::1]:9", Ok(Listed)),
        (&["fd00::1"], "fd00:0::1", &[], "[fd00::1]:9", Ok(Listed)),
        (&["[64:ff9b::7f00:1]"], "64:ff9b::127.0.0.1", &[], "[64:ff9b::7f00:1]:9", Ok(Listed)),
    ] {
        assert_eq!(verdict(hosts, name, resolved, to), expected, "{hosts:?} {name} {resolved:?} {to}");
    }
    assert_eq!(verdict(&[], "localhost", &[], "127.0.0.1:80"), Err(NotListed));
    assert!(Rules::of(&NetworkPolicy::None).unwrap().is_none());
}

#[test]
fn hosts_that_are_none_are_refused() {
    let long = "a".repeat(64);
    for text in [
        "",
        ".",
        "*",
        "*.",
        "*a.example",
        "a.*.example",
        "*.*.example",
        "a..example",
        ".example",
        "a b",
        "a/b",
        "a:0",
        "a:",
        "a:65536",
        "a:+80",
        "a:x",
        "a:80:80",
        ":80",
        "http://a",
        "a@b",
        "127.1",
        "1",
        "0x7f.1",
        "a.1",
        "*.1",
        "127.0.0.1:",
        "127.0.0.256",
        "[127.0.0.1]",
        "[::1",
        "::1]",
        "[::1]:0",
        "[::1]x",
        "[a]",
        "fe80::1%1",
        "[]:80",
        "::ffff:127.0.0.1",
        "[::ffff:8.8.8.8]:80",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "ü.example",
        "a\0",
        long.as_str(),
    ] {
        let error = read(&[text]).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
    }
    assert!(read(&["a"; MAX_HOSTS]).is_ok() && read(&["a"; MAX_HOSTS + 1]).is_err());
    for text in ["a", "a_b.c-d", "xn--tda.example", "*.com", "1.a", "10.0.0.1:65535", "fe80::1", "[fe80::1]:1"] {
        assert!(read(&[text]).is_ok(), "{text}");
    }
}

/// Promise (Network): A preset allows the hosts of a package manager and no others.
#[test]
fn presets_allow_their_hosts() {
    let rules = read(&["@python-packages", "a.example:1"]).unwrap();
    for (name, allowed) in
        [("pypi.org", true), ("files.pythonhosted.org", true), ("a.example", true), ("x.pypi.org", false)]
    {
        assert_eq!(rules.lookup(name).is_ok(), allowed, "{name}");
    }
    assert_eq!(rules.ports(), Some([1, 443].into()));
    for (name, _) in crate::PRESETS {
        assert!(read(&[&format!("@{name}")]).unwrap().ports().is_some(), "{name}");
    }
    assert!(read(&["@other"]).unwrap_err().remedy().unwrap().contains("@git-hosts"));
}

proptest! {
    #[test]
    fn nothing_panics(host in ".{0,40}", queried in ".{0,40}") {
        let _ = read(&[&host]);
        let _ = read(&["a.example", "*.b"]).unwrap().lookup(&queried);
    }

    /// Promise (Network): A guest can look up listed names only.
    #[test]
    fn only_listed_names_are_resolved(queried in "[a-c.*A-C]{0,12}") {
        let rules = read(&["a.b", "*.b.c"]).unwrap();
        if rules.lookup(&queried).is_ok() {
            let name = queried.to_ascii_lowercase();
            let name = name.strip_suffix('.').unwrap_or(&name);
            prop_assert!(name == "a.b" || name.ends_with(".b.c") && name.len() > 4, "{}", queried);
        }
    }

    /// Promise (Network): A listed name leads to public addresses only.
    #[test]
    fn a_name_leads_nowhere_but_to_public_addresses(bits in any::<u128>(), port in 1u16..) {
        for address in [IpAddr::V6(bits.into()), IpAddr::V4((bits as u32).into())] {
            let rules = read(&["a.b", "127.0.0.1:80"]).unwrap();
            let Ok(Query::Name(target)) = rules.lookup("a.b") else { panic!() };
            let known = ResolvedAddress { address, target };
            let to = SocketAddr::new(address, port);
            prop_assert_eq!(rules.connect([&known], to).is_ok(), is_public(address));
            prop_assert!(rules.connect([], to).is_err());
        }
    }

    /// Promise (Network): A rule for a port allows no other port.
    #[test]
    fn a_port_rule_holds(rule in 1u16.., port in 1u16..) {
        let rules = read(&[&format!("a.b:{rule}"), &format!("9.9.9.9:{rule}")]).unwrap();
        let Ok(Query::Name(target)) = rules.lookup("a.b") else { panic!() };
        let known = ResolvedAddress { address: [8, 8, 8, 8].into(), target };
        for address in [[8, 8, 8, 8], [9, 9, 9, 9]] {
            prop_assert_eq!(rules.connect([&known], (address, port).into()).is_ok(), rule == port);
        }
    }
}

fn detailed(rules: &str) -> Result<Rules> {
    let allow: Vec<NetworkRule> = serde_json::from_str(rules).unwrap();
    Rules::of(&NetworkPolicy::Rules(NetworkRules { allow, ..NetworkRules::default() }))
        .map(|rules| rules.expect("rules"))
}

/// Promise (Network): A rule for protocols, methods and paths allows nothing else.
#[test]
fn requests_are_decided_by_protocol_method_and_path() {
    use Refusal::{AmbiguousPath, NotListed, OtherMethod, OtherPath, OtherPort, OtherProtocol};
    let rules = detailed(
        r#"[{"host":"api.example:443","methods":["GET","HEAD"],"paths":["/v1","/open/"]},
            {"host":"tls.example:443","protocol":"tls"}, {"host":"web.example:80","protocol":"http"},
            {"host":"any.example:443"}, {"host":"seen.example:443","protocol":"https"}, {"host":"10.0.0.0/8:5432"}]"#,
    )
    .unwrap();
    const API: &str = "api.example:443 GET,HEAD /v1,/open/";
    let request =
        |secure, method: &str, path: &str| Content::Request { secure, method: method.into(), path: path.into() };
    for (name, port, content, expected) in [
        ("api.example", 443, request(true, "GET", "/v1"), Ok(API)),
        ("api.example", 443, request(true, "HEAD", "/v1/x"), Ok(API)),
        ("api.example", 443, request(true, "GET", "/%761/x"), Ok(API)),
        ("api.example", 443, request(true, "GET", "/open/x"), Ok(API)),
        ("api.example", 443, request(true, "GET", "/v10"), Err(OtherPath)),
        ("api.example", 443, request(true, "GET", "/open"), Err(OtherPath)),
        ("api.example", 443, request(true, "GET", "/"), Err(OtherPath)),
        ("api.example", 443, request(true, "POST", "/v1"), Err(OtherMethod)),
        ("api.example", 443, request(true, "get", "/v1"), Err(OtherMethod)),
        ("api.example", 443, Content::Tls, Err(OtherProtocol)),
        ("api.example", 443, Content::Any, Err(OtherProtocol)),
        ("api.example", 80, request(false, "GET", "/v1"), Err(OtherPort)),
        ("tls.example", 443, Content::Tls, Ok("tls.example:443")),
        ("tls.example", 443, Content::Any, Err(OtherProtocol)),
        ("tls.example", 443, request(true, "GET", "/"), Err(OtherProtocol)),
        ("web.example", 80, request(false, "GET", "*"), Ok("web.example:80")),
        ("web.example", 80, request(true, "GET", "/"), Err(OtherProtocol)),
        ("any.example", 443, Content::Tls, Ok("any.example:443")),
        ("seen.example", 443, Content::Tls, Err(OtherProtocol)),
        ("seen.example", 443, request(true, "PUT", "/../x"), Ok("seen.example:443")),
        ("other.example", 443, Content::Tls, Err(NotListed)),
    ] {
        let decided = rules.decide(Server::Name(name), port, &content).map(|rule| rule.text.clone());
        assert_eq!(decided, expected.map(str::to_owned), "{name} {port} {content:?}");
    }
    for path in [
        "/v1/../x",
        "/v1/%2e%2e/x",
        "/v1//x",
        "/v1/%2fx",
        "/v1\\x",
        "/v1/%zz",
        "/v1/%",
        "/v1/.",
        "/v1;x",
        "/v1/%00",
        "/v1/%252e",
    ] {
        let decided = rules.decide(Server::Name("api.example"), 443, &request(true, "GET", path));
        assert_eq!(decided.unwrap_err(), AmbiguousPath, "{path}");
    }
    for (name, expected) in
        [("api.example", true), ("seen.example", true), ("tls.example", false), ("any.example", false)]
    {
        assert_eq!(rules.needs_interception(Server::Name(name), 443), expected, "{name}");
    }
    for (address, port, allowed) in [("10.200.3.4", 5432, true), ("10.0.0.1", 80, false), ("11.0.0.1", 5432, false)] {
        let address = address.parse().unwrap();
        assert_eq!(rules.decide(Server::Address(address), port, &Content::Any).is_ok(), allowed, "{address}");
        assert_eq!(rules.connect([], (address, port).into()).is_ok(), allowed, "{address}");
    }
}

/// The text of a rule differs from that of other rules of its host.
#[test]
fn the_text_of_a_rule_has_its_methods_and_paths() {
    let text = |rule: &str| detailed(&format!("[{rule}]")).unwrap().rules[0].text.clone();
    for (rule, expected) in [
        (r#"{"host":"a:443"}"#, "a:443"),
        (r#"{"host":"a:443","methods":["GET"],"paths":["/simple/"]}"#, "a:443 GET /simple/"),
        (r#"{"host":"a:443","methods":["GET","HEAD"]}"#, "a:443 GET,HEAD"),
        (r#"{"host":"a:443","paths":["/x","/y/"]}"#, "a:443 /x,/y/"),
    ] {
        assert_eq!(text(rule), expected);
    }
    let long = text(&format!(r#"{{"host":"a:443","methods":["GET"],"paths":["/{}"]}}"#, "ü".repeat(200)));
    assert!(long.starts_with("a:443 GET /üü") && long.ends_with("ü…") && long.len() < 110, "{long}");
    let preset = detailed(r#"[{"host":"@python-packages","paths":["/simple/"]}]"#).unwrap();
    assert_eq!(preset.rules[0].text, "pypi.org:443 /simple/");
}

#[test]
fn rules_that_contradict_themselves_are_refused() {
    for rule in [
        r#"{"host":"a:443","protocol":"tls","paths":["/"]}"#,
        r#"{"host":"10.0.0.1:80","paths":["/"]}"#,
        r#"{"host":"a:443","methods":["get"]}"#,
        r#"{"host":"a:443","methods":[""]}"#,
        r#"{"host":"a:443","paths":["x"]}"#,
        r#"{"host":"a:443","paths":["/a/../b"]}"#,
        r#"{"host":"a:443","paths":["/a?b"]}"#,
        r#"{"host":"a:443","max_requests":0}"#,
        r#"{"host":"a:443","requests_per_minute":100000}"#,
        r#"{"host":"10.0.0.1/8:80"}"#,
        r#"{"host":"10.0.0.0/7:80"}"#,
        r#"{"host":"10.0.0.0/33:80"}"#,
        r#"{"host":"0.0.0.0/8:80"}"#,
        r#"{"host":"10.0.0.0/+8:80"}"#,
    ] {
        assert_eq!(detailed(&format!("[{rule}]")).expect_err(rule).kind(), ErrorKind::InvalidInput, "{rule}");
    }
}

#[test]
fn budgets_survive_a_change_of_other_rules() {
    let first = detailed(r#"[{"host":"a:443","max_requests":1},{"host":"b:443"}]"#).unwrap();
    let content = Content::Tls;
    let now = std::time::Instant::now();
    assert!(first.decide(Server::Name("a"), 443, &content).unwrap().budget.request(now).is_ok());
    let second = detailed(r#"[{"host":"a:443","max_requests":1},{"host":"c:443"}]"#).unwrap().with_budgets_of(&first);
    assert_eq!(second.decide(Server::Name("a"), 443, &content).unwrap().budget.request(now), Err(Refusal::UsedUp));
    let third = detailed(r#"[{"host":"a:443","max_requests":2}]"#).unwrap().with_budgets_of(&second);
    assert!(third.decide(Server::Name("a"), 443, &content).unwrap().budget.request(now).is_ok());
}

/// Promise (Network): While a policy is learned, every name can be looked up and nothing is allowed.
#[test]
fn learning_refuses_everything_or_allows_every_name() {
    for allow in [false, true] {
        let rules = Rules::of(&NetworkPolicy::Learn { allow }).unwrap().unwrap();
        assert!(rules.lookup("x.example").is_ok() && rules.is_detailed() && rules.ports().is_some());
        let decided = rules.decide(Server::Name("x.example"), 443, &Content::Tls);
        assert_eq!(decided.is_ok(), allow);
        assert!(rules.connect([], "10.0.0.1:443".parse().unwrap()).is_err());
    }
}
