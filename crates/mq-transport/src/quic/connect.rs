//! A connector's part for QUIC.

use super::QuicLink;
use crate::{Address, Connector, Dial, Error, Scheme, socket::resolve, tls::check_alpn};

impl Connector {
    pub(crate) async fn quic(&self, address: &Address, dial: Dial) -> Result<Box<QuicLink>, Error> {
        let (options, endpoints) = (&self.shared.options, &self.shared.endpoints);
        check_alpn(Scheme::Quic, &options.alpn)?;
        let configs = self.configs()?;
        let (name, _) = self.server_name(address)?;
        let mut failure = None;
        for peer in resolve(address).await? {
            let early = !dial.without_early_data;
            let tls = configs.for_connection(address, self.resumption(), early);
            let limit = options.early_data_limit;
            let keep_alive = dial.quic_keep_alive;
            let started = endpoints.connect(address, peer, name, tls, options, keep_alive);
            let connected = match started {
                Ok(begun) => QuicLink::connect(begun, name.to_owned(), limit).await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(link) => {
                    return Ok(Box::new(link.with_bound(endpoints.bound(peer))));
                }
                Err(error @ (Error::Unreachable { .. } | Error::TimedOut)) => {
                    failure = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or(Error::TimedOut))
    }
}
