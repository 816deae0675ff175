//! The operator's file of quotas and prices.

use cofferdam_contract::{ByteSize, Error, Result};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Prices, Quota};

/// The most that all tenants may have together. `None` means no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Total {
    /// Disk of all live sandboxes, by their limits.
    pub disk: Option<ByteSize>,
    /// CPU seconds of a day (UTC).
    pub cpu_seconds_per_day: Option<u64>,
    /// Memory in GiB times seconds of a day (UTC), by the limits of sandboxes.
    pub memory_gib_seconds_per_day: Option<u64>,
    /// Bytes sent and received of a day (UTC).
    pub egress_per_day: Option<ByteSize>,
}

/// The content of the file: a quota, with `total` and `prices` beside its fields.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QuotaFile {
    /// The quota of tenants that have none of their own.
    pub quota: Quota,
    /// The quota of all tenants together.
    pub total: Total,
    /// The prices. Without them, usage has no cost.
    pub prices: Option<Prices>,
}

impl QuotaFile {
    /// Parses the file.
    ///
    /// # Errors
    /// - Those of [`Quota::parse`], and `InvalidInput` for a malformed price.
    pub fn parse(text: &str) -> Result<Self> {
        let mut document: Map<String, Value> = serde_json::from_str(text).map_err(malformed)?;
        let (total, prices) = (part(document.remove("total"))?, part(document.remove("prices"))?);
        let quota: Quota = part(Some(Value::Object(document)))?.unwrap_or_default();
        Ok(Self { quota: quota.check()?, total: total.unwrap_or_default(), prices })
    }
}

fn part<T: DeserializeOwned>(value: Option<Value>) -> Result<Option<T>> {
    value.map(serde_json::from_value).transpose().map_err(malformed)
}

fn malformed(error: serde_json::Error) -> Error {
    Error::invalid("read quota", format!("the quota is malformed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_quota_totals_and_prices() {
        let text = r#"{ "sandboxes": 3, "total": { "cpu_seconds_per_day": 7 },
            "prices": { "currency": "EUR", "cpu_second": "0.0001" } }"#;
        let file = QuotaFile::parse(text).unwrap();
        assert_eq!((file.quota.sandboxes, file.total.cpu_seconds_per_day), (Some(3), Some(7)));
        assert_eq!(file.prices.unwrap().currency(), "EUR");
        assert_eq!(QuotaFile::parse("{}").unwrap(), QuotaFile::default());
        for bad in [
            "[]",
            r#"{"x":1}"#,
            r#"{"weight":0}"#,
            r#"{"total":{"x":1}}"#,
            r#"{"prices":{}}"#,
            r#"{"prices":{"currency":"EUR","cpu_second":0.1}}"#,
            r#"{"prices":{"currency":"EUR","cpu_second":"-1"}}"#,
            r#"{"prices":{"currency":"a,b"}}"#,
        ] {
            assert!(QuotaFile::parse(bad).is_err(), "{bad}");
        }
    }
}
