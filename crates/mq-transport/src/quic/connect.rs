//! A connector's part for QUIC.

use std::net::SocketAddr;

use super::QuicLink;
use crate::{
    Address, Connector, Dial, Error, HandshakeKind, Scheme,
    attempts::first_to_connect,
    socket::lacks_version,
    tls::{ClientConfigs, check_alpn},
};

impl Connector {
    pub(crate) async fn quic(&self, address: &Address, dial: Dial) -> Result<Box<QuicLink>, Error> {
        check_alpn(Scheme::Quic, &self.shared.options.alpn)?;
        let configs = &*self.configs()?;
        let mut peers = self.peers(address).await?;
        let known = self.shared.endpoints.last_peer(address);
        if let Some(at) = peers.iter().position(|peer| Some(*peer) == known) {
            peers[..=at].rotate_right(1);
        }
        let is_only = peers.len() == 1;
        let link = first_to_connect(peers, |peer| {
            // A link with early data wins its race before the server has answered. So it must be one that the
            // ticket came from.
            let early = !dial.without_early_data && (is_only || Some(peer) == known);
            self.quic_at(
                address,
                peer,
                configs,
                Dial {
                    without_early_data: !early,
                    ..dial
                },
            )
        });
        Ok(Box::new(link.await?))
    }

    /// Connects to one address of a host.
    async fn quic_at(
        &self,
        address: &Address,
        peer: SocketAddr,
        configs: &ClientConfigs,
        dial: Dial,
    ) -> Result<QuicLink, Error> {
        let (options, endpoints) = (&self.shared.options, &self.shared.endpoints);
        let unreachable = |source| Error::Unreachable {
            address: address.clone(),
            source,
        };
        if endpoints.was_closed(peer) && self.resumption().is_some() {
            self.quic_server_answers(peer).await.map_err(unreachable)?;
            endpoints.set_closed(peer, false);
        }
        let (name, _) = self.server_name(address)?;
        let early = !dial.without_early_data;
        let tls = configs.for_connection(address, self.resumption(), early);
        let keep_alive = dial.quic_keep_alive;
        let begun = match endpoints.connect(address, peer, name, tls, options, keep_alive) {
            // A system without this IP version may still reach another address of the host.
            Err(Error::Io(source)) if lacks_version(&source) => return Err(unreachable(source)),
            begun => begun?,
        };
        let mut closed = Box::pin({
            let (connector, address) = (self.clone(), address.clone());
            async move {
                let source = connector.quic_port_closed(peer).await;
                connector.shared.endpoints.set_closed(peer, true);
                Error::Unreachable { address, source }
            }
        });
        let handshake = QuicLink::connect(begun, name.to_owned(), options.early_data_limit);
        let link = tokio::select! {
            biased;
            link = handshake => link?.with_bound(endpoints.bound(peer)),
            error = &mut closed => return Err(error),
        };
        if link.handshake() == HandshakeKind::Pending {
            return Ok(link.with_closed_port(closed));
        }
        endpoints.connected(address, peer);
        Ok(link)
    }
}
