//! Where the time goes.
use cofferdam_contract::{Backend, ExecRequest, Spec};
use cofferdam_process::{ProcessBackend, ProcessConfig};
use std::time::{Duration, Instant};
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let backend = ProcessBackend::new(ProcessConfig { prepare_ahead: std::env::var_os("COLD").is_none(), ..ProcessConfig::default() }).unwrap();
    let n = 300;
    let mut v: Vec<Vec<Duration>> = vec![vec![]; 6];
    for _ in 0..n {
        let gap = || if std::env::var_os("GAP").is_some() { std::thread::sleep(Duration::from_millis(7)) };
        gap();
        let t0 = Instant::now();
        let s = backend.create(Spec::builder().build().unwrap()).await.unwrap();
        let t1 = Instant::now();
        s.exec(ExecRequest::argv(["/bin/true"]).build().unwrap()).await.unwrap();
        let t2 = Instant::now();
        s.close().await.unwrap();
        let t3 = Instant::now();
        std::process::Command::new("/bin/true").status().unwrap();
        let t4b = Instant::now();
        gap();
        let t4 = Instant::now();
        let (done, _) = backend
            .run(Spec::builder().build().unwrap(), ExecRequest::argv(["/bin/true"]).build().unwrap())
            .await
            .unwrap();
        assert!(done.exit.success());
        let t5 = Instant::now();
        for (i, d) in [t1 - t0, t2 - t1, t3 - t2, t4b - t3, t5 - t4, t3 - t0].into_iter().enumerate() {
            v[i].push(d);
        }
    }
    for (name, v) in ["create", "exec", "close", "bare", "run", "c+e+c"].iter().zip(&mut v) {
        v.sort();
        println!("{name:8} p10 {:?} p50 {:?} p99 {:?}", v[n / 10], v[n / 2], v[n * 99 / 100]);
    }
}
