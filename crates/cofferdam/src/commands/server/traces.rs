//! The export of traces by `cofferdam serve`: its options, and the variables that OpenTelemetry defines.

use cofferdam::{Error, Result};
use cofferdam_server::OtlpConfig;

use crate::args::HttpArgs;

/// The variables of OpenTelemetry. The exporter reads further ones, such as the headers.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
const DISABLED: &str = "OTEL_SDK_DISABLED";
/// The supported protocol.
const BINARY: &str = "http/protobuf";

/// Returns the export of traces that the options or the environment request.
///
/// # Errors
/// - `InvalidInput` for an address, protocol or ratio that cannot be used.
pub fn config(args: &HttpArgs) -> Result<Option<OtlpConfig>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    read(args.otlp.as_deref(), args.trace_sample, variable)
}

fn read(
    collector: Option<&str>,
    ratio: Option<f64>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<OtlpConfig>> {
    if variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let named = |name: &'static str, read: fn(&str) -> Result<OtlpConfig>| {
        variable(name).map(|url| read(&url).map_err(|error| error.with_context("variable", name)))
    };
    let found = collector
        .map(OtlpConfig::collector)
        .or_else(|| named(TRACES_ENDPOINT, OtlpConfig::receiver))
        .or_else(|| named(ENDPOINT, OtlpConfig::collector))
        .transpose()?;
    let Some(mut config) = found else { return Ok(None) };
    if let Some(other) = variable(PROTOCOL).filter(|protocol| protocol != BINARY) {
        let message = format!("{PROTOCOL} is '{}', and the server speaks {BINARY} only", other.escape_debug());
        return Err(Error::invalid("serve", message)
            .with_remedy(format!("set {PROTOCOL}={BINARY}, and the address of the collector's HTTP port (4318)")));
    }
    config.authorities = variable(CERTIFICATE).map(Into::into);
    if let Some(service) = variable(SERVICE_NAME) {
        config.service = service;
    }
    let ratio = match (ratio, variable(SAMPLER_ARG)) {
        (Some(ratio), _) => ratio,
        (None, Some(text)) => text.parse().map_err(|_| {
            Error::invalid("serve", format!("{SAMPLER_ARG} is '{}', which is no number", text.escape_debug()))
        })?,
        (None, None) => 1.0,
    };
    config.sampled(ratio).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(collector: Option<&str>, ratio: Option<f64>, set: &[(&str, &str)]) -> Result<Option<OtlpConfig>> {
        read(collector, ratio, |name| set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn options_come_before_variables() {
        assert!(read_with(None, Some(0.5), &[]).unwrap().is_none(), "nothing is exported unasked");
        let set = [(ENDPOINT, "http://127.0.0.1:4318"), (SERVICE_NAME, "boxes"), (SAMPLER_ARG, "0.25")];
        let found = format!("{:?}", read_with(None, None, &set).unwrap().unwrap());
        for part in ["/v1/traces", "\"boxes\"", "ratio: 0.25"] {
            assert!(found.contains(part), "{found}");
        }
        let found = format!("{:?}", read_with(Some("https://otel.example"), Some(0.5), &set).unwrap().unwrap());
        assert!(found.contains("otel.example") && found.contains("ratio: 0.5"), "{found}");
        let set = [(ENDPOINT, "http://a.example"), (TRACES_ENDPOINT, "http://b.example/spans")];
        let found = format!("{:?}", read_with(None, None, &set).unwrap().unwrap());
        assert!(found.contains("b.example") && !found.contains("v1/traces"), "{found}");
        assert!(read_with(Some("http://a.example"), None, &[(DISABLED, "true")]).unwrap().is_none());
    }

    #[test]
    fn settings_that_cannot_be_used_are_refused() {
        let endpoint = (ENDPOINT, "http://127.0.0.1:4318");
        for set in [
            &[(ENDPOINT, "127.0.0.1:4317")][..],
            &[endpoint, (PROTOCOL, "grpc")],
            &[endpoint, (SAMPLER_ARG, "often")],
            &[endpoint, (SAMPLER_ARG, "2")],
        ] {
            assert!(read_with(None, None, set).is_err(), "{set:?}");
        }
    }
}
