//! The meaning of claims: tenant, scopes, subject and end of a token that is authentic. Pure.

use std::collections::BTreeSet;
use std::fmt::Write;

use cofferdam_contract::{Error, ErrorKind, Fault, Result, TenantId};
use serde_json::Value;

use super::config::{OidcConfig, Rule};
use crate::caller::{Caller, Proof, Scope};

/// The most characters of a subject in logs.
const MAX_SUBJECT: usize = 64;

/// Returns the caller whom claims name.
///
/// # Errors
/// - `Denied` for claims that name no tenant, several, or one with a name that no tenant can have.
pub fn caller(claims: &Value, config: &OidcConfig) -> Result<Caller> {
    let leeway = i64::try_from(config.leeway.as_secs()).unwrap_or_default();
    // Checked before. A number that does not fit ends at once.
    let end = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() as i64;
    Ok(Caller {
        is_operator: false,
        tenant: tenant(claims, &config.tenant)?,
        scopes: scopes(claims, &config.scopes),
        key: format!("oidc:{}", subject(claims)),
        proof: Proof::Until(end.saturating_add(leeway)),
        certificate: None,
    })
}

fn tenant(claims: &Value, rule: &Rule<TenantId>) -> Result<TenantId> {
    let (claim, values) = match rule {
        Rule::Fixed(tenant) => return Ok(tenant.clone()),
        Rule::Claim { claim, values } => (claim, values),
    };
    let texts = texts(claims, claim, false);
    let found: BTreeSet<TenantId> = match values {
        Some(values) => texts.iter().filter_map(|text| values.get(*text)).cloned().collect(),
        None => texts.iter().map(|text| TenantId::new(*text)).collect::<Result<_>>().map_err(|_| {
            denied("the token names a tenant that no server can have")
                .with_remedy("a tenant has 1 to 64 letters, digits, '.', '_' or '-'")
        })?,
    };
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(tenant), None) => Ok(tenant),
        (None, _) => Err(denied("the token names no tenant of this server")
            .with_context("claim", claim.clone())
            .with_remedy("ask the operator of the issuer for the claim")),
        _ => Err(denied("the token names several tenants").with_context("claim", claim.clone())),
    }
}

fn scopes(claims: &Value, rule: &Rule<BTreeSet<Scope>>) -> BTreeSet<Scope> {
    match rule {
        Rule::Fixed(scopes) => scopes.clone(),
        Rule::Claim { claim, values } => {
            let texts = texts(claims, claim, true).into_iter();
            match values {
                Some(values) => texts.filter_map(|text| values.get(text)).flatten().copied().collect(),
                // 'admin' is a common word, which an issuer may give for other services.
                None => texts.filter_map(|text| text.parse().ok()).filter(|scope| *scope != Scope::Admin).collect(),
            }
        }
    }
}

/// Returns the texts of a claim: of a text itself or its words, and of a list.
fn texts<'a>(claims: &'a Value, claim: &str, are_words: bool) -> Vec<&'a str> {
    let value = if claim.starts_with('/') { claims.pointer(claim) } else { claims.get(claim) };
    match value {
        Some(Value::String(text)) if are_words => text.split_ascii_whitespace().collect(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Returns the subject in characters that every log can have.
fn subject(claims: &Value) -> String {
    let mut shown = String::new();
    for letter in claims.get("sub").and_then(Value::as_str).unwrap_or_default().chars().take(MAX_SUBJECT) {
        match letter {
            ' '..='~' => shown.push(letter),
            // Writing to a text cannot fail.
            _ => drop(write!(shown, "\\u{{{:x}}}", u32::from(letter))),
        }
    }
    shown
}

fn denied(message: &str) -> Error {
    Error::new(ErrorKind::Denied, "authenticate", message).with_fault(Fault::Caller)
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::valid;
    use super::*;
    use serde_json::json;

    fn of(claims: Value, change: impl FnOnce(&mut Value)) -> Result<Caller> {
        let mut document = valid();
        change(&mut document);
        caller(&claims, &OidcConfig::parse(&document.to_string()).unwrap())
    }

    #[test]
    fn claims_name_tenant_scopes_and_subject() {
        let found = of(json!({ "org": "acme", "scope": "openid run", "sub": "a\u{7}b", "exp": 5 }), |_| {}).unwrap();
        assert_eq!((found.tenant.as_str(), found.key.as_str()), ("acme", "oidc:a\\u{7}b"));
        assert_eq!((found.scopes, found.proof), (BTreeSet::from([Scope::Runs]), Proof::Until(35)));
        let nested = json!({ "realm": { "a/b": ["x", 1, "all"] }, "org": ["acme"], "exp": 5.5 });
        let found = of(nested, |document| document["scopes"]["claim"] = json!("/realm/a~1b")).unwrap();
        assert!(found.may(Scope::Admin));
        let plain = |document: &mut Value| document["scopes"] = json!({ "claim": "scope" });
        let found = of(json!({ "org": "a", "scope": "admin runs files:read x" }), plain).unwrap();
        assert_eq!(found.scopes, BTreeSet::from([Scope::Runs, Scope::FilesRead]), "not admin");
        assert!(of(json!({ "org": "a" }), |_| {}).unwrap().scopes.is_empty());
        let url = |document: &mut Value| document["tenant"] = json!({ "claim": "https://example.com/tenant" });
        assert!(of(json!({ "https://example.com/tenant": "acme" }), url).is_ok());
    }

    /// Promise (Server): A token whose claims name no tenant, several, or a malformed one is refused.
    #[test]
    fn tenant_claim_is_single_and_well_formed() {
        for org in [
            json!(null),
            json!(7),
            json!(""),
            json!([]),
            json!(["a", "b"]),
            json!({ "a": "b" }),
            json!("../../etc"),
            json!("a/b"),
            json!("a b"),
            json!("a\n"),
            json!("\u{0430}cme"),
            json!("x".repeat(65)),
            json!(["acme", "../x"]),
        ] {
            let error = of(json!({ "org": org, "scope": "run" }), |_| {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{org}");
        }
        let mapped = |document: &mut Value| document["tenant"]["values"] = json!({ "g1": "acme", "g2": "other" });
        assert_eq!(of(json!({ "org": ["g1", "else"] }), mapped).unwrap().tenant.as_str(), "acme");
        for org in [json!("acme"), json!(["g1", "g2"])] {
            assert!(of(json!({ "org": org }), mapped).is_err(), "{org}");
        }
    }
}
