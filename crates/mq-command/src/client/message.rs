//! Sources of the payloads of messages.

use std::path::PathBuf;

use anyhow::Context as _;
use bytes::Bytes;

/// Options that name the source of the payloads; exactly one is given.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(required = true, multiple = false)]
pub(crate) struct Source {
    /// The message
    #[arg(short = 'm', long, value_name = "TEXT", allow_hyphen_values = true)]
    message: Option<String>,
    /// A file as the message
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Each line of the standard input as a message, but for empty ones
    #[arg(short = 'l', long)]
    pub(crate) stdin_line: bool,
    /// The standard input as one message
    #[arg(short = 's', long)]
    stdin_file: bool,
    /// A message without a payload, which removes a retained one
    #[arg(short = 'n', long)]
    null_message: bool,
}

impl Source {
    /// Reads the payload: the message of the command line, a file or standard input; empty without any.
    pub(crate) async fn payload(&self) -> anyhow::Result<Bytes> {
        if let Some(text) = &self.message {
            return Ok(text.clone().into());
        }
        if let Some(file) = &self.file {
            let read = tokio::fs::read(file).await;
            return Ok(read.with_context(|| file.display().to_string())?.into());
        }
        if self.stdin_file {
            let mut bytes = Vec::new();
            let mut input = tokio::io::stdin();
            tokio::io::AsyncReadExt::read_to_end(&mut input, &mut bytes).await?;
            return Ok(bytes.into());
        }
        Ok(Bytes::new())
    }
}
