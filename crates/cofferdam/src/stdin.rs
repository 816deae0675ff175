//! Forwarding of standard input to the code.
//!
//! Reading blocks, so a thread does it, started only if the request wants input. The thread stays in its read when the
//! run ends, and dies with the process.

use cofferdam::StdinWriter;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// Copies standard input of this process to `writer` until either end is closed, then closes both.
pub async fn forward(mut writer: StdinWriter) {
    let mut receiver = pieces();
    while let Some(data) = receiver.recv().await {
        if writer.write_all(&data).await.is_err() || writer.flush().await.is_err() {
            // The code has closed its input. Nothing is read beyond the data in flight.
            return;
        }
    }
    // The code may have exited already, which is not an error.
    let _ = writer.close().await;
}

/// Reads standard input of this process. The pieces end at end-of-file.
pub fn pieces() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    // Without a thread the code gets end-of-file, as it would without --stdin.
    let _ = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read(&sender));
    receiver
}

fn read(sender: &mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; PIECE];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer[..]) {
            Ok(0) => return,
            Ok(count) => {
                if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut fds =
                    [rustix::event::PollFd::from_borrowed_fd(rustix::stdio::stdin(), rustix::event::PollFlags::IN)];
                if rustix::event::poll(&mut fds, None).is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
