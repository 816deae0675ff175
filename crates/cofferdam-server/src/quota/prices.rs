//! Prices of usage. All arithmetic is in integers.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::store::Usage;

/// The digits of a price after the point.
const DIGITS: usize = 12;
/// The digits of a price before the point.
const MAX_WHOLE_DIGITS: usize = 6;
/// The most bytes of the name of a currency.
const MAX_CURRENCY: usize = 8;
/// A month of 30 days, in milliseconds.
const MONTH_MS: i128 = 30 * 24 * 60 * 60 * 1000;
/// Parts of a price in a millionth of the currency.
const PARTS_OF_MICRO: i128 = 1_000_000;

/// A price with at most 12 digits after the point, such as `0.000012`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Price(u64);

impl FromStr for Price {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits =
            |text: &str, max| (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let wrong = "a price is a decimal number in quotes with at most 6 digits before the point and 12 after it";
        if !digits(whole, MAX_WHOLE_DIGITS) || !digits(part, DIGITS) {
            return Err(wrong);
        }
        format!("{whole}{part:0<DIGITS$}").parse().map(Self).map_err(|_| wrong)
    }
}

impl TryFrom<String> for Price {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Price> for String {
    fn from(Price(parts): Price) -> Self {
        let scale = 10_u64.pow(DIGITS as u32);
        format!("{}.{:0DIGITS$}", parts / scale, parts % scale)
    }
}

/// Prices of usage in a currency. A missing price is 0.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    currency: Currency,
    /// The price of a second of one processor.
    #[serde(default)]
    cpu_second: Price,
    /// The price of a GiB of memory for a second.
    #[serde(default)]
    memory_gib_second: Price,
    /// The price of a GiB sent or received.
    #[serde(default)]
    egress_gib: Price,
    /// The price of a GiB of disk for 30 days.
    #[serde(default)]
    disk_gib_month: Price,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Currency(String);

impl TryFrom<String> for Currency {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match (1..=MAX_CURRENCY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            true => Ok(Self(text)),
            false => Err("a currency has 1 to 8 letters and digits"),
        }
    }
}

impl Prices {
    /// Returns the name of the currency.
    pub fn currency(&self) -> &str {
        &self.currency.0
    }

    /// Returns the cost of an amount of usage in millionths of the currency, rounded to the nearest one.
    pub fn cost_micros(&self, usage: &Usage) -> i64 {
        // Each amount is below 2^63 and each price below 2^63, so that a product fits.
        let parts = |amount: i64, unit: i128, Price(price): Price| i128::from(amount) * i128::from(price) / unit;
        let sum = parts(usage.cpu_us, 1_000_000, self.cpu_second)
            + parts(usage.memory_mib_ms, 1024 * 1000, self.memory_gib_second)
            + parts(usage.egress_bytes, 1 << 30, self.egress_gib)
            + parts(usage.disk_mib_ms, 1024 * MONTH_MS, self.disk_gib_month);
        i64::try_from((sum + PARTS_OF_MICRO / 2) / PARTS_OF_MICRO).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_exact() {
        for (text, parts) in [("0", 0), ("1", 1_000_000_000_000), ("0.000012", 12_000_000), ("0.000000000001", 1)] {
            assert_eq!(text.parse(), Ok(Price(parts)));
        }
        for bad in ["", ".1", "1.", "-1", "1e3", "1,0", "0.0000000000001", "1000000", "+1", " 1"] {
            assert!(bad.parse::<Price>().is_err(), "{bad}");
        }
        assert_eq!(String::from(Price(12_000_000)).parse(), Ok(Price(12_000_000)));
    }

    /// Promise (Server): Costs are sums of integers, rounded to a millionth of the currency.
    #[test]
    fn costs_add_up() {
        let prices: Prices = serde_json::from_str(
            r#"{ "currency": "EUR", "cpu_second": "0.1", "memory_gib_second": "0.01", "egress_gib": "2",
                "disk_gib_month": "3" }"#,
        )
        .unwrap();
        let cpu = Usage { cpu_us: 30_000_000, ..Usage::default() };
        assert_eq!(prices.cost_micros(&cpu), 3_000_000);
        let memory = Usage { memory_mib_ms: 1024 * 1000 * 7, ..Usage::default() };
        assert_eq!(prices.cost_micros(&memory), 70_000);
        let egress = Usage { egress_bytes: 1 << 29, ..Usage::default() };
        assert_eq!(prices.cost_micros(&egress), 1_000_000);
        let disk = Usage { disk_mib_ms: 1024 * 30 * 24 * 60 * 60 * 1000, ..Usage::default() };
        assert_eq!(prices.cost_micros(&disk), 3_000_000);
        let mut all = cpu;
        [memory, egress, disk].iter().for_each(|usage| all.add(usage));
        assert_eq!(prices.cost_micros(&all), 7_070_000);
        let max = Usage { cpu_us: i64::MAX, ..Usage::default() };
        assert_eq!(prices.cost_micros(&max), i64::MAX / 10 + 1, "0.1 of each, rounded");
    }
}
