//! Obtains both interpreters: `cargo run -p cofferdam-wasm-supply --example obtain -- CACHE`.

use cofferdam_wasm_supply::{Language, Supply};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = std::env::args_os().nth(1).ok_or("give a directory for the cache")?;
    let supply = Supply::new(cache);
    for language in [Language::Python, Language::JavaScript] {
        let found = supply.obtain(language, |step| eprintln!("{language:?}: {step:?}"))?;
        println!("{found:#?}");
    }
    Ok(())
}
