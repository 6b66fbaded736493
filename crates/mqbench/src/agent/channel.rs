//! Whole messages over a link: a length, a kind, and as many bytes.

use std::{convert::Infallible, time::Duration};

use anyhow::{Context as _, bail};
use bytes::{Buf as _, BufMut as _, Bytes};
use mq_proto::{LaneId, Outbox};
use mq_transport::{Link, Progress};
use serde::{Serialize, de::DeserializeOwned};

/// The longest message.
pub(super) const MOST: usize = 1 << 20;

/// Before each: four bytes of length, and one for the kind.
const HEAD: usize = 5;

/// What a message is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    /// A request or a reply, as JSON.
    Text(Bytes),
    /// A piece of a file.
    Piece(Bytes),
}

/// A link by which one side asks and the other answers.
#[derive(Debug)]
pub(super) struct Channel {
    link: Link,
    outbox: Outbox,
}

impl Channel {
    pub(super) fn new(link: Link) -> Self {
        Self {
            link,
            outbox: Outbox::new(),
        }
    }

    /// Ends it once all that was sent has arrived.
    pub(super) async fn close(self) {
        self.link.close(Duration::from_secs(5)).await;
    }

    pub(super) async fn send_text(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_vec(message).context("cannot write JSON")?;
        self.send(0, &text).await
    }

    pub(super) async fn send_piece(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.send(1, bytes).await
    }

    async fn send(&mut self, kind: u8, bytes: &[u8]) -> anyhow::Result<()> {
        let length = u32::try_from(bytes.len()).ok();
        let length = length.filter(|_| bytes.len() <= MOST);
        let length = length.with_context(|| format!("{} bytes are too many", bytes.len()))?;
        let put: Result<(), Infallible> = self.outbox.put(LaneId::CONTROL, |open| {
            open.put_u32(length);
            open.put_u8(kind);
            open.put_slice(bytes);
            Ok(())
        });
        match put {
            Ok(()) => {}
        }
        while !self.outbox.is_empty() {
            if self.link.progress(&mut self.outbox, false).await? == Progress::Closed {
                bail!("the other side has gone");
            }
        }
        Ok(())
    }

    /// The next message. Cancel-safe.
    pub(super) async fn receive(&mut self) -> anyhow::Result<Frame> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            let progress = self.link.progress(&mut self.outbox, true).await?;
            if progress == Progress::Closed && !self.is_whole() {
                bail!("the other side has gone");
            }
        }
    }

    /// The next message, which is no piece of a file.
    pub(super) async fn receive_text<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        match self.receive().await? {
            Frame::Text(text) => Ok(serde_json::from_slice(&text)?),
            Frame::Piece(_) => bail!("a piece of a file came out of turn"),
        }
    }

    pub(super) async fn receive_piece(&mut self) -> anyhow::Result<Bytes> {
        match self.receive().await? {
            Frame::Piece(bytes) => Ok(bytes),
            Frame::Text(_) => bail!("a file ended early"),
        }
    }

    /// Whether there is a message to take.
    fn is_whole(&mut self) -> bool {
        let received = self.link.received(LaneId::CONTROL);
        length(received).is_some_and(|length| received.len() >= HEAD + length)
    }

    fn take(&mut self) -> anyhow::Result<Option<Frame>> {
        let received = self.link.received(LaneId::CONTROL);
        let Some(length) = length(received) else {
            return Ok(None);
        };
        if length > MOST {
            bail!("a message of {length} bytes: at most {MOST} are allowed");
        }
        if received.len() < HEAD + length {
            return Ok(None);
        }
        let kind = received[HEAD - 1];
        received.advance(HEAD);
        let bytes = received.split_to(length).freeze();
        match kind {
            0 => Ok(Some(Frame::Text(bytes))),
            1 => Ok(Some(Frame::Piece(bytes))),
            other => bail!("there is no kind {other} of message"),
        }
    }
}

fn length(received: &[u8]) -> Option<usize> {
    let head = received.get(..HEAD)?;
    let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    Some(usize::try_from(length).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_arrive_whole_and_in_order() {
        let (one, other) = Link::pair();
        let (mut one, mut other) = (Channel::new(one), Channel::new(other));
        let piece = vec![7; 300_000];
        let sending = async {
            one.send_text(&"first").await.unwrap();
            one.send_piece(&piece).await.unwrap();
            one.send_piece(&[]).await.unwrap();
            one.send_text(&[1, 2]).await.unwrap();
            one
        };
        let receiving = async {
            assert_eq!(other.receive_text::<String>().await.unwrap(), "first");
            assert_eq!(other.receive_piece().await.unwrap(), piece);
            assert!(other.receive_piece().await.unwrap().is_empty());
            assert_eq!(other.receive_text::<[u8; 2]>().await.unwrap(), [1, 2]);
            other
        };
        let (one, mut other) = tokio::join!(sending, receiving);
        drop(one);
        assert!(other.receive().await.is_err());
    }

    #[tokio::test]
    async fn what_is_no_message_is_an_error() {
        for (bytes, says) in [
            (&[0xff, 0, 0, 0, 0][..], "at most"),
            (&[0, 0, 0, 0, 9], "no kind 9"),
        ] {
            let (mut one, other) = Link::pair();
            let mut outbox = Outbox::new();
            outbox.put_body(LaneId::CONTROL, &Bytes::copy_from_slice(bytes));
            one.progress(&mut outbox, false).await.unwrap();
            let error = Channel::new(other).receive().await.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let (mut one, _other) = Link::pair();
        let _ = one.received(LaneId::CONTROL);
        let error = Channel::new(one).send_piece(&vec![0; MOST + 1]).await;
        assert!(error.unwrap_err().to_string().contains("too many"));
    }
}
