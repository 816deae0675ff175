//! Runs one shell line in a sandbox and shows everything about it.
use cofferdam_contract::{Backend, ExecRequest, Protection, Spec};
use cofferdam_process::{ProcessBackend, ProcessConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let backend = ProcessBackend::new(ProcessConfig::default()).unwrap();
    let line = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "id; ls -la / /proc/1/ /dev; cat /proc/self/status | grep -E 'Cap|Sec|NoNew'".into());
    let mut spec = Spec::builder();
    if std::env::var_os("WEAK").is_some() {
        for p in Protection::ALL {
            spec = spec.allow_weaker(*p);
        }
    }
    let sandbox = match backend.create(spec.build().unwrap()).await {
        Ok(s) => s,
        Err(e) => {
            println!("{e}\n{:?}", e.remedy());
            return;
        }
    };
    for item in sandbox.posture().items() {
        println!("{:18} {:?} {}", item.protection.as_str(), item.state, item.mechanism);
    }
    let done = sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap();
    println!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    println!("{:?}", done.exit);
    sandbox.close().await.unwrap();
    for n in [1000u32] {
        let t = std::time::Instant::now();
        for _ in 0..n {
            let s = backend.create(Spec::builder().build().unwrap()).await.unwrap();
            s.exec(ExecRequest::argv(["/bin/true"]).build().unwrap()).await.unwrap();
            s.close().await.unwrap();
        }
        println!("{:?} each", t.elapsed() / n);
        let t = std::time::Instant::now();
        for _ in 0..n {
            std::process::Command::new("/bin/true").status().unwrap();
        }
        println!("{:?} bare", t.elapsed() / n);
    }
}
