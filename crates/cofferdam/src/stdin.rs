//! Passes our standard input on to the code.
//!
//! Reading blocks, so one thread does it, started only when input is wanted. It is left behind in its read when the
//! run ends; the process ends with it.

use cofferdam::StdinWriter;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// Copies our standard input to `writer` until either end is closed; then closes both.
pub async fn forward(mut writer: StdinWriter) {
    let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(1);
    if std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read(&sender)).is_err() {
        // Without a thread the code gets end-of-file, as it would without --stdin.
        return;
    }
    while let Some(data) = receiver.recv().await {
        if writer.write_all(&data).await.is_err() || writer.flush().await.is_err() {
            // The code has closed its input; nothing more is read than is already on its way.
            return;
        }
    }
    // The code may be gone already, which is no fault.
    let _ = writer.close().await;
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
