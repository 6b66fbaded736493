//! The runtime that quinn runs on.

use std::{
    convert::Infallible,
    io,
    net::UdpSocket,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::{sync::oneshot, time::timeout};

use super::{repeater::Repeater, udp::Socket};
use crate::tls::handshakes::{self, Task};

/// Longest time for which a connection drains after its link was dropped.
///
/// RFC 9000 §10.2 wants three probe timeouts, each of some round trips: less than a second on
/// most paths, but minutes with a client that was slow to answer, and a crowd of such clients would fill
/// the memory for as long. Quinn (0.11) also keeps a connection whose first packet is a
/// `CONNECTION_CLOSE` until its idle timeout. A client that sends later gets a stateless reset.
const LONGEST_DRAINING: Duration = Duration::from_secs(10);

/// Tokio, except that a crowd's connections are driven on the threads of their handshakes.
#[derive(Debug)]
pub(super) struct PooledRuntime;

impl Runtime for PooledRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, driver: Task) {
        handshakes::spawn(driver);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(Socket::new(socket)?))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// Kept by the holder of a connection: once the guard is dropped, the connection has to
/// [end soon](LONGEST_DRAINING).
#[derive(Debug)]
pub(crate) struct DrainTimeoutGuard(
    #[expect(dead_code, reason = "dropped, not used")] oneshot::Sender<Infallible>,
);

/// Begins a connection of a client.
pub(super) fn begin<T>(repeater: Option<&Arc<Repeater>>, begin: impl FnOnce() -> T) -> T {
    let (connection, driver) = with_driver(repeater, begin);
    if let Some(driver) = driver {
        handshakes::spawn(driver);
    }
    connection
}

/// Begins a connection that ends soon after its guard is dropped.
pub(super) fn begin_guarded<T>(
    repeater: Option<&Arc<Repeater>>,
    begin: impl FnOnce() -> T,
) -> (T, DrainTimeoutGuard) {
    let (guard, let_go) = oneshot::channel();
    let (connection, driver) = with_driver(repeater, begin);
    if let Some(driver) = driver {
        handshakes::spawn(Box::pin(drive(driver, let_go)));
    }
    (connection, DrainTimeoutGuard(guard))
}

/// Begins a connection, and returns it with its driver, which quinn starts within the call; there is none if the
/// connection was not to be had.
fn with_driver<T>(
    repeater: Option<&Arc<Repeater>>,
    begin: impl FnOnce() -> T,
) -> (T, Option<Task>) {
    let Some(repeater) = repeater else {
        let (connection, mut drivers) = handshakes::gather(begin);
        return (connection, drivers.pop());
    };
    let (connection, mut drivers) = handshakes::gather(|| repeater.begin(begin));
    let driver = drivers.pop();
    let driver = driver.map(|driver| Box::pin(repeater.clone().drive(driver)) as Task);
    (connection, driver)
}

async fn drive(mut driver: Task, let_go: oneshot::Receiver<Infallible>) {
    tokio::select! {
        biased;
        () = &mut driver => {}
        _ = let_go => {
            // Dropping the driver drops the connection, which tells the endpoint that it has gone.
            let _ = timeout(LONGEST_DRAINING, driver).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_let_go_ends_soon() {
        for ends_by_itself in [true, false] {
            let (held, gone) = oneshot::channel::<Infallible>();
            let ((), guard) = begin_guarded(None, || {
                PooledRuntime.spawn(Box::pin(async move {
                    let _held = held;
                    let long = if ends_by_itself { 1_000 } else { 1_000_000 };
                    sleep(Duration::from_secs(long)).await;
                }));
            });
            let began = tokio::time::Instant::now();
            sleep(Duration::from_secs(995)).await;
            drop(guard);
            assert!(gone.await.is_err());
            let end = if ends_by_itself { 1_000 } else { 1_005 };
            assert_eq!(began.elapsed().as_secs(), end);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_connection_that_is_begun_is_guarded() {
        let ((), guard) = begin_guarded(None, || {});
        drop(guard);
        let (ended, end) = oneshot::channel();
        PooledRuntime.spawn(Box::pin(async move {
            sleep(LONGEST_DRAINING * 2).await;
            ended.send(()).unwrap();
        }));
        end.await.unwrap();
    }
}
