//! `cofferdam setup`: installs the interpreters for WebAssembly.

use cofferdam::Result;
use cofferdam::registry::{self, Installed, WASM_LANGUAGES};
use serde_json::json;

use super::block_on;
use crate::args::SetupArgs;
use crate::report::{self, Form};

/// Installs the requested interpreters. The exit status is 0 if all of them are installed.
pub fn main(args: &SetupArgs) -> u8 {
    let form = Form::of(args.json);
    let shown = install(args).map(|installed| {
        let text: String = installed.iter().map(line).collect();
        report::printed(report::show(form, &json!({ "installed": installed }), &text), 0)
    });
    report::finish(shown, form)
}

fn install(args: &SetupArgs) -> Result<Vec<Installed>> {
    let all = WASM_LANGUAGES.map(str::to_owned).to_vec();
    let languages = if args.languages.is_empty() { all } else { args.languages.clone() };
    block_on(async {
        let mut installed: Vec<Installed> = Vec::new();
        for language in languages {
            if installed.iter().any(|known| known.language == language) {
                continue;
            }
            let name = language.clone();
            installed.push(registry::install(&language, move |step| eprintln!("{name}: {step}")).await?);
        }
        Ok(installed)
    })
}

fn line(installed: &Installed) -> String {
    let Installed { language, version, licence, .. } = installed;
    format!("{language} {version} is ready: cofferdam run --level wasm --lang {language} ... (licence: {licence})\n")
}
