//! The errors of the file, each with a remedy.

use std::fmt;

use mq_codec::{DecodeError, EncodeError};
use redb::{DatabaseError, StorageError};

use crate::store::StoreError;

/// The error of a file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    Database(Box<redb::Error>),
    #[error(
        "format {0} of a later version, while this broker reads formats up to {1}: run the version that \
         wrote the file, or restore a backup made by this version"
    )]
    Format(u64, u64),
    #[error("incomplete backup: cut off, or of a broker that kept nothing")]
    NotWhole,
    #[error("the content is damaged: restore a backup")]
    Damaged,
    #[error("the content is damaged ({0}): restore a backup")]
    Decode(#[from] DecodeError),
    #[error("{}", opening(.0))]
    Opening(DatabaseError),
    #[error(transparent)]
    Io(std::io::Error),
    #[error("cannot encode value: {0}")]
    Encode(#[from] EncodeError),
    #[error("cannot start thread: {0}")]
    Thread(std::io::Error),
}

impl FileError {
    /// Returns the store's error with the name of the store or file.
    pub(super) fn at(self, place: impl fmt::Display) -> StoreError {
        let place = place.to_string();
        let is_damaged = match &self {
            Self::Damaged
            | Self::NotWhole
            | Self::Decode(_)
            | Self::Opening(DatabaseError::Storage(StorageError::Corrupted(_))) => true,
            Self::Database(error) => matches!(**error, redb::Error::Corrupted(_)),
            _ => false,
        };
        match self {
            Self::Io(source) | Self::Opening(DatabaseError::Storage(StorageError::Io(source))) => {
                StoreError::Io { place, source }
            }
            error if error.is_in_use() => StoreError::InUse {
                place,
                source: error.into(),
            },
            Self::Format(..) => StoreError::LaterFormat {
                place,
                source: self.into(),
            },
            error if is_damaged => StoreError::Damaged {
                place,
                source: error.into(),
            },
            error => StoreError::other(place, error),
        }
    }

    /// Returns `true` if another process has the file open.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(self, Self::Opening(DatabaseError::DatabaseAlreadyOpen))
    }
}

macro_rules! from_redb {
    ($($error:ident)*) => {
        $(impl From<redb::$error> for FileError {
            fn from(error: redb::$error) -> Self {
                Self::Database(Box::new(error.into()))
            }
        })*
    };
}

from_redb! { TransactionError TableError StorageError CommitError SetDurabilityError }

/// Describes an error of opening a file, with a remedy.
pub(super) fn opening(error: &DatabaseError) -> String {
    match error {
        DatabaseError::DatabaseAlreadyOpen => "another broker has it open".to_owned(),
        DatabaseError::UpgradeRequired(_) => {
            "the format is of an earlier version that this broker no longer reads".to_owned()
        }
        DatabaseError::Storage(StorageError::Corrupted(problem)) => {
            format!("the content is damaged ({problem}): restore a backup")
        }
        DatabaseError::Storage(StorageError::Io(error)) => error.to_string(),
        other => other.to_string(),
    }
}
