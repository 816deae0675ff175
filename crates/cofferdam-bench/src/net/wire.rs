//! The servers and the client of the network benchmark. Both are small, so that the network between them is measured.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::sample::Sample;

/// The name of the servers.
pub const NAME: &str = "web.example";
/// The ports of plain HTTP, HTTP over TLS, and a protocol of lines.
pub const PORTS: [u16; 3] = [80, 443, 7];
/// The file of the servers' certificate.
pub const CERTIFICATE: &str = "certificate.der";
/// The file whose presence starts the clients that wait.
pub const GO: &str = "go";
const CHUNK: usize = 64 << 10;

/// A connection of either side.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Serves until the process is killed. Writes the certificate into a directory.
pub fn serve(address: &str, directory: &Path) -> Result<()> {
    let signed = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
    let certificate = signed.cert.der().clone();
    let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate.clone()], key.into())?;
    let tls = Arc::new(tls);
    let listeners = PORTS.map(|port| TcpListener::bind((address, port)).map(|listener| (port, listener)));
    fs::write(directory.join(CERTIFICATE), &certificate)?;
    let mut threads = Vec::new();
    for listener in listeners {
        let ((port, listener), tls) = (listener?, Arc::clone(&tls));
        threads.push(std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let tls = Arc::clone(&tls);
                std::thread::spawn(move || answer_connection(connection, port, tls));
            }
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn answer_connection(connection: TcpStream, port: u16, tls: Arc<ServerConfig>) -> Result<()> {
    connection.set_nodelay(true)?;
    match port {
        443 => answer(StreamOwned::new(ServerConnection::new(tls)?, connection), true),
        _ => answer(connection, port == 80),
    }
}

/// Answers requests of HTTP without bodies, or lines.
fn answer(stream: impl Stream, is_http: bool) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut header = String::from(if is_http { "-" } else { "" });
        while !header.trim().is_empty() {
            header.clear();
            stream.read_line(&mut header)?;
        }
        let bytes: u64 = first.split(['/', ' ']).find_map(|word| word.trim().parse().ok()).unwrap_or(2);
        if is_http {
            write!(stream.get_mut(), "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n")?;
        }
        io::copy(&mut io::repeat(b'x').take(bytes), &mut io::BufWriter::with_capacity(CHUNK, stream.get_mut()))?;
    }
}

/// The load of a client: requests on several connections for some time, then requests on a connection each, then a
/// download.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The port.
    pub port: u16,
    /// The time of the requests.
    pub time: Duration,
    /// The number of connections that have a request at a time.
    pub clients: usize,
    /// The number of requests, each on a new connection.
    pub connections: u32,
    /// The number of bytes of a download. None for zero.
    pub bytes: u64,
    /// True waits for the file [`GO`] before the first request.
    pub waits: bool,
}

/// Runs a load, and prints its figures as JSON.
pub fn load(load: Load, directory: &Path) -> Result<()> {
    println!("{}", measure(load, directory)?);
    Ok(())
}

fn measure(load: Load, directory: &Path) -> Result<Value> {
    let streams = (0..load.clients).map(|_| connect(load.port, directory)).collect::<Result<Vec<_>>>()?;
    while load.waits && !directory.join(GO).exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let start = Instant::now();
    let threads: Vec<_> = streams
        .into_iter()
        .map(|stream| std::thread::spawn(move || repeat(stream, load.port, start, load.time)))
        .collect();
    let times: Vec<Vec<_>> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| bail!("a client panicked")))
        .collect::<Result<_>>()?;
    let seconds = start.elapsed().as_secs_f64();
    let sample = Sample::new(times.concat());
    let mut times = Vec::new();
    for _ in 0..load.connections {
        let begin = Instant::now();
        request(&mut connect(load.port, directory)?, load.port, 2)?;
        times.push(begin.elapsed());
    }
    let new = Sample::new(times);
    let mut figures = json!({
        "per_second": sample.len() as f64 / seconds,
        "median_us": sample.median(),
        "p99_us": sample.p99(),
        "new_median_us": new.median(),
        "new_p99_us": new.p99(),
    });
    if load.bytes > 0 {
        let mut stream = connect(load.port, directory)?;
        let begin = Instant::now();
        request(&mut stream, load.port, load.bytes)?;
        let mebibytes = load.bytes as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64();
        figures["mebibytes_per_second"] = mebibytes.into();
    }
    Ok(figures)
}

/// Sends requests until the time is over. Returns their times.
fn repeat(mut stream: Connected, port: u16, start: Instant, time: Duration) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while start.elapsed() < time {
        let begin = Instant::now();
        request(&mut stream, port, 2)?;
        times.push(begin.elapsed());
    }
    Ok(times)
}

type Connected = BufReader<Box<dyn Stream>>;

fn connect(port: u16, directory: &Path) -> Result<Connected> {
    let connection = TcpStream::connect((NAME, port)).with_context(|| format!("cannot connect to {NAME}:{port}"))?;
    connection.set_nodelay(true)?;
    if port != 443 {
        return Ok(BufReader::with_capacity(CHUNK, Box::new(connection)));
    }
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(fs::read(directory.join(CERTIFICATE))?))?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let tls = ClientConnection::new(Arc::new(config), ServerName::try_from(NAME)?)?;
    Ok(BufReader::with_capacity(CHUNK, Box::new(StreamOwned::new(tls, connection))))
}

/// Sends a request for this many bytes, and reads them.
fn request(stream: &mut Connected, port: u16, bytes: u64) -> Result<()> {
    match port {
        7 => writeln!(stream.get_mut(), "{bytes}")?,
        _ => write!(stream.get_mut(), "GET /{bytes} HTTP/1.1\r\nHost: {NAME}\r\n\r\n")?,
    }
    stream.get_mut().flush()?;
    let mut line = String::new();
    while port != 7 && line != "\r\n" {
        let is_first = line.is_empty();
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
        ensure!(!is_first || line.starts_with("HTTP/1.1 200"), "the server answered {line:?}");
    }
    let read = io::copy(&mut stream.by_ref().take(bytes), &mut io::sink())?;
    ensure!(read == bytes, "{read} of {bytes} bytes arrived");
    Ok(())
}
