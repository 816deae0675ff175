//! One-shot runs in a loop, to be profiled.
use cofferdam_contract::{Backend, ExecRequest, Spec};
use cofferdam_process::{ProcessBackend, ProcessConfig};
use std::time::{Duration, Instant};
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let backend = ProcessBackend::new(ProcessConfig::default()).unwrap();
    let n: usize = std::env::args().nth(1).map_or(2000, |n| n.parse().unwrap());
    let mut v: Vec<Duration> = vec![];
    backend.run(Spec::builder().build().unwrap(), ExecRequest::argv(["/bin/true"]).build().unwrap()).await.unwrap();
    std::thread::sleep(Duration::from_millis(900));
    for _ in 0..n {
        let t = Instant::now();
        backend.run(Spec::builder().build().unwrap(), ExecRequest::argv(["/bin/true"]).build().unwrap()).await.unwrap();
        v.push(t.elapsed());
    }
    v.sort();
    println!("run p10 {:?} p50 {:?} p99 {:?}", v[n / 10], v[n / 2], v[n * 99 / 100]);
}
