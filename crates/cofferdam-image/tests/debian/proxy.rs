//! A proxy between apt and its mirror that injects faults.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A fault of package downloads. Package lists are forwarded unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends after some bytes, from the third package on.
    Cut,
    /// One byte is changed.
    Damage,
}

/// A proxy that serves until the test program ends.
pub struct Proxy {
    pub address: SocketAddr,
    packages: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let packages = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&packages);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                // An error ends the connection, which apt must handle.
                std::thread::spawn(move || drop(serve(&client, fault, &count)));
            }
        });
        Self { address, packages }
    }

    /// Returns the number of packages forwarded.
    pub fn packages(&self) -> usize {
        self.packages.load(Ordering::SeqCst)
    }
}

/// Serves one request, then ends the connection.
fn serve(mut client: &TcpStream, fault: Fault, count: &AtomicUsize) -> std::io::Result<()> {
    let mut lines = BufReader::new(client);
    let mut head = String::new();
    lines.read_line(&mut head)?;
    let uri = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let Some((host, path)) = uri.strip_prefix("http://").and_then(|rest| rest.split_once('/')) else {
        return client.write_all(b"HTTP/1.1 501 Only plain HTTP\r\nConnection: close\r\n\r\n");
    };
    let mut request = format!("GET /{path} HTTP/1.1\r\nConnection: close\r\n");
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if !line.to_ascii_lowercase().starts_with("connection:") {
            request.push_str(&line);
        }
    }
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut server = TcpStream::connect(address)?;
    server.set_read_timeout(Some(Duration::from_secs(60)))?;
    server.write_all(format!("{request}\r\n").as_bytes())?;
    let is_package = path.ends_with(".deb");
    let number = if is_package { count.fetch_add(1, Ordering::SeqCst) } else { 0 };
    let mut piece = [0; 16 << 10];
    let mut passed = 0;
    loop {
        let length = server.read(&mut piece)?;
        if length == 0 {
            return Ok(());
        }
        if is_package && fault == Fault::Cut && number >= 2 && passed + length > 3000 {
            return client.write_all(&piece[..length.min(3000)]);
        }
        if is_package && fault == Fault::Damage && (passed..passed + length).contains(&5000) {
            piece[5000 - passed] ^= 1;
        }
        client.write_all(&piece[..length])?;
        passed += length;
    }
}
