//! The source of a broker's access control: open, files, or the application.

use std::sync::Arc;

use super::{AccessFiles, Authenticator, Authorizer, FileAccess};
use crate::Error;

/// The source of authentication and authorization.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Access {
    /// Every client that reaches a listener is accepted and may do everything.
    #[default]
    Open,
    /// Authentication and authorization by these files. [`Broker::start`](crate::Broker::start)
    /// reads them, and [`Broker::reload_access`](crate::Broker::reload_access) reads them again.
    Files(AccessFiles),
    /// Authentication and authorization by the application.
    Custom {
        /// Authenticates clients; `None` accepts every client.
        authenticator: Option<Arc<dyn Authenticator>>,
        /// Authorizes clients; `None` allows everything.
        authorizer: Option<Arc<dyn Authorizer>>,
    },
}

/// Authenticator, authorizer, and the [`FileAccess`] behind both if files are used.
type Opened = (
    Option<Arc<dyn Authenticator>>,
    Option<Arc<dyn Authorizer>>,
    Option<Arc<FileAccess>>,
);

impl Access {
    /// Makes one value both authenticator and authorizer.
    pub fn custom(access: Arc<impl Authenticator + Authorizer>) -> Self {
        Self::Custom {
            authenticator: Some(Arc::clone(&access) as Arc<dyn Authenticator>),
            authorizer: Some(access),
        }
    }

    /// Sets an authenticator; a client that it accepts may do everything.
    pub fn authenticated(authenticator: impl Authenticator) -> Self {
        Self::Custom {
            authenticator: Some(Arc::new(authenticator)),
            authorizer: None,
        }
    }

    /// Returns the files, if access is by files.
    #[must_use]
    pub fn files(&self) -> Option<&AccessFiles> {
        match self {
            Self::Files(files) => Some(files),
            Self::Open | Self::Custom { .. } => None,
        }
    }

    /// Returns the files for a change, if access is by files.
    pub fn files_mut(&mut self) -> Option<&mut AccessFiles> {
        match self {
            Self::Files(files) => Some(files),
            Self::Open | Self::Custom { .. } => None,
        }
    }

    pub(crate) fn open(&self) -> Result<Opened, Error> {
        Ok(match self {
            Self::Open => (None, None, None),
            Self::Files(files) => {
                let access = Arc::new(FileAccess::open(files.clone())?);
                let authorizer = access
                    .authorizes()
                    .then(|| Arc::clone(&access) as Arc<dyn Authorizer>);
                (Some(Arc::clone(&access) as _), authorizer, Some(access))
            }
            Self::Custom {
                authenticator,
                authorizer,
            } => (authenticator.clone(), authorizer.clone(), None),
        })
    }
}
