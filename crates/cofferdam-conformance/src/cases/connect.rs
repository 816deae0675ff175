//! Cases: connections to servers in the sandbox.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Connection, ErrorKind, ExecHandle, Sandbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Verdict, check, check_eq, expect_error, text};
use crate::pattern;

const PORT: u16 = 8137;
/// A port that no program of the suite uses.
const UNUSED: u16 = 8138;
/// Time for a connection to end with its sandbox.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a sandbox with a server that echoes each connection, and its exec.
async fn echoing(cx: &Context) -> Outcome<(Arc<dyn Sandbox>, ExecHandle)> {
    let server = P::EchoConnections { port: PORT };
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, server).await?;
    Ok((sandbox, handle))
}

/// Sends a word and waits for its echo.
async fn exchange(connection: &mut Connection, word: &[u8]) -> Verdict {
    connection.write_all(word).await?;
    connection.flush().await?;
    let mut echo = vec![0; word.len()];
    connection.read_exact(&mut echo).await?;
    check_eq!(text(&echo), text(word), "the echo");
    Ok(())
}

pub(super) async fn echo_with_half_close(cx: Context) -> Verdict {
    let (sandbox, _server) = echoing(&cx).await?;
    let data = pattern::bytes(1 << 20);
    let (mut reader, mut writer) = tokio::io::split(sandbox.connect(PORT).await?);
    let mut received = Vec::new();
    let (sent, read) = tokio::join!(
        async {
            writer.write_all(&data).await?;
            writer.shutdown().await
        },
        reader.read_to_end(&mut received),
    );
    sent?;
    read?;
    // The server sends the second part when it has seen the end of the first.
    let last = received.split_off(data.len().min(received.len()));
    check!(received == data, "1 MiB came back changed, or only {} bytes of it", received.len());
    check_eq!(text(&last), "end 1048576\n", "what the server sent after the client's end");
    Ok(())
}

pub(super) async fn several_at_once(cx: Context) -> Verdict {
    let (sandbox, _server) = echoing(&cx).await?;
    let mut one = sandbox.connect(PORT).await?;
    let mut other = sandbox.connect(PORT).await?;
    exchange(&mut one, b"one").await?;
    exchange(&mut other, b"other").await?;
    drop(one);
    exchange(&mut other, b"again").await?;
    exchange(&mut sandbox.connect(PORT).await?, b"third").await
}

pub(super) async fn unused_port_is_unavailable(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    expect_error(sandbox.connect(UNUSED).await.map(drop), &[ErrorKind::Unavailable], "a port without a server")?;
    expect_error(sandbox.connect(0).await.map(drop), &[ErrorKind::InvalidInput], "port 0")?;
    cx.exec_ok(&sandbox, P::Succeed).await?;
    Ok(())
}

pub(super) async fn ends_with_the_sandbox(cx: Context) -> Verdict {
    let (sandbox, _server) = echoing(&cx).await?;
    let mut connection = sandbox.connect(PORT).await?;
    exchange(&mut connection, b"before").await?;
    sandbox.close().await?;
    let mut byte = [0];
    match tokio::time::timeout(END_TIMEOUT, connection.read(&mut byte)).await {
        Ok(Ok(0) | Err(_)) => {}
        Ok(Ok(_)) => check!(false, "a connection of a closed sandbox received a byte"),
        Err(_) => check!(false, "a connection outlives its sandbox"),
    }
    expect_error(sandbox.connect(PORT).await.map(drop), &[ErrorKind::Closed], "connect after close")
}
