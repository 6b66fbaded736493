//! A connector's part for TLS, alone and within QUIC.

use std::sync::{Arc, Mutex};

use rustls_pki_types::ServerName;

use super::{ClientConfigs, TlsLink, check_alpn};
use crate::{
    Address, ConnectOptions, Connector, Dial, Error, Scheme, TicketCache, Trust, sync::lock,
};

/// The configurations of a connector. With the system's roots they are made when first needed, else
/// at once.
#[derive(Debug)]
pub(crate) struct ClientTls(Mutex<Option<Arc<ClientConfigs>>>);

impl ClientTls {
    /// Checks what the options ask for.
    pub(crate) fn new(options: &ConnectOptions) -> Result<Self, Error> {
        options.crypto.provider()?;
        options.crypto.versions()?;
        check_alpn(Scheme::Tls, &options.alpn)?;
        let tls = Self(Mutex::new(None));
        if options.trust != Trust::System || options.identity.is_some() {
            tls.configs(options)?;
        }
        Ok(tls)
    }

    fn configs(&self, options: &ConnectOptions) -> Result<Arc<ClientConfigs>, Error> {
        let mut configs = lock(&self.0);
        if let Some(made) = &*configs {
            return Ok(made.clone());
        }
        let made = Arc::new(ClientConfigs::new(options)?);
        *configs = Some(made.clone());
        Ok(made)
    }
}

impl Connector {
    /// Returns this connector with `tickets` in the place of its own cache: a cache for each simulated device.
    ///
    /// Verifier, client certificate and QUIC sockets stay shared, as rustls resumes a session only
    /// under the same verifier and client certificate objects.
    #[must_use]
    pub fn with_ticket_cache(&self, tickets: TicketCache) -> Self {
        Self {
            tickets,
            ..self.clone()
        }
    }

    pub(crate) async fn tls(&self, address: &Address, dial: Dial) -> Result<Box<TlsLink>, Error> {
        let early = !dial.without_early_data;
        let config = self
            .configs()?
            .for_connection(address, self.resumption(), early);
        let (_, name) = self.server_name(address)?;
        let stream = self.tcp(address).await?;
        let limit = self.shared.options.early_data_limit;
        let link = TlsLink::connect(stream, config, name, limit).await?;
        Ok(Box::new(link))
    }

    pub(crate) fn configs(&self) -> Result<Arc<ClientConfigs>, Error> {
        self.shared.tls.configs(&self.shared.options)
    }

    pub(crate) fn resumption(&self) -> Option<&TicketCache> {
        self.shared.options.resumption.then_some(&self.tickets)
    }

    pub(crate) fn server_name<'a>(
        &'a self,
        address: &'a Address,
    ) -> Result<(&'a str, ServerName<'static>), Error> {
        let name = self.shared.options.server_name.as_deref();
        let name = name.unwrap_or(&address.host);
        match ServerName::try_from(name) {
            Ok(parsed) => Ok((name, parsed.to_owned())),
            Err(_) => Err(Error::InvalidOption {
                option: "server name",
                value: format!("`{name}`"),
                remedy: "give a DNS name or an IP address".into(),
            }),
        }
    }
}
