//! Obtains both interpreters: `cargo run -p cofferdam-wasm-runtimes --example obtain -- CACHE`.

use cofferdam_wasm_runtimes::{Language, Runtimes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = std::env::args_os().nth(1).ok_or("give a directory for the cache")?;
    let runtimes = Runtimes::new(cache);
    for language in [Language::Python, Language::JavaScript] {
        let found = runtimes.obtain(language, |step| eprintln!("{language:?}: {step:?}"))?;
        println!("{found:#?}");
    }
    Ok(())
}
