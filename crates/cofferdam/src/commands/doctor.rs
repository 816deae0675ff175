//! `cofferdam doctor`: reports what each backend can enforce on this host, and how to fix what is missing.

use std::fmt::Write;
use std::path::PathBuf;

use cofferdam::registry::{self, DoctorReport};
use cofferdam::{FindingState, Level, Result};
use serde_json::json;

use super::block_on;
use crate::args::DoctorArgs;
use crate::report::{self, Form};
use crate::settings::{Chosen, Environment, backend, setup};
use crate::style::{Style, Tone};
use crate::terminal::one_line;

/// Examines the host. The exit status is 0 if the default backend, or the named one, can be used.
pub fn main(args: &DoctorArgs, config: Option<PathBuf>) -> u8 {
    report::finish(examine(args, config), Form::of(args.json))
}

fn examine(args: &DoctorArgs, config: Option<PathBuf>) -> Result<u8> {
    let file = crate::config::load(config, |name| std::env::var_os(name))?;
    let environment = Environment::read(|name| std::env::var_os(name))?;
    let default = match &args.backend {
        // A query about a named backend does not use it, so no level applies.
        Some(name) => Chosen::named(name)?,
        None => backend(None, None, &environment, &file)?,
    };
    let Chosen { info: default, setup: named } = default;
    let setup = named.or(setup(&environment, &file));
    let names: Vec<&str> = match &args.backend {
        Some(_) => vec![default.name],
        None => {
            let others = registry::built_in().map(|info| info.name).filter(|name| *name != default.name);
            [default.name].into_iter().chain(others.filter(|name| wanted(name, default.name))).collect()
        }
    };
    let reports = block_on(async {
        let mut reports = Vec::new();
        for name in names {
            reports.push(registry::doctor(name, &setup).await?);
        }
        Ok(reports)
    })?;
    let usable = reports.iter().any(|report| report.backend == default.name && report.usable);
    let style = Style::stdout();
    let text = reports.iter().map(|report| table(report, style)).collect::<Vec<_>>().join("\n");
    let value = json!({"default": default.name, "usable": usable, "backends": reports});
    let result = report::show(Form::of(args.json), &value, &text);
    Ok(report::printed(result, u8::from(!usable)))
}

/// Returns true if a backend is examined without being named. The simulated backend needs nothing of the host.
fn wanted(name: &str, default: &str) -> bool {
    name != "simulated" || default == "simulated"
}

fn table(report: &DoctorReport, style: Style) -> String {
    let verdict = match report.usable {
        true if report.level == Level::Simulated => {
            style.paint(Tone::Warning, "can be used for tests: it isolates nothing")
        }
        true if !report.tried => style.paint(Tone::Good, "all requirements are met; no sandbox was created as a test"),
        false if !report.tried => style.paint(Tone::Bad, "cannot be used: a requirement is missing"),
        true => style.paint(Tone::Good, "can be used with every protection and the default limits"),
        false => style.paint(Tone::Bad, "cannot be used with every protection and the default limits"),
    };
    let mut out = format!("{} (level {}): {verdict}\n", report.backend, report.level);
    let width = report.items.iter().map(|item| item.name.chars().count()).max().unwrap_or(0);
    for item in &report.items {
        let (tone, word) = match item.state {
            FindingState::Ok => (Tone::Good, "ok"),
            FindingState::Weaker => (Tone::Warning, "weaker"),
            FindingState::Missing => (Tone::Bad, "missing"),
        };
        let state = style.paint(tone, &format!("{word:<7}"));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {state}  {:<width$}  {}", one_line(&item.name), one_line(&item.detail));
        if let Some(remedy) = &item.remedy {
            remedy.lines().for_each(|line| {
                let _ = writeln!(out, "  {:7}  {:width$}  try: {}", "", "", one_line(line));
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam::Finding;

    #[test]
    fn the_table_shows_findings_with_their_remedies() {
        let finding = |name: &str, state, detail: &str, remedy: Option<&str>| Finding {
            name: name.to_owned(),
            state,
            detail: detail.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let report = DoctorReport {
            backend: "process",
            level: Level::Process,
            usable: false,
            tried: true,
            items: vec![
                finding("user namespaces", FindingState::Missing, "refused", Some("sysctl -w x=0")),
                finding("landlock", FindingState::Ok, "ABI 7", None),
                finding("cgroup", FindingState::Weaker, "v1", None),
            ],
        };
        insta::assert_snapshot!(table(&report, Style::Plain), @r"
        process (level process): cannot be used with every protection and the default limits
          missing  user namespaces  refused
                                    try: sysctl -w x=0
          ok       landlock         ABI 7
          weaker   cgroup           v1
        ");
        let untried = |usable| DoctorReport { usable, tried: false, items: Vec::new(), ..report.clone() };
        assert!(table(&untried(true), Style::Plain).contains("no sandbox was created"));
        assert!(table(&untried(false), Style::Plain).contains("missing"));
    }
}
