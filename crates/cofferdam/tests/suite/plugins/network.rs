//! The network of plugins, with servers in network namespaces that the test made.

use std::fs;
use std::path::Path;

use crate::net::{Fixture, USERS, outcome};

const CODE: &str = "
import urllib.request

def activate(plugin):
    @plugin.method
    def direct(ctx, url):
        try:
            return urllib.request.urlopen(url, timeout=15).read().decode().splitlines()[0]
        except OSError as error:
            return 'failed: ' + type(error).__name__
    @plugin.method
    def fetch(ctx, url):
        response = ctx.net.fetch(url)
        return [response.status, response.body.decode().splitlines()[0]]
";

fn write(package: &Path, permissions: &str) {
    fs::create_dir_all(package).expect("a directory");
    let manifest = format!(
        "manifest = 1\nname = \"net\"\nversion = \"1.0.0\"\nruntime = \"python\"\nentry = \"main:activate\"\n{permissions}\n[methods.direct]\n[methods.fetch]\n"
    );
    fs::write(package.join("plugin.toml"), manifest).expect("the manifest");
    fs::write(package.join("main.py"), CODE).expect("the code");
}

/// Promise (Plugins): A plugin's request fails without `net` and succeeds with it, from its own process through the gateway
/// and by the host, to the hosts of its manifest only (P6, P11).
#[test]
fn p6_requests_fail_without_net_and_succeed_with_it() {
    let Some(fixture) = Fixture::new("p6_requests_fail_without_net_and_succeed_with_it") else { return };
    let (closed, open) = (fixture.files().join("closed"), fixture.files().join("open"));
    write(&closed, "");
    write(&open, "permissions = [\"net\"]\n[sandbox]\nnet = [\"web.example:80\", \"api.example:443\"]\n");
    for user in USERS {
        let state = tempfile::tempdir().expect("a directory");
        rustix::fs::chown(state.path(), Some(uid(user)), None).expect("its owner changes");
        let call = |package: &Path, method: &str, url: &str| {
            let mut run = fixture.enter();
            run.args(["setpriv", "--reuid", user, "--regid", user, "--clear-groups", env!("CARGO_BIN_EXE_cofferdam")]);
            run.args(["plugins", "call"]).arg(package).args([method, &format!("{{\"url\": \"{url}\"}}")]);
            run.arg("--state").arg(state.path()).args(["--allow-weaker", crate::cli::WEAKER]);
            run.env("SSL_CERT_FILE", fixture.files().join("certificate.pem"));
            outcome(&mut run)
        };
        let web = "http://web.example/x";
        let (status, stdout, stderr) = call(&closed, "direct", web);
        assert_eq!((status, stdout.as_str()), (0, "\"failed: URLError\"\n"), "{stderr}");
        let (status, _, stderr) = call(&closed, "fetch", web);
        assert!(status == 1 && stderr.contains("add \"net\" to permissions"), "{stderr}");
        let (status, stdout, stderr) = call(&open, "direct", web);
        assert!(status == 0 && stdout.starts_with("\"GET /x"), "{stdout} {stderr}");
        for url in [web, "https://api.example/v1/x"] {
            let (status, stdout, stderr) = call(&open, "fetch", url);
            assert!(status == 0 && stdout.contains("200") && stdout.contains("GET /"), "{url}: {stdout} {stderr}");
        }
        let (_, stdout, _) = call(&open, "direct", "http://other.example/");
        assert_eq!(stdout, "\"failed: URLError\"\n");
        for (url, remedy) in [
            ("http://other.example/", "add \\\"other.example:80\\\" to sandbox.net"),
            ("http://web.example:7/", "add \\\"web.example:7\\\" to sandbox.net"),
            ("http://127.0.0.1/", "add \\\"127.0.0.1:80\\\" to sandbox.net"),
        ] {
            let (status, _, stderr) = call(&open, "fetch", url);
            assert!(status == 1 && stderr.contains(&remedy.replace('\\', "")), "{url}: {stderr}");
        }
    }
}

fn uid(user: &str) -> rustix::fs::Uid {
    rustix::fs::Uid::from_raw(user.parse().expect("a number"))
}
