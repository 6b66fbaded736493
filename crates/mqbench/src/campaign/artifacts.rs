//! Files that are kept of each run beside its record, on request.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context as _;
use mq_measure::Samples;
use serde::{Deserialize, Serialize};

/// A kind of file that can be kept of each run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Artifact {
    /// The times of each message.
    Samples,
    /// The packets of each host.
    Pcap,
}

impl FromStr for Artifact {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "samples" => Ok(Self::Samples),
            "pcap" => Ok(Self::Pcap),
            _ => Err("samples and pcap can be kept".to_owned()),
        }
    }
}

/// Paths of the files that are kept of one run; `None` for a kind of file that is not kept.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArtifactPaths {
    /// The file of the run's samples.
    samples: Option<PathBuf>,
    /// The folder of the run's captures.
    pub(crate) pcap: Option<PathBuf>,
}

impl ArtifactPaths {
    /// Returns the files of the run `name`, in the folder of its result set.
    pub(crate) fn of(name: &str, artifacts: &[Artifact], set: &Path) -> Self {
        let path = |kind, path: String| artifacts.contains(&kind).then(|| set.join(path));
        Self {
            samples: path(Artifact::Samples, format!("samples/{name}.csv")),
            pcap: path(Artifact::Pcap, format!("pcap/{name}")),
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Writes the samples of the run, if they are kept and there are any.
    pub(crate) fn save(&self, samples: &Samples) -> anyhow::Result<()> {
        let Some(file) = self.samples.as_ref().filter(|_| !samples.0.is_empty()) else {
            return Ok(());
        };
        if let Some(folder) = file.parent() {
            let cannot = || format!("cannot make {}", folder.display());
            fs::create_dir_all(folder).with_context(cannot)?;
        }
        Ok(samples.save(file)?)
    }
}
