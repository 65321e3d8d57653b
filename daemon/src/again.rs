//! The daemon's file, read again: what is new in it.
//!
//! Guarantees: a file with a wrong line, or with what can't be done at all, changes nothing.

use crate::config::{self, Host, Plan};
use crate::home::Home;
use crate::opener::{Found, Given};
use crate::pending::Need;
use crate::text;
use crate::unserved::Wished;
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;

/// Bytes of a file that is read again.
const LONGEST_TEXT: u64 = 64 << 20;

impl Home {
    /// The file's text has come: what is new in it, and what is wrong.
    pub(crate) fn read_again(&mut self, found: Given) -> Result<()> {
        let file = self.file.clone().context("there is no file")?;
        let (Found::Text, Some(text)) = (found.0, found.1?.into_iter().next()) else {
            bail!("{} didn't come", file.display());
        };
        let shown = file.display();
        let read = text::taken(text, LONGEST_TEXT);
        let read = read.with_context(|| format!("{shown} can't be read"))?;
        let read = String::from_utf8(read).with_context(|| format!("{shown} isn't text"))?;
        let plan = config::parse(&file, &read);
        let plan = plan.map_err(|wrong| wrong.iter().map(ToString::to_string).collect());
        let refused = |plan: Plan| match self.refused(&plan) {
            refused if refused.is_empty() => Ok(plan),
            refused => Err(refused),
        };
        let plan: Result<Plan, Vec<String>> = plan.and_then(refused);
        match plan {
            Ok(plan) => {
                let uplinks = self.keep_uplinks(&plan).into_iter();
                let mut needs: Vec<_> =
                    uplinks.map(|(asked, before)| Need::Uplink(asked, before)).collect();
                let kept = self.keep(&plan);
                needs.extend(
                    kept.devices.into_iter().map(|(entry, before)| Need::instead(entry, before)),
                );
                let noted = self.at_a_restart(&plan.host);
                let wished = needs.iter().filter_map(|need| match need {
                    Need::Device(entry, _) if self.served(entry.name()).is_none() => {
                        Some(Wished::Device(entry.clone()))
                    }
                    Need::Uplink(asked, _) => Some(Wished::Uplink(asked.clone())),
                    _ => None,
                });
                let wished: Vec<_> = wished.collect();
                self.missing.expect(wished.into_iter());
                self.note(|now| {
                    now.needs.extend(needs);
                    now.done.extend(kept.done);
                    now.failed.extend(kept.failed);
                    now.noted.extend(noted);
                });
            }
            Err(wrong) => self.note(|now| now.failed.extend(wrong)),
        }
        Ok(())
    }

    /// What of `[host]` isn't so yet: sockets and rights are made at the start.
    fn at_a_restart(&self, host: &Host) -> Vec<String> {
        let [control, metrics] = self.clients.desks().map(|desk| desk.map(|(path, _)| path));
        let folders = self.sandbox.iter().flat_map(|_| &host.paths);
        let has =
            |path: &PathBuf| self.sandbox.as_ref().is_some_and(|own| own.write.contains(path));
        let mut folders = folders.filter(|path| !has(path));
        [
            ("control", control != host.control.as_deref()),
            ("metrics", metrics != host.metrics.as_deref()),
            ("paths", folders.next().is_some()),
        ]
        .into_iter()
        .filter(|(_, is_new)| *is_new)
        .map(|(key, _)| format!("`{key}` of [host] takes effect when the daemon is restarted"))
        .collect()
    }

    /// What of a plan can't be done at all: then none of it is.
    fn refused(&self, plan: &Plan) -> Vec<String> {
        let uplinks = plan.uplinks.iter().filter(|_| self.pending.has_no_interfaces());
        let interfaces = uplinks.filter(|asked| asked.is_interface());
        let sentence = |asked: &config::Uplink| {
            format!(
                "uplink of {}: the calls for interfaces were given up, as there was none at the \
                 start; restart the daemon",
                asked.switch
            )
        };
        interfaces.map(sentence).collect()
    }
}
