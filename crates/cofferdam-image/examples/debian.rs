//! Builds a root file system: `cargo run -p cofferdam-image --example debian -- CACHE base|tiny|PACKAGE,… OUTPUT.tar`.

use std::path::Path;
use std::time::Instant;

use cofferdam_image::debian::Progress;
use cofferdam_image::{Cache, Recipe, resolve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cache, what, output] = &*arguments else { return Err("pass a cache, a recipe and an output".into()) };
    let mut recipe = match &**what {
        "base" => Recipe::base(),
        "tiny" => Recipe::tiny(),
        packages => Recipe::new(packages.split(',')),
    };
    recipe.architecture = std::env::var("ARCHITECTURE").ok();
    let begun = Instant::now();
    let mut last = String::new();
    let mut show = |step: Progress| {
        let now = step.to_string();
        if now != std::mem::replace(&mut last, now.clone()) {
            println!("{:7.3} s  {now} {:?}", begun.elapsed().as_secs_f64(), step.bytes());
        }
    };
    let plan = resolve(&recipe, &Cache::new(cache), &mut show)?;
    for package in plan.packages() {
        println!("{} {} {}", package.name, package.version, package.sha256);
    }
    println!("{} packages, {} bytes, key {}; {:?}", plan.packages().len(), plan.bytes(), plan.key(), plan.notes());
    plan.write_file(Path::new(output), &mut show)?;
    println!("{:7.3} s  {} bytes", begun.elapsed().as_secs_f64(), std::fs::metadata(output)?.len());
    Ok(())
}
