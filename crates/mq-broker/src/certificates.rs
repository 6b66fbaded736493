//! Certificates, client authorities and revocation lists, which change while the broker runs.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use mq_transport::{
    ClientAuth, ListenOptions, Listener, PreparedReload, ReloadHandle, ServerIdentity,
};
use tracing::info;

use crate::{
    Error, Settings,
    lock::lock,
    reload::{Change, Reloadable},
    ticket_file::TicketFile,
};

/// The certificate that all listeners show, and the authorities for clients' certificates.
#[derive(Debug)]
pub(crate) struct Certificates {
    listeners: Vec<ReloadHandle>,
    /// The options in force.
    options: Mutex<ListenOptions>,
    ticket_file: Option<Arc<TicketFile>>,
}

impl Certificates {
    pub(crate) fn new(
        listeners: &[Listener],
        settings: &Settings,
        ticket_file: Option<&Arc<TicketFile>>,
    ) -> Self {
        Self {
            listeners: listeners.iter().map(Listener::reload_handle).collect(),
            options: Mutex::new(settings.listen.clone()),
            ticket_file: ticket_file.cloned(),
        }
    }

    fn options(&self) -> MutexGuard<'_, ListenOptions> {
        lock(&self.options)
    }
}

impl Reloadable for Certificates {
    fn name(&self) -> &'static str {
        "certificates"
    }

    fn files(&self) -> Vec<PathBuf> {
        let options = self.options();
        let identity = options.identity.as_ref().and_then(|own| own.files());
        let identity = identity.into_iter().flat_map(|(chain, key)| [chain, key]);
        let authority = match &options.client_auth {
            ClientAuth::Off => None,
            ClientAuth::Optional(path) | ClientAuth::Required(path) => Some(path.as_path()),
        };
        let lists = options.client_crls.iter().map(PathBuf::as_path);
        let files = identity.chain(authority).chain(lists);
        files.map(ToOwned::to_owned).collect()
    }

    fn prepare(&self, settings: Option<&Settings>) -> Result<Change<'_>, Error> {
        let mut options = self.options().clone();
        if let Some(Settings { listen, .. }) = settings {
            if let Some(identity) = &listen.identity {
                options.identity = Some(identity.clone());
            }
            options.client_auth.clone_from(&listen.client_auth);
            options.client_crls.clone_from(&listen.client_crls);
            options.enforce_crl_expiry = listen.enforce_crl_expiry;
        } else {
            let again = options.identity.take();
            options.identity = again.map(|own| own.read_again()).transpose()?;
        }
        let prepared = self.listeners.iter().map(|each| each.prepare(&options));
        let prepared: Vec<PreparedReload> = prepared.collect::<Result<_, _>>()?;
        let scope = options.ticket_scope()?;
        Ok(Box::new(move || {
            for listener in prepared {
                listener.apply();
            }
            if let Some(file) = &self.ticket_file {
                file.rescope(scope);
            }
            let fingerprint = options.identity.as_ref().map(ServerIdentity::fingerprint);
            info!(
                fingerprint = fingerprint.as_deref(),
                "certificates, client CAs and revocation lists reloaded"
            );
            *self.options() = options;
        }))
    }
}
