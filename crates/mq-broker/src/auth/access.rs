//! Where a broker learns which clients come in, and what they may do.

use std::sync::Arc;

use super::{AccessFiles, Authenticator, Authorizer, FileAccess};
use crate::Error;

/// Which clients come in, and what they may do.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Access {
    /// Every client that reaches a listener comes in and may do everything.
    #[default]
    Open,
    /// These files say both. [`Broker::start`](crate::Broker::start) reads them, and
    /// [`Broker::reload_access`](crate::Broker::reload_access) does again.
    Files(AccessFiles),
    /// The application says both.
    Custom {
        /// Says who clients are; `None` lets everybody in.
        authenticator: Option<Arc<dyn Authenticator>>,
        /// Says what clients may do; `None` lets them do everything.
        authorizer: Option<Arc<dyn Authorizer>>,
    },
}

/// What says who clients are, and what they may do; and the files that both are from.
type Opened = (
    Option<Arc<dyn Authenticator>>,
    Option<Arc<dyn Authorizer>>,
    Option<Arc<FileAccess>>,
);

impl Access {
    /// One value that says both.
    pub fn custom(access: Arc<impl Authenticator + Authorizer>) -> Self {
        Self::Custom {
            authenticator: Some(Arc::clone(&access) as Arc<dyn Authenticator>),
            authorizer: Some(access),
        }
    }

    /// An authenticator; clients that it lets in may do everything.
    pub fn authenticated(authenticator: impl Authenticator) -> Self {
        Self::Custom {
            authenticator: Some(Arc::new(authenticator)),
            authorizer: None,
        }
    }

    /// The files, if files say it.
    #[must_use]
    pub fn files(&self) -> Option<&AccessFiles> {
        match self {
            Self::Files(files) => Some(files),
            Self::Open | Self::Custom { .. } => None,
        }
    }

    /// The files, to be changed.
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
