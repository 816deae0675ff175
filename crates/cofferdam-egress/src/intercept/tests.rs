use std::sync::Arc;

use cofferdam_contract::{NetworkPolicy, NetworkSecret, SecretPlace};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::denials::Denials;
use crate::rules::{Query, Rules};
use crate::secrets::Secrets;

const VALUE: &str = "s3cr3t-value-of-a-token";

/// A server with TLS, a gateway in front of it, and the requests that the server has received.
struct World {
    /// The authority of servers, and the name that the server proves. Without one, it closes the connection at once.
    servers: Authority,
    proved: &'static str,
    interception: Interception,
    secrets: Arc<Secrets>,
    denials: Arc<Denials>,
    received: Mutex<Vec<String>>,
}

fn roots(authority: &Authority) -> Roots {
    let certificate = pem::parse(authority.pem()).unwrap().into_contents();
    Roots::new(vec![CertificateDer::from(certificate)]).unwrap()
}

impl World {
    fn new() -> Self {
        let servers = Authority::generate().unwrap();
        let secret = NetworkSecret {
            name: "TOKEN".to_owned(),
            from: format!("command:echo {VALUE}"),
            hosts: vec!["api.example:443".to_owned()],
            location: SecretPlace::default(),
            max_uses: Some(8),
        };
        Self {
            interception: Interception { authority: Authority::generate().unwrap(), roots: roots(&servers) },
            servers,
            proved: "api.example",
            secrets: Arc::new(Secrets::read(&[secret]).unwrap()),
            denials: Arc::default(),
            received: Mutex::default(),
        }
    }

    fn placeholder(&self) -> &str {
        self.secrets.variables().next().unwrap().1
    }

    /// Sends a request to a name over TLS, and returns the answer.
    async fn ask(&self, name: &str, request: &str) -> String {
        self.ask_trusting(&self.interception.authority, name, request).await.unwrap()
    }

    async fn ask_trusting(&self, trusted: &Authority, name: &str, request: &str) -> io::Result<String> {
        let (client, mut gateway_client) = duplex(4096);
        let (gateway_server, server) = duplex(4096);
        let policy = NetworkPolicy::Allow { hosts: vec![name.to_owned()] };
        let Ok(Query::Name(target)) = Rules::of(&policy).unwrap().unwrap().lookup(name) else { panic!("{name}") };
        let denials = Arc::clone(&self.denials);
        let route = Route { target, port: 443, denials, secrets: Some(Arc::clone(&self.secrets)), flow: None };
        let gateway = async {
            let mut first = vec![0; 7];
            gateway_client.read_exact(&mut first).await.unwrap();
            super::serve(gateway_client, first, gateway_server, route, &self.interception).await;
        };
        let asking = async {
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let mut client = TlsConnector::from(roots(trusted).client()).connect(name, client).await?;
            client.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            match client.read_to_end(&mut answer).await {
                // Hyper drops a connection after a refused upgrade, without the last message of TLS.
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof || answer.is_empty() => Err(error),
                _ => Ok(String::from_utf8(answer).unwrap()),
            }
        };
        // The server ends with its connection.
        let ((), answer, _) = tokio::join!(gateway, asking, self.answer(server));
        answer
    }

    /// Answers one request with its own head, in pieces of one byte.
    async fn answer(&self, server: DuplexStream) -> io::Result<()> {
        if self.proved.is_empty() {
            return Ok(());
        }
        let mut server = TlsAcceptor::from(self.servers.server(self.proved).unwrap()).accept(server).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(server.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        self.received.lock().push(head.clone());
        let path = head.split(' ').nth(1).unwrap();
        let header = match path {
            "/encoded" => "content-encoding: gzip\r\n",
            "/redirect" => &format!("location: /?token={VALUE}\r\n"),
            _ => "",
        };
        let answer = match path {
            "/socket" => "HTTP/1.1 101 \r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello".to_owned(),
            "/chunked" => {
                let mut answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
                for c in head.chars() {
                    answer += &format!("1\r\n{c}\r\n");
                }
                format!("{answer}0\r\nx-trailer: {VALUE}\r\n\r\n")
            }
            _ => format!("HTTP/1.1 200 {VALUE}\r\n{header}content-length: {}\r\n\r\n{head}", head.len()),
        };
        for byte in answer.bytes() {
            server.write_all(&[byte]).await?;
            server.flush().await?;
        }
        server.shutdown().await
    }

    fn received(&self) -> Option<String> {
        self.received.lock().pop()
    }
}

fn get(name: &str, path: &str, authorization: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\naccept-encoding: gzip\r\nte: trailers\r\n\
         authorization: Bearer {authorization}\r\n\r\n"
    )
}

/// Promise (Network): A sandbox uses a secret over intercepted TLS without ever receiving its value.
#[tokio::test]
async fn a_server_receives_a_secret_and_the_sandbox_does_not() {
    let world = World::new();
    for path in ["/", "/chunked", "/redirect"] {
        let answer = world.ask("api.example", &get("api.example", path, world.placeholder())).await;
        let received = world.received().unwrap();
        assert!(received.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{received}");
        assert!(received.contains("accept-encoding: identity\r\n"), "{received}");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && !answer.contains(VALUE), "{answer}");
        assert!(answer.contains(&"*".repeat(VALUE.len())) && !answer.contains("x-trailer"), "{answer}");
    }
    assert!(world.denials.list().is_empty());
}

#[tokio::test]
async fn another_host_receives_the_placeholder() {
    let world = World { proved: "other.example", ..World::new() };
    let answer = world.ask("other.example", &get("other.example", "/", world.placeholder())).await;
    let received = world.received().unwrap();
    assert!(received.contains(world.placeholder()) && !received.contains(VALUE), "{received}");
    assert!(received.contains("accept-encoding: gzip") && answer.contains(world.placeholder()), "{answer}");
}

#[tokio::test]
async fn an_encoded_answer_is_refused() {
    let world = World::new();
    let answer = world.ask("api.example", &get("api.example", "/encoded", "none")).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("content-encoding other than identity"), "{answer}");
    assert_eq!(world.denials.list().len(), 1);
}

#[tokio::test]
async fn a_websocket_passes_without_a_secret_only() {
    let world = World::new();
    let upgrade = |authorization: &str| {
        format!(
            "GET /socket HTTP/1.1\r\nhost: api.example\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             authorization: {authorization}\r\n\r\n"
        )
    };
    let answer = world.ask("api.example", &upgrade("none")).await;
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    assert!(world.received().is_some());
    let answer = world.ask("api.example", &upgrade(world.placeholder())).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("WebSocket"), "{answer}");
    assert_eq!(world.received(), None);
}

#[tokio::test]
async fn requests_over_intercepted_tls_are_checked() {
    let world = World::new();
    let answer = world.ask("api.example", &get("other.example", "/", world.placeholder())).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(world.received(), None);
}

/// Promise (Network): A server behind intercepted TLS must prove its name to the roots of the host, or gets no request.
#[tokio::test]
async fn a_server_with_a_bad_certificate_gets_no_request() {
    let other_name = World { proved: "other.example", ..World::new() };
    let other_roots = World { servers: Authority::generate().unwrap(), ..World::new() };
    let closed = World { proved: "", ..World::new() };
    for (world, why) in [(other_name, "not valid for name"), (other_roots, "UnknownIssuer"), (closed, "broken pipe")] {
        let answer = world.ask("api.example", &get("api.example", "/", world.placeholder())).await;
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(why), "{answer}");
        assert!(world.denials.list()[0].why.contains(why), "{:?}", world.denials.list());
        assert_eq!(world.received(), None);
    }
}

#[tokio::test]
async fn a_client_that_does_not_trust_the_authority_is_explained() {
    let world = World::new();
    let refused = world.ask_trusting(&world.servers, "api.example", &get("api.example", "/", "none")).await;
    assert!(refused.is_err());
    let denials = world.denials.list();
    assert!(denials[0].why.contains("SSL_CERT_FILE"), "{denials:?}");
    assert_eq!(world.received(), None);
}
