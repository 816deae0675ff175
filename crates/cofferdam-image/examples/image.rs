//! Builds an image: `cargo run -p cofferdam-image --example image -- IMAGES PACKAGES base|tiny|DIRECTORY|FILE.tar`.

use std::path::Path;
use std::time::Instant;

use cofferdam_image::{Cache, Images, Progress, Recipe, RootSource, Source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [images, packages, what] = &*arguments else { return Err("give two caches and a root".into()) };
    let root = match &**what {
        "base" => RootSource::Debian(Recipe::base()),
        "tiny" => RootSource::Debian(Recipe::tiny()),
        path if Path::new(path).is_dir() => RootSource::Directory(path.into()),
        path => RootSource::Tar(path.into()),
    };
    let begun = Instant::now();
    let mut last = String::new();
    let mut show = |step: Progress| {
        let now = step.to_string();
        if now != std::mem::replace(&mut last, now.clone()) {
            println!("{:7.3} s  {now}", begun.elapsed().as_secs_f64());
        }
    };
    let source = Source { root, ..Source::default() };
    let image = Images::new(images, Cache::new(packages)).make(&source, &mut show)?;
    println!("{:7.3} s  {image:#?}", begun.elapsed().as_secs_f64());
    Ok(())
}
