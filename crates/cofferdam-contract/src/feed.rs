//! The events of a sandbox's network, for a reader that ends with the sandbox.

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::oneshot;

use crate::NetworkEvent;

/// An item of a feed.
#[derive(Debug)]
pub enum NetworkNews {
    /// A connection or request.
    Event(Box<NetworkEvent>),
    /// The number of events that were lost because the reader was too slow.
    Lost(u64),
}

/// The events of one sandbox until it is closed.
#[derive(Debug)]
pub struct NetworkFeed {
    events: Receiver<NetworkEvent>,
    /// `None` once the sender is dropped.
    stopped: Option<oneshot::Receiver<()>>,
    /// True once the sandbox is closed: what is there is the rest.
    ends: bool,
}

impl NetworkFeed {
    /// Creates a feed. Sending on the returned sender after the sandbox was closed ends the feed. If the sender is
    /// dropped, the feed ends with the sandbox's last connection.
    pub fn new(events: Receiver<NetworkEvent>) -> (Self, oneshot::Sender<()>) {
        let (stop, stopped) = oneshot::channel();
        (Self { events, stopped: Some(stopped), ends: false }, stop)
    }

    /// Waits for the next item. Returns `None` at the end.
    pub async fn next(&mut self) -> Option<NetworkNews> {
        while !self.ends {
            let stop = async {
                match &mut self.stopped {
                    Some(stopped) => stopped.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.events.recv() => return match event {
                    Ok(event) => Some(NetworkNews::Event(Box::new(event))),
                    Err(RecvError::Lagged(lost)) => Some(NetworkNews::Lost(lost)),
                    Err(RecvError::Closed) => None,
                },
                stopped = stop => match stopped {
                    Ok(()) => self.ends = true,
                    Err(_) => self.stopped = None,
                },
            }
        }
        self.try_next()
    }

    /// Returns the next item that is there already.
    pub fn try_next(&mut self) -> Option<NetworkNews> {
        match self.events.try_recv() {
            Ok(event) => Some(NetworkNews::Event(Box::new(event))),
            Err(TryRecvError::Lagged(lost)) => Some(NetworkNews::Lost(lost)),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast;

    use super::*;

    fn event(port: u16) -> NetworkEvent {
        serde_json::from_value(serde_json::json!({
            "time_ms": 0, "host": "a", "port": port, "protocol": "any", "sent": 0, "received": 0, "duration_ms": 0,
        }))
        .unwrap()
    }

    async fn ports(feed: &mut NetworkFeed) -> Vec<u16> {
        let mut ports = Vec::new();
        while let Some(news) = feed.next().await {
            match news {
                NetworkNews::Event(event) => ports.push(event.port),
                NetworkNews::Lost(lost) => ports.push(1000 + lost as u16),
            }
        }
        ports
    }

    #[tokio::test]
    async fn feed_ends_after_the_events_before_its_stop() {
        let (sender, receiver) = broadcast::channel(2);
        let (mut feed, stop) = NetworkFeed::new(receiver);
        for port in 1..=4 {
            sender.send(event(port)).unwrap();
        }
        stop.send(()).unwrap();
        assert_eq!(ports(&mut feed).await, [1002, 3, 4]);
    }

    #[tokio::test]
    async fn a_feed_without_its_stop_ends_with_the_last_connection() {
        let (sender, receiver) = broadcast::channel(2);
        let (mut feed, stop) = NetworkFeed::new(receiver);
        drop(stop);
        let connection = tokio::spawn(async move {
            tokio::task::yield_now().await;
            sender.send(event(7)).unwrap();
        });
        assert_eq!(ports(&mut feed).await, [7]);
        connection.await.unwrap();
    }
}
