//! x
use super::*;
use crate::support::{backend, block_on, printed, python, stdout};
#[test]
fn smoke() {
    block_on(async {
        let backend = backend();
        let begun = std::time::Instant::now();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        println!("warm {:?}", begun.elapsed());
        for i in 0..20 {
            let begun = std::time::Instant::now();
            let completed = run(&zygote, python("import os\nprint(os.getpid(), os.getppid(), os.listdir('/proc/self/fd'), os.listdir('/tmp'))")).await.expect("it runs");
            println!("{i} {:?} {}", begun.elapsed(), printed(&completed));
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let _ = stdout;
        zygote.close().await.unwrap();
    });
}
