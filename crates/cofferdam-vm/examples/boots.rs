//! Measures the time to create sandboxes: `cargo run --release -p cofferdam-vm --example boots -- IMAGES PACKAGES
//! tiny|base COUNT`.

use std::time::Instant;

use cofferdam_contract::{Backend, ExecRequest, Spec};
use cofferdam_debian::Recipe;
use cofferdam_vm::image::{RootSource, Source};
use cofferdam_vm::{MakePolicy, VmBackend, VmConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [images, packages, what, count] = &*arguments else { return Err("give two caches, a root and a count".into()) };
    let recipe = if what == "base" { Recipe::base() } else { Recipe::tiny() };
    let config = VmConfig {
        images: images.into(),
        packages: packages.into(),
        source: Source { root: RootSource::Debian(recipe), ..Source::default() },
        make: MakePolicy::Missing,
        ..VmConfig::new(images)
    };
    let backend = VmBackend::new(config)?;
    println!("{}", backend.monitor().await?);
    for _ in 0..count.parse()? {
        let begun = Instant::now();
        let sandbox = backend.create(Spec::default()).await?;
        let made = begun.elapsed();
        let mut execs = Vec::new();
        for line in ["true", "true", "python3 -c 'print(sum(range(1000000)))'"] {
            let begun = Instant::now();
            let done = sandbox.exec(ExecRequest::shell(line).build()?).await?;
            assert!(done.exit.success(), "{done:?}");
            execs.push(begun.elapsed());
        }
        let begun = Instant::now();
        sandbox.close().await?;
        println!("made {made:?}, execs {execs:?}, closed {:?}", begun.elapsed());
    }
    Ok(())
}
